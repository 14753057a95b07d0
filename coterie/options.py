"""Options: one name everywhere (Python keyword, TOML key, command-line flag), one place that says what it means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from coterie.errors import ConfigError, is_unicode, shown, unknown_name

AUTO = "auto"
"""Instead of a value: let the data decide."""
MEAN = "mean"
"""The plain way to combine the members' changes."""
LARGEST = 2**63 - 1
"""The largest whole number that TOML and arrays can hold."""
Where = Literal["local", "central"]
"""Who adds the noise of a private run: every client to what it sends, or the server to its sums."""


@dataclass(frozen=True)
class Option:
    """One option: what may be given, what it means."""

    name: str
    kind: type
    """int, float, str or bool."""
    help: str
    default: object = None
    choices: tuple[str, ...] = ()
    low: float = -math.inf
    """Least value allowed."""
    above: float = -math.inf
    """Values must be greater than this."""
    high: float = math.inf
    words: tuple[str, ...] = ()
    """Texts that may stand instead of a number."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def check(self, value: object) -> object:
        """Return the value in the option's type; numbers of NumPy become plain ones.

        Raises:
            ConfigError: if it is of another type, out of range or not one of the choices.
        """
        given = value
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or (isinstance(value, str) and value in self.words):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = self._converted(value)
        if not isinstance(value, self.kind) or (self.kind is not bool and isinstance(value, bool)):
            raise self._refusal(given)
        if isinstance(value, str):
            self._check_text(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            self._check_range(value)
        return value

    def _converted(self, value: int | float) -> object:
        """A whole number as a real one, and numbers as text, where that is the option's type."""
        try:
            if self.kind is float:
                return float(value)
            return str(value) if self.kind is str else value  # samples=50 in Python is as good as "50"
        except (OverflowError, ValueError):  # beyond the largest float; more digits than Python converts
            raise self._refusal(value) from None

    def _check_text(self, value: str) -> None:
        if self.choices and value not in self.choices:
            raise unknown_name(self.name, value, self.choices)
        if "\0" in value or not is_unicode(value):
            raise ConfigError(f"{self.name} must be a text that UTF-8 can store, without NUL, got {shown(value)}")

    def _check_range(self, value: int | float) -> None:
        if not (self.low <= value <= self.high and self.above < value < math.inf):  # false for NaN, too
            raise self._refusal(value)
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ConfigError(f"{self.name} must be a whole number below 2^63, got {shown(value)}")

    def _refusal(self, value: object) -> ConfigError:
        return ConfigError(f"{self.name} must be {self.wanted()}, got {shown(value)}")

    def read(self, text: str) -> object:
        """A value from text, as a flag gives it."""
        if text in self.words:
            return text
        try:
            if self.kind is bool:
                return {"true": True, "false": False}[text.lower()]
            return self.check(self.kind(text) if self.kind in (int, float) else text)
        except (ValueError, KeyError):
            raise self._refusal(text) from None

    def wanted(self) -> str:
        """The allowed values in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        noun = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}[self.kind]
        limits = []
        if self.above > -math.inf:
            limits.append(f"above {self.above:g}")
        if self.low > -math.inf:
            limits.append(f"at least {self.low:g}")
        if self.high < math.inf:
            limits.append(f"at most {self.high:g}")
        return " ".join([noun, " and ".join(limits)]).strip() + "".join(f", or {word}" for word in self.words)


COMMON: tuple[Option, ...] = (
    Option(
        "clusters",
        int,
        "how many clusters to train (K); auto: as many as the start shows (odcl, moment-descent, principal-angles), or "
        "from a random start as many as held-out samples call for in trial runs, maybe one (ifca, fedem, fedrc)",
        low=1,
        words=(AUTO,),
    ),
    Option("learner", str, "model family with settings, such as linear, logistic:l2=0.01, mlp:hidden=200, cnn"),
    Option("rounds", int, "rounds of communication (T)", 50, low=1),
    Option("local_steps", int, "gradient steps a client takes in a round (tau)", 10, low=1),
    Option("local_epochs", int, "passes over a client's data in a round, instead of local_steps", low=1),
    Option("batch_size", int, "samples a step; without it every step uses all of a client's samples", low=1),
    Option(
        "augment",
        str,
        "random changes of the training images in every step, separated by commas: flip (left-right, half the time), "
        "crop (out of the image with a border of 4 zeros), or none",
        "none",
    ),
    Option(
        "lr",
        float,
        "step size of the local steps (gamma); auto: 0.9 over the largest curvature of a client (linear regression)",
        0.1,
        above=0,
        words=(AUTO,),
    ),
    Option("lr_decay", float, "factor on lr after every round", 1.0, above=0, high=1),
    Option("server_lr", float, "factor on the averaged change before the server applies it", 1.0, above=0),
    Option(
        "exchange", str, "what clients send: the change of their model, or one gradient", "model", ("model", "gradient")
    ),
    Option(
        "averaging",
        str,
        "divide a cluster's summed changes by the mass of its members, or of all clients; "
        "`responsibility` is `members` by samples for methods with hard groups",
        None,
        ("members", "all", "responsibility"),
    ),
    Option("client_weight", str, "whether a client counts n_i times or once", None, ("samples", "uniform")),
    Option(
        "combine",
        str,
        "how the changes of a cluster's members become one: their mean, or what bears some that are false, every "
        "client counting once: median, trimmed:share=0.1, krum:attackers=1,keep=1",
        MEAN,
    ),
    Option("participation", float, "share of clients asked in each round", 1.0, above=0, high=1),
    Option("restarts", int, "random starts trained side by side; the least training loss wins", 1, low=1),
    Option(
        "start",
        str,
        "where the models start: random, odcl, decomposed-cosine, moment-descent (linear regression), gaussian, "
        "near-truth or cluster-oracle, with settings as in gaussian:sd=1 (`coterie describe gaussian`), or a run "
        "folder whose models are taken",
        "random",
    ),
    Option(
        "shared",
        str,
        "parameters common to all clusters, as name prefixes separated by commas (layer0), or body: all but the head",
    ),
    Option(
        "engine",
        str,
        "simulated: all clients at once; sequential: one at a time, through bytes",
        "simulated",
        ("simulated", "sequential"),
    ),
    Option("device", str, "where torch computes: cpu, cuda, cuda:1", "cpu"),
    Option(
        "dtype",
        str,
        "floating type; by default float64 for linear, logistic and representation, float32 for networks",
        None,
        ("float32", "float64"),
    ),
    Option("seed", int, "the one source of all randomness", 0, low=0, high=2**63 - 1),
    Option("evaluate_every", int, "rounds between evaluations on held-out data", 1, low=1),
    Option("checkpoint_every", int, "rounds between checkpoints", 10, low=1),
    Option(
        "validation",
        float,
        "share of each client's training samples that is held out and never trained on; its loss and score are in the "
        "records every evaluate_every rounds",
        None,
        above=0,
        high=0.9,
    ),
    Option(
        "patience",
        int,
        "stop when the training loss has not improved (by more than 0.01 %) for so many rounds in a row; with "
        "validation: the validation loss, for so many evaluations, and the models of the best one are kept",
        None,
        low=1,
    ),
    Option(
        "finetune",
        int,
        "after the last round every client takes so many plain steps of its own from its cluster's model, with the "
        "last lr, and is scored with what comes out, too; that model never leaves it",
        None,
        low=1,
    ),
    Option(
        "poison",
        str,
        "in a simulation some clients lie in every round, and scores are those of the others: sign-flip, scale or "
        "noise with :share=0.2,strength=10, or label-flip:share=0.2",
    ),
    Option(
        "privacy",
        str,
        "differential privacy of a client's whole data (docs/privacy.md). local: every client adds noise to what it "
        "sends, so that no server need be trusted; central: the server adds noise to the models",
        None,
        ("local", "central"),
    ),
    Option(
        "privacy_epsilon",
        float,
        "with privacy: the budget; the noise is chosen for it, and the run stops before it is exceeded",
        None,
        above=0,
    ),
    Option(
        "privacy_delta", float, "with privacy: the delta of its guarantee; 1e-5 unless given", None, above=0, high=0.1
    ),
    Option(
        "privacy_clip",
        float,
        "with privacy: the length that a client's change is cut to, all its parameters together; 1 unless given",
        None,
        above=0,
    ),
    Option(
        "privacy_noise",
        float,
        "with privacy: standard deviation of the noise over privacy_clip, on a client's change (local) or on a sum of "
        "changes (central); unset: what privacy_epsilon asks for",
        None,
        above=0,
    ),
    Option(
        "privacy_choice",
        float,
        "with privacy=local, where clients choose a cluster: the epsilon of each time that they say which; unset: so "
        "much that all of them together would take half of privacy_epsilon",
        None,
        above=0,
    ),
)


def check_seed(seed: object) -> int:
    """Return the seed as a plain whole number; an error for anything else."""
    checked = next(option for option in COMMON if option.name == "seed").check(seed)
    if not isinstance(checked, int):
        raise ConfigError(f"seed must be a whole number at least 0, got {shown(seed)}")
    return checked


PRIVATE = frozenset(option.name for option in COMMON if option.name.startswith("privacy"))
"""The options of private runs."""


@dataclass(frozen=True)
class Options:
    """The common options of one run, all settled. `own` holds what only the method knows."""

    clusters: int
    learner: str
    rounds: int
    local_steps: int | None
    local_epochs: int | None
    batch_size: int | None
    augment: str
    lr: float
    lr_decay: float
    server_lr: float
    exchange: str
    averaging: str
    client_weight: str
    combine: str
    participation: float
    restarts: int
    start: str
    shared: str | None
    engine: str
    device: str
    dtype: str
    seed: int
    evaluate_every: int
    checkpoint_every: int
    validation: float | None
    patience: int | None
    finetune: int | None
    poison: str | None
    privacy: Where | None
    privacy_epsilon: float | None
    privacy_delta: float | None
    privacy_clip: float | None
    privacy_noise: float | None
    privacy_choice: float | None
    own: Mapping[str, Any]

    def flat(self) -> dict[str, object]:
        """One flat dict, as it is written to TOML; what is not set is left out."""
        common = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "own"}
        return {k: v for k, v in (common | dict(self.own)).items() if v is not None}


def check_all(given: Mapping[str, object], options: Iterable[Option], owner: str) -> dict[str, object]:
    """Check names and values; an unknown name gets the nearest valid one."""
    known = {option.name: option for option in options}
    for name in given:
        if name not in known:
            raise unknown_name(f"option of {owner}", name, known)
    return {name: known[name].check(value) for name, value in given.items() if value is not None}


def plain_options(options: Mapping[str, object]) -> dict[str, Any]:
    """Return the options that are set, NumPy's numbers as plain ones: as TOML can store them."""
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
    return {name: value for name, value in plain.items() if value is not None}


def settle(
    given: Mapping[str, object],
    recommended: Mapping[str, object],
    method_defaults: Mapping[str, object],
) -> dict[str, Any]:
    """What the user said, else what suits the data, else what suits the method, else the common default."""
    layers = [{option.name: option.default for option in COMMON}, dict(method_defaults), dict(recommended), dict(given)]
    if given.get("local_steps") is not None and given.get("local_epochs") is not None:
        raise ConfigError("local_steps and local_epochs both say how long to train: give one of them")
    values: dict[str, Any] = {}
    for layer in layers:
        # a layer that counts epochs overrules steps from the layers below it, and the other way round
        if layer.get("local_epochs") is not None:
            values["local_steps"] = None
        elif layer.get("local_steps") is not None:
            values["local_epochs"] = None
        values |= {name: value for name, value in layer.items() if value is not None or name not in values}
    if values["exchange"] == "gradient" and not {"local_steps", "local_epochs"} & given.keys():
        values |= {"local_steps": 1, "local_epochs": None}
    if values["combine"] != MEAN and "client_weight" not in given:
        values["client_weight"] = "uniform"  # how many samples it has is only what a client says
    return values
