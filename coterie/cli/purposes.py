"""Recommended methods for several purposes: the table of `coterie methods --for` and of the page "Which method?"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Choice:
    """A method that suits a purpose, and a command to try it."""

    method: str
    reason: str
    scenario: str
    options: Mapping[str, object] = field(default_factory=dict)
    """Options as in TOML, with underscores in their names."""

    @property
    def command(self) -> str:
        """Command that runs the method with these options on the scenario."""
        flags = [f"--{name.replace('_', '-')} {value}" for name, value in self.options.items()]
        return " ".join(["coterie run", self.scenario, "--method", self.method, *flags])


@dataclass(frozen=True)
class Purpose:
    """A situation, and the methods that suit it, in the order in which to try them."""

    name: str
    situation: str
    choices: tuple[Choice, ...]


PURPOSES = {
    each.name: each
    for each in (
        Purpose(
            "regression",
            "The target is a number, and the features are columns of a table.",
            (
                Choice(
                    "ifca",
                    "Works with every learner; held-out samples choose the number of clusters, which may be one.",
                    "mixed-regression",
                    {"clusters": "auto"},
                ),
                Choice(
                    "two-phase",
                    "Linear regression from any start, if some clients have enough samples to be anchors.",
                    "mixed-regression",
                    {"clusters": "auto"},
                ),
                Choice(
                    "linear-heads-found",
                    "Many features, and groups that differ in few directions: they share a linear subspace.",
                    "linear-representation",
                ),
            ),
        ),
        Purpose(
            "images",
            "The samples are images, and the model is a network.",
            (
                Choice(
                    "ifca",
                    "The number of groups is known, or a few numbers can be tried.",
                    "rotated-digits",
                    {"clusters": 4, "restarts": 5},
                ),
                Choice(
                    "hcfl+",
                    "The number of groups is unknown: the best of such methods on the scoreboard.",
                    "rotated-digits",
                ),
                Choice(
                    "cfl",
                    "The same with a whole model for each cluster; every client should take part in most rounds.",
                    "rotated-digits",
                ),
            ),
        ),
        Purpose(
            "few-samples",
            "Most clients have too few samples to train a model alone.",
            (
                Choice(
                    "ifca",
                    "Clients only compare losses, which needs few samples, and are assigned again in every round.",
                    "mixed-regression",
                    {"clusters": 3, "restarts": 5},
                ),
                Choice(
                    "two-phase",
                    "For linear regression: a few larger clients find the groups, the small ones join.",
                    "mixed-regression",
                    {"clusters": 3},
                ),
                Choice(
                    "fedavg",
                    "If clients cannot be distinguished: one model, then a few local steps of each client.",
                    "mixed-regression",
                    {"finetune": 10},
                ),
            ),
        ),
        Purpose(
            "unknown-k",
            "The number of groups is unknown.",
            (
                Choice(
                    "ifca",
                    "Held-out samples choose the number in trial runs; the answer may be one, or 'cannot tell'.",
                    "rotated-digits",
                    {"clusters": "auto"},
                ),
                Choice(
                    "two-phase",
                    "For linear regression: the anchors show the number.",
                    "mixed-regression",
                    {"clusters": "auto"},
                ),
                Choice(
                    "odcl",
                    "In one round: convex clustering finds the number, and can prove the partition.",
                    "odcl-linear",
                    {"clustering": "convex"},
                ),
                Choice(
                    "hcfl+",
                    "Networks: during training, tests on held-out samples decide whether clusters split or merge.",
                    "rotated-digits",
                ),
            ),
        ),
        Purpose(
            "private",
            "Differential privacy is needed: noise with a stated budget.",
            (
                Choice(
                    "ifca",
                    "Only sums over clients are used, and noise at each client hides what it sends.",
                    "rotated-digits",
                    {"clusters": 4, "privacy": "local", "privacy_epsilon": 8},
                ),
                Choice(
                    "fedavg",
                    "The baseline: noise costs a single model less than several.",
                    "rotated-digits",
                    {"privacy": "local", "privacy_epsilon": 8},
                ),
            ),
        ),
        Purpose(
            "one-round",
            "Clients can be asked only once.",
            (
                Choice(
                    "odcl",
                    "Clients send their own solutions once; the server clusters and averages them.",
                    "odcl-linear",
                ),
                Choice(
                    "odcl",
                    "The same without a number of clusters, with a proof of the partition.",
                    "odcl-linear",
                    {"clustering": "convex"},
                ),
                Choice("naive-averaging", "The baseline: the mean of all solutions.", "odcl-linear"),
            ),
        ),
    )
}
"""All purposes by name."""
