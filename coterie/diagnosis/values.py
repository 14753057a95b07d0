"""The values of a diagnosis: numbers, texts and flags only, so that `to_plain` and JSON can hold all of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from coterie.core.plain import from_plain, to_plain

ShiftKind = Literal["none", "labels", "features", "relation", "several"]
"""Kind of difference between clients: none was found, p(y) only, p(x) only, p(y|x) only, or several of them."""

StructureKind = Literal["one", "groups", "continuum", "unclear"]
"""Form of the differences in p(y|x): none, a few groups, a smooth spread, or unknown for lack of samples."""

SettingValue = int | float | str
"""Value of an option of a method."""


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ShiftTest:
    """A test of whether one aspect of the data is the same for all clients, with an effect size."""

    statistic: float
    """Standardised statistic: about 0 on average where clients do not differ, with standard deviation about 1."""
    p_value: float
    rejects: bool
    """Whether the clients differ at the level of the diagnosis."""
    effect: Estimate
    """Standard deviation between clients, in `unit`; the lower end is 0 where no difference was found."""
    unit: str
    """Unit of the effect, such as `kg`, `log-odds` or `standard deviations of the features`."""


@dataclass(frozen=True)
class Shift:
    """Tests of the three aspects in which clients can differ."""

    relation: ShiftTest
    """p(y|x): whether the same features predict the same target, apart from the frequency of the targets."""
    features: ShiftTest
    """p(x): means and squares of the principal components of the features."""
    labels: ShiftTest
    """p(y): frequencies of the classes, or of eighths of a numeric target."""
    model: ShiftTest
    """Whether one model, intercept included, fits all clients; this is the test that matters for clustering."""
    conditional: ShiftTest
    """p(x|y): whether the samples of a class, or of an eighth of the targets, have the same features."""
    kind: ShiftKind
    level: float
    """Probability of a false alarm in each test."""
    sentence: str


@dataclass(frozen=True)
class Candidate:
    """Criterion of a number of groups."""

    clusters: int
    criterion: float
    """Criterion of the model with this number of groups; smaller is better, differences above 10 are decisive."""


@dataclass(frozen=True)
class Structure:
    """Form of the differences in p(y|x)."""

    kind: StructureKind
    clusters: int | None
    """Number of groups; None if there are no groups, or if their number is unclear."""
    candidates: tuple[Candidate, ...]
    """Criterion for each number of groups."""
    continuum: float | None
    """Criterion of a smooth spread, comparable with those of the candidates; None if it was not fitted."""
    sizes: tuple[int, ...]
    """Number of clients of each group, largest first."""
    sentence: str


@dataclass(frozen=True)
class PowerPoint:
    """Probability of placing a client with this many samples in its group."""

    samples: int
    probability: float


@dataclass(frozen=True)
class Power:
    """Number of samples that a client needs to be placed in a group."""

    separation: float | None
    """Smallest distance between two groups: standard deviation of the difference of their predictions, in `unit`."""
    unit: str
    curve: tuple[PowerPoint, ...]
    """Probability for increasing numbers of samples; empty if there are no groups."""
    samples_needed: int | None
    """Smallest number of samples with which 95 % of clients are placed in their group; None if there are no groups."""
    placed: int
    """Number of clients whose group has a probability of at least 95 %."""


@dataclass(frozen=True)
class Gain:
    """Expected gain of one model per group, as a decrease of the loss on new samples of the same clients.

    It is measured by cross-validation inside the clients. The unit is that of the score: mean squared error of a
    regression, log loss of a classification.
    """

    unit: str
    one_model: float
    """Expected loss of one model for all clients."""
    over_one: Estimate
    """Expected loss of one model minus that of groups; 0 if no groups were tried."""
    over_local: Estimate
    """Expected loss of local models minus that of groups, or minus that of one model if no groups were tried."""
    most_over_one: float
    """Upper bound of the gain of any personalisation over one model, with 95 % confidence."""
    clusters: int | None = None
    """Number of groups that were tried; None if none were."""
    personal: Estimate | None = None
    """Expected loss of one model minus that of a model for each client that is shrunken to the pooled model."""


@dataclass(frozen=True)
class ClientDiagnosis:
    """Figures of one client, for the forest plot, the map and the table."""

    id: str
    samples: int
    deviation: Estimate
    """Difference from the pooled model along the direction in which the clients differ most, in the unit of
    `Shift.model`, with a 95 % interval."""
    distance: float
    """Standard deviation of the difference between the client's predictions and those of the pooled model, shrunken by
    the difference that chance explains."""
    x: float
    y: float
    """Coordinates on a map of the clients, on which clients with similar relations are close to each other."""
    group: int | None
    """Most probable group, counted from 0 in the order of `Structure.sizes`; None if there are no groups."""
    probability: float | None
    """Probability of that group."""
    can_be_placed: bool
    """Whether the probability of the group is at least 95 %."""


@dataclass(frozen=True)
class Setting:
    """An option of the recommended method."""

    name: str
    value: SettingValue


@dataclass(frozen=True)
class Recommendation:
    """The recommended method and the reason."""

    method: str
    """Name of a method, as `coterie run --method` knows it."""
    options: tuple[Setting, ...]
    """Options of the method as keywords of `fit`."""
    arguments: tuple[str, ...]
    """Options of the method as arguments of `coterie run`, such as `--method ifca --clusters 3`."""
    do_not_cluster: bool
    reason: str
    """Reason in one sentence."""

    def settings(self) -> dict[str, SettingValue]:
        """Return the options as keyword arguments of `fit`."""
        return {setting.name: setting.value for setting in self.options}


@dataclass(frozen=True)
class DataFacts:
    """Facts about the data and the pooled model."""

    name: str
    clients: int
    """Number of clients that answered."""
    samples: int
    smallest: int
    median: float
    largest: int
    features: int
    classes: int | None
    """Number of classes; None for a regression."""
    target: str
    """Name of the target column; empty if unknown."""
    model: str
    """The pooled model whose residuals were tested, in words."""
    score: float
    """Loss of the pooled model: mean squared error or log loss."""


@dataclass(frozen=True)
class Cost:
    """Cost of the diagnosis."""

    exchanges: int
    bytes_up: int
    bytes_down: int
    seconds: float


@dataclass(frozen=True)
class Diagnosis:
    """The whole diagnosis of a federation, before anything is trained."""

    facts: DataFacts
    shift: Shift
    structure: Structure
    power: Power
    gain: Gain
    clients: tuple[ClientDiagnosis, ...]
    """In the order of the federation."""
    recommendation: Recommendation
    warnings: tuple[str, ...]
    """Sentences about limits of the diagnosis, such as clients that did not answer."""
    cost: Cost
    seed: int

    def __str__(self) -> str:
        """Return the answers in words."""
        from coterie.diagnosis.answers import as_text  # which needs these classes

        return as_text(self)

    def to_json(self) -> str:
        """Return the diagnosis as JSON; `from_json` is the inverse."""
        return json.dumps(to_plain(self), indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Diagnosis:
        """Return the diagnosis that `to_json` described.

        Args:
            text: A JSON document.

        Raises:
            ConfigError: if it is not a diagnosis.
        """
        found: Diagnosis = from_plain(cls, json.loads(text), "diagnosis")
        return found
