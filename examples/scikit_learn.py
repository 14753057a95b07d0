"""scikit-learn in the usual way, with one more argument: the site of each row.

python examples/scikit_learn.py
"""

import numpy as np
from sklearn.linear_model import LinearRegression

from coterie.sklearn import ClusteredRegressor

# Twenty stores; a lower price sells more in most of them, and less in those where it looks cheap.
random = np.random.default_rng(0)
store = np.repeat(np.arange(20), 30)
price, weekend = random.normal(10, 2, 600), random.integers(0, 2, 600)
sold = 100 + np.where(store % 4 == 0, 3, -4) * (price - 10) + 8 * weekend + random.normal(0, 3, 600)
X = np.column_stack([price, weekend])

one = LinearRegression().fit(X, sold)
model = ClusteredRegressor(rounds=50).fit(X, sold, groups=store)
print("clusters:", {cluster: [s for s, k in model.cluster_.items() if k == cluster] for cluster in (0, 1)})
print(f"R^2 with one model {one.score(X, sold):.2f}, with clusters {model.score(X, sold, groups=store):.2f}")

# A few labelled rows assign a new store to a group.
new = (np.array([[8, 0], [9, 0], [11, 0], [12, 0]]), [94, 97, 103, 106], ["new"] * 4)
print("a new store sells", model.predict([[8, 1], [12, 1]], ["new", "new"], support=new).round(1))
