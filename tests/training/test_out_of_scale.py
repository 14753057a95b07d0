"""Every method with too large steps, constant features and features far out of scale: a sane score or a clear error."""

import warnings

import numpy as np
import pytest

import coterie
from coterie.errors import CoterieError
from coterie.methods import Method
from coterie.options import options_of

METHODS = [name for name, kind in Method.members.items() if kind.__module__.startswith("coterie.") and name != "tiered"]
CLASSES = {"hcfl+", "fedrc"}
"""Methods for classes only; the others get numbers, where a divergence is not bounded by rounding."""
LEARNERS = {"hcfl-split": "mlp:hidden=4"} | dict.fromkeys(
    ("linear-heads", "linear-heads-found"), "representation:width=2"
)
REMEDIES = ("standardise", "lower lr", "smaller lr", "constant")
WORST = 3.0
"""Largest sane loss, as a multiple of that of a model that always predicts 0, or equal probabilities."""


def data(case: str, classes: bool) -> coterie.FederatedDataset:
    """Clients in two groups with opposite slopes."""
    random, clients = np.random.default_rng(0), {}
    for i in range(8):
        x = random.standard_normal((30, 3))
        y = x @ np.array([1.0, 2.0, -1.0]) * (1 if i % 2 else -1) + 0.1 * random.standard_normal(30)
        features = {"constant": np.ones_like(x), "1e20": 1e20 * x}.get(case, x)
        clients[f"c{i}"] = (features, (y > 0).astype(int) if classes else y)
    return coterie.from_arrays(clients, truth=[i % 2 for i in range(8)])


def outcome(drawn, method, learner, options) -> tuple[coterie.Result | None, str]:
    """Return the result, or None and the message of the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return coterie.fit(drawn, method, learner=learner, seed=0, **options), ""
        except CoterieError as error:
            return None, str(error)


@pytest.mark.parametrize("case", ["lr=1000", "constant", "1e20"])
@pytest.mark.parametrize("method", METHODS)
def test_the_outcome_is_a_sane_score_or_a_clear_error(method, case):
    known = {option.name for option in options_of(Method.members[method])}
    options = {name: value for name, value in {"clusters": 2, "rounds": 12}.items() if name in known}
    if case == "lr=1000":
        if "lr" not in known:
            pytest.skip("the method has no learning rate")
        options["lr"] = 1e3
    drawn = data(case, method in CLASSES)
    learner = LEARNERS.get(method, "logistic" if method in CLASSES else "linear")
    result, refused = outcome(drawn, method, learner, options)
    if result is None:
        assert any(word in refused for word in REMEDIES), refused
        return
    if result.metrics.diverged:
        assert any(word in result.metrics["why_diverged"] for word in REMEDIES)
        return
    untrained = np.log(2) if method in CLASSES else float((drawn.train.y.double() ** 2).mean())
    assert result.metrics.loss <= WORST * untrained
