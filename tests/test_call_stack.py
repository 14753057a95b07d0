"""A reader follows `fit` to a client's gradient step through few files."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pytest

import coterie
from coterie.learners.logistic import Logistic
from coterie.methods import IFCA, FullBatch

PACKAGE = Path(coterie.__file__).parent
MOST_FILES = 10


class ReachedError(Exception):
    """Raised at the first gradient step, with the files of the package on the call stack."""


def stop_here(*_: object, **__: object) -> None:
    paths = (Path(frame.filename) for frame in inspect.stack()[1:])
    raise ReachedError(*dict.fromkeys(str(path.relative_to(PACKAGE)) for path in paths if PACKAGE in path.parents))


@pytest.mark.parametrize(
    ("learner", "scenario", "owner", "step"),
    [
        ("mlp", "rotated-digits", import_module("coterie.learners.perceptron"), "_step"),
        ("logistic", "rotated-digits", Logistic, "_gradients"),
        ("linear", "ifca-synthetic", import_module("coterie.learners.linear"), "_in_samples"),
    ],
)
def test_a_gradient_step_is_at_most_ten_files_away_from_fit(monkeypatch, learner, scenario, owner, step):
    monkeypatch.setattr(owner, step, stop_here)
    data = coterie.scenario(scenario, clients=8)
    with pytest.raises(ReachedError) as reached:
        coterie.fit(data, IFCA(clusters=2, local=FullBatch(steps=10, lr=0.1)), learner=learner, rounds=1)
    files = reached.value.args
    assert "training/loop.py" in files
    assert "methods/ifca.py" in files
    assert len(files) <= MOST_FILES, " <- ".join(files)
