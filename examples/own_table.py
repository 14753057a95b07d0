"""Your own table: one row a pupil, a column that says which school, groups of schools found.

python examples/own_table.py
"""

import numpy as np

import coterie

# Thirty schools; homework helps in two thirds of them and tires in the others. Any DataFrame or file will do as well.
random = np.random.default_rng(0)
school, hours = random.integers(30, size=900), random.normal(5, 2, 900)
score = 50 + np.where(school % 3 == 0, -3, 4) * (hours - 5) + random.normal(0, 3, 900)
table = {"school": school, "hours": hours, "score": score}

federation = coterie.from_table(table, client="school", target="score")
result = coterie.fit(federation, method="ifca", clusters=2)
print(result)

one = coterie.fit(federation, method="fedavg")
print(f"held-out error: {result.metrics['rmse']:.2f} with groups, {one.metrics['rmse']:.2f} with one model")

# Raw rows go in: the result scales them as it scaled the table. A new school is placed by a few labelled rows.
print("school 3 expects", result.predict({"hours": [2, 8]}, client="3").round(1))
labelled = {"hours": [2, 4, 6, 8], "score": [38, 46, 54, 62]}
print("a new school expects", result.predict({"hours": [3, 7]}, support=labelled).round(1))
