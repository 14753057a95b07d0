"""Your own data: clients as arrays, their groups, the group of a new client, and a report.

python examples/own_data.py
"""

import numpy as np

import coterie

# Twelve clinics, two kinds of patients: the same measurements mean opposite things. The kind of each clinic is unknown.
random = np.random.default_rng(0)
effect = {"north": np.array([2.0, -1.0, 0.5]), "south": np.array([-2.0, 1.0, 0.5])}


def patients(kind: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Measurements and a yes/no outcome."""
    x = random.standard_normal((count, 3))
    return x, (x @ effect[kind] + random.standard_normal(count) > 0).astype(int)


kinds = {f"clinic-{i}": "north" if i % 3 else "south" for i in range(12)}
federation = coterie.from_arrays(
    {name: patients(kind, int(random.integers(15, 80))) for name, kind in kinds.items()},
    test={name: patients(kind, 200) for name, kind in kinds.items()},
)

result = coterie.fit(federation, method="ifca", clusters=2, learner="logistic", rounds=30, lr=0.5, restarts=5, seed=0)
print(result)
print("groups:", result.assignments)
print("sure of their group:", result.metrics["sure"], "of", result.metrics["clients"])

global_model = coterie.fit(federation, method="fedavg", learner="logistic", rounds=30, lr=0.5)
print(f"accuracy: {result.metrics['accuracy']:.3f} with groups, {global_model.metrics['accuracy']:.3f} with one model")

x, y = patients("south", 30)
cluster = result.assign(x, y)
print("a new southern clinic joins the group of clinic-0:", cluster == result.assignments["clinic-0"])
print("its predictions:", result.predict(x[:5], cluster=cluster))
print("report:", coterie.write_report(result, "clinics.html"))
