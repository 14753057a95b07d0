"""Before training: do the clients differ, do they form groups, and are clusters worth it?

python examples/diagnose_first.py
"""

import numpy as np

import coterie

# Forty stores of very different sizes; a discount sells much more in half of them than in the others.
random = np.random.default_rng(0)
sizes = np.exp(random.uniform(np.log(5), np.log(400), 40)).astype(int)
store = np.repeat(np.arange(40), sizes)
discount, weekend = random.uniform(0, 30, len(store)), random.integers(2, size=len(store))
sales = 100 + np.where(store % 2 == 0, 3.0, 0.5) * discount + 20 * weekend + random.normal(0, 15, len(store))
table = {"store": store, "discount": discount, "weekend": weekend, "sales": sales}

data = coterie.from_table(table, client="store", target="sales")
diagnosis = coterie.diagnose(data)
print(diagnosis)
coterie.write_report(diagnosis, "diagnosis.html")

# Follow the recommendation; the result stores the reason. Without groups this would train one model.
result = coterie.fit(data, "auto", rounds=20)
print(result)
print(result.diagnosis.recommendation.reason)
