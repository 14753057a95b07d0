"""Small runs of every registered method whose final models and records are kept in `golden.json`.

The file states numbers that a change of structure must not change. Write it again only when arithmetic changes on
purpose, and say so in the changelog::

    python -m tests.golden.run
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import coterie
from coterie.methods import Method
from coterie.testing.checks import LEARNERS, Case, learners_of, small_federation
from coterie.training.result import Result

FILE = Path(__file__).with_name("golden.json")
ROUNDS = 4
RECORDED = (
    *("loss", "clusters", "moved", "answered", "sizes", "assignments", "bytes_up", "bytes_down"),
    *("K", "likelihood", "accuracy", "rmse", "newcomers"),
)
"""Entries of a round's record that are compared, where a record has them."""
VARIANTS = (
    ("ifca", "linear", {"restarts": 3}),
    ("ifca", "mlp", {"batch_size": 4, "local_epochs": 2}),
    ("ifca", "mlp", {"shared": "layer0"}),
    ("ifca", "linear", {"init": "odcl:clustering=gradient"}),
    ("ifca", "linear", {"averaging": "all", "client_weight": "samples", "server_lr": 0.7, "lr_decay": 0.9}),
    ("ifca", "linear", {"combine": "median"}),
    ("two-phase", "linear", {"phase2": "fedprox", "init": "random"}),
    ("two-phase", "linear", {"soft": 0.5, "init": "random"}),
    ("moment-descent", "linear", {"private_anchors": 0.1}),
    ("moment-descent", "linear", {"anchor_step": "paper"}),
    ("odcl", "linear", {"clustering": "spectral"}),
    ("odcl", "linear", {"clustering": "convex", "clusters": "auto"}),
    ("odcl", "logistic", {"solver": "sgd", "sgd_steps": 50, "sgd_radius": 3.0, "sgd_mu": 0.5}),
    ("one-shot", "linear", {"then": "fedprox", "mu": 0.3, "clustering": "spectral"}),
    ("pacfl", "logistic", {"clusters": "auto", "beta": 30.0, "linkage": "complete"}),
    ("fedgroup", "logistic", {"measure": "madc", "pretrain_steps": 5}),
    ("fedem", "mlp", {"averaging": "responsibility", "participation": 0.6}),
    ("fedem", "mlp", {"shared": "body"}),
    ("fedrc", "logistic", {"participation": 0.6}),
    ("fedgmm", "linear", {"gaussians": 3}),
    ("fedsoft", "mlp", {"count_every": 2}),
    ("cfl", "mlp", {"warmup": 1, "eps1": 10.0, "eps2": 0.0, "least": 3}),
    ("icfl", "linear", {"alpha0": 0.3, "max_clusters": 5}),
    ("stocfl", "linear", {"tau": 0.6}),
    ("hcfl", "logistic", {"warmup": 1, "eps1": 10.0, "eps2": 0.0, "least": 3, "backbone": "fesem"}),
    ("hcfl+", "mlp", {"rho": 0.05, "max_clusters": 4, "clusters": 1}),
    ("hcfl+", "mlp", {"rho": 0.05, "max_clusters": 4, "clusters": 1, "backbone": "fedsoft"}),
)
"""Methods with options that change their arithmetic."""


RENAMED = {"composed": "tiered"}
"""Methods that had another name when the file was written."""
OF_THE_PAPERS = {
    "fedem": {"averaging": "all", "init": "random"},
    "fedrc": {"averaging": "all", "init": "random"},
    "fesem": {"init": "random"},
    "fedgmm": {"gaussians": "tied", "init": "random"},
    "composed": {"averaging": "all"},
    "tiered": {"averaging": "all"},
    "pacfl": {"beta": 7.0},
    "stocfl": {"tau": 0.1, "lam": 0.5},
    "cfl": {"eps1": 0.4, "eps2": 1.6},
    "icfl": {"alpha0": 0.85},
    "hcfl": {"backbone": "fedrc", "averaging": "all", "eps1": 0.4, "eps2": 1.6},
    "hcfl-split": {"backbone": "fedrc", "averaging": "all", "eps1": 0.4, "eps2": 1.6},
    "hcfl+": {"backbone": "fedrc", "averaging": "all", "rho": 0.3, "grace": 0, "order": "heads-first"},
}
"""Settings of the papers, which were the defaults when the file was written."""
SOLVING = ("odcl", "one-shot", "local-erm", "naive-averaging", "oracle-averaging", "cluster-oracle")
OF_THE_PAPERS |= {name: {"solve_steps": 2} for name in SOLVING}
CONVOLVED = ("ifca", "fedem", "fedsoft", "hcfl+", "cfl", "odcl")
"""Methods that are run with a convolutional network; all others train it as one of these does."""


def all_cases() -> list[Case]:
    """Return every method with the learners that it supports, then the variants."""
    plain = [
        Case(method, learner)
        for method in Method.members
        for learner in learners_of(method)
        if learner != "module" and (learner != "cnn" or method in CONVOLVED)
    ]
    return plain + [Case(*variant) for variant in VARIANTS]


def run(method: str, learner: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the final models and the recorded figures of one small run, as JSON."""
    given = OF_THE_PAPERS.get(method, {}) | {"init" if name == "start" else name: v for name, v in settings.items()}
    if given.get("backbone") in ("fesem", "fedsoft"):
        given.pop("averaging", None)  # they have one averaging each
    if given.get("solver") == "sgd":
        given.pop("solve_steps")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = coterie.fit(small_federation(learner), RENAMED.get(method, method), learner=LEARNERS[learner], **given)
    return {"models": flat(result), "clusters": list(result.assignments.values()), "records": recorded(result)}


def flat(result: Result) -> list[float]:
    """Return the parameters of all models in one list, models in order and arrays by name."""
    arrays = [value.ravel() for model in result.models for _, value in sorted(model.items())]
    return np.concatenate(arrays).astype(np.float64).tolist()


def recorded(result: Result) -> list[dict[str, Any]]:
    """Return the figures of each round that are compared."""
    return [{name: record[name] for name in RECORDED if name in record} for record in result.records]


def main() -> None:
    """Write the file."""
    entries = []
    for case in all_cases():
        settings = case.settings | ({"rounds": ROUNDS} if "rounds" in case.settings else {})
        print(case.method, case.learner, case.options, file=sys.stderr)
        entries.append(
            {"method": case.method, "learner": case.learner, "settings": settings}
            | run(case.method, case.learner, settings)
        )
    FILE.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n")


if __name__ == "__main__":
    main()
