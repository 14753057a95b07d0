"""Your own table: one row for each pupil, a column with the school, and the groups of schools.

python examples/own_table.py
"""

import numpy as np

import coterie

# Thirty schools; homework helps in two thirds of them and harms in the others. Any DataFrame or file works as well.
random = np.random.default_rng(0)
school, hours = random.integers(30, size=900), random.normal(5, 2, 900)
score = 50 + np.where(school % 3 == 0, -3, 4) * (hours - 5) + random.normal(0, 3, 900)
table = {"school": school, "hours": hours, "score": score}

federation = coterie.from_table(table, client="school", target="score")
result = coterie.fit(federation, method="ifca", clusters=2)
print(result)

one = coterie.fit(federation, method="fedavg")
print(f"held-out error: {result.metrics['rmse']:.2f} with groups, {one.metrics['rmse']:.2f} with one model")

# The result takes raw rows and scales them like the table. A few labelled rows assign a new school to a group.
print("school 3 expects", result.predict({"hours": [2, 8]}, client="3").round(1))
labelled = {"hours": [2, 4, 6, 8], "score": [38, 46, 54, 62]}
print("a new school expects", result.predict({"hours": [3, 7]}, support=labelled).round(1))
