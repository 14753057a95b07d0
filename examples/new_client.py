"""A client that did not train: with hard clusters it gets one model, with mixtures a weight for each.

python examples/new_client.py
"""

import numpy as np

import coterie

# Sixteen clinics see two kinds of patients, each in its own shares. The same measurements mean opposite things.
random = np.random.default_rng(0)


def patients(northern: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Measurements and a yes/no outcome; a share of the patients is of the northern kind."""
    x = random.standard_normal((count, 3))
    kind = np.where(random.random(count) < northern, 1, -1)
    return x, (kind * (x @ [3.0, -2.0, 1.0]) > 0).astype(int)


federation = coterie.from_arrays({f"clinic-{i}": patients(i / 15, 80) for i in range(16)})
options = {"clusters": 2, "learner": "logistic", "rounds": 60, "lr": 1.0, "local_steps": 5}
hard = coterie.fit(federation, "ifca", **options)
soft = coterie.fit(federation, "fedem", averaging="responsibility", **options)

some = patients(0.8, 60)  # labelled samples of a new clinic: four in five patients are northern
print("ifca gives it one model:", hard.weigh(*some).round(2))
print("fedem gives it a mixture:", soft.weigh(*some).round(2))

x, y = patients(0.8, 500)
for name, result in (("ifca", hard), ("fedem", soft)):
    print(f"{name}: right for {(result.predict(x, support=some) == y).mean():.2f} of its next patients")

try:
    soft.predict(x)
except coterie.InputError as error:
    print("without labels:", error)
