"""The scenarios by name, with their options."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import TypeVar, get_args

from coterie.core.dataset import FederatedDataset
from coterie.core.registry import register
from coterie.core.source import DataSource
from coterie.data import table
from coterie.data.fitting import Missing, Task
from coterie.data.scenarios import (
    diverse_shift,
    drift,
    femnist,
    few_classes,
    grunfeld,
    ifca_synthetic,
    linear_representation,
    mixed_clients,
    mixed_regression,
    noisy_labels,
    odcl_clusterpath,
    odcl_linear,
    odcl_logistic,
    opposite_labels,
    rotated_digits,
    rotated_images,
    school,
)
from coterie.data.scenarios.shifts.pictures import DATASETS as PICTURES
from coterie.errors import ConfigError, CoterieError, shown, unknown_name
from coterie.options import Option, check_all, check_seed, options_of_function, plain_options
from coterie.plugins.loading import load_installed


@dataclass(frozen=True)
class ScenarioEntry:
    """A scenario with its description and its options.

    Example:
        >>> from coterie.data import find_scenario
        >>> find_scenario("rotated-digits").name
        'rotated-digits'
    """

    name: str
    summary: str
    build: Callable[..., FederatedDataset]
    recommended: Mapping[str, object]
    """Run options that suit it; used where the user says nothing. What depends on its options is in the dataset."""
    options: tuple[Option, ...]


_CLIENTS = "number of clients (m)"
_SIZES = "number of samples of each client (n_i): 50, 10-200 drawn uniformly, or 900x10+20x50"
_TRAIN_IMAGES = Option(
    "train_images", int, "number of training images to use, the first ones; by default all", None, low=1
)
_HOLDOUT = Option(
    "holdout",
    float,
    "share of each client's rows held out as test samples; 0: none",
    table.HOLDOUT,
    low=0,
    high=0.9,
)

_SHIFTED_IMAGES = (
    Option("dataset", str, "data set of the images", "digits", PICTURES),
    Option("clients", int, _CLIENTS + "; by default 100, or 30 for digits", None, low=1),
    Option(
        "samples", int, "number of training samples of each client (n); by default all images are divided", None, low=1
    ),
    Option(
        "test_samples",
        int,
        "number of held-out samples of each client; by default a tenth of its samples, or a quarter for digits",
        None,
        low=1,
    ),
)
_POOL = Option("pool", int, "side of the squares of pixels that are averaged", 1, low=1)
_CONCEPTS = (
    Option("concepts", int, "number of true groups, in which labels have different meanings", 3, low=1),
    Option("beta", float, "share of the labels whose meaning differs between concepts", 0.4, low=0, high=1),
)


def _label_shift(default: str) -> tuple[Option, ...]:
    return (
        Option(
            "label_shift",
            str,
            "class shares of a client: Dir(alpha times the shares left), Dir(alpha, ..., alpha), or as in the data",
            default,
            diverse_shift.LABEL_SHIFTS,
        ),
        Option(
            "alpha",
            float,
            "concentration of the class shares: a small value gives each client few classes",
            1.0,
            above=0,
        ),
    )


def _corruptions(default: bool) -> Option:
    return Option("corruptions", bool, "whether each client sees its images under one of 20 corruptions", default)


SCENARIOS: dict[str, ScenarioEntry] = {
    entry.name: entry
    for entry in (
        ScenarioEntry(
            "rotated-digits",
            "8x8 digits, turned by 0, 90, 180 or 270 degrees; the server does not know which client sees which",
            rotated_digits.rotated_digits,
            rotated_digits.RECOMMENDED,
            (Option("clients", int, _CLIENTS + ", a multiple of 4", 60, low=4),),
        ),
        ScenarioEntry(
            "drift",
            "rotated digits at two times: clients have left, joined, or see another rotation in phase 1",
            drift.drift,
            drift.RECOMMENDED,
            (
                Option("clients", int, _CLIENTS + " in phase 0", 60, low=4),
                Option("phase", int, "time: 0 or 1", 0, low=0, high=1),
                Option("change", float, "share of the clients that change their group", 0.1, low=0, high=1),
                Option("leave", float, "share of the clients that leave", 0.1, low=0, high=1),
                Option("join", float, "share of new clients", 0.1, low=0, high=1),
                Option("samples", int, "number of samples of each client (n)", 60, low=1, high=1440),
            ),
        ),
        ScenarioEntry(
            "mixed-regression",
            "linear data whose coefficients differ by group",
            mixed_regression.mixed_regression,
            mixed_regression.RECOMMENDED,
            (
                Option("clients", int, _CLIENTS, 120, low=1),
                Option("samples", str, _SIZES, "50"),
                Option("dimension", int, "number of features (d)", 20, low=1),
                Option("groups", int, "number of true groups (k)", 3, low=1),
                Option(
                    "separation",
                    float,
                    "smallest distance between two true models; by default N(0, I/d) as drawn",
                    None,
                    above=0,
                ),
                Option("noise", str, "standard deviation of the noise; one number, or one for each group", "0.2"),
                Option("proportions", str, "shares of the groups, such as 0.2,0.3,0.5; by default equal", None),
                Option(
                    "covariance",
                    str,
                    "covariance of the features: the identity, or different in each group",
                    "identity",
                    ("identity", "different"),
                ),
                Option("features", str, "distribution of the features", "gaussian", ("gaussian", "rademacher")),
                Option("test_samples", int, "number of held-out samples of each group", 500, low=1),
            ),
        ),
        ScenarioEntry(
            "rotated-mnist",
            "MNIST, turned by 0, 90, 180 or 270 degrees; the image experiment of the IFCA paper",
            rotated_images.rotated_mnist,
            rotated_images.MNIST_RECOMMENDED,
            (Option("clients", int, _CLIENTS + ", a multiple of 4", 1200, low=4), _TRAIN_IMAGES),
        ),
        ScenarioEntry(
            "rotated-fashion-mnist",
            "Fashion-MNIST, turned by 0, 90, 180 or 270 degrees",
            rotated_images.rotated_fashion_mnist,
            rotated_images.MNIST_RECOMMENDED,
            (Option("clients", int, _CLIENTS + ", a multiple of 4", 1200, low=4), _TRAIN_IMAGES),
        ),
        ScenarioEntry(
            "rotated-cifar10",
            "CIFAR-10, turned by 0 or 180 degrees; the colour experiment of the IFCA paper",
            rotated_images.rotated_cifar10,
            rotated_images.CIFAR_RECOMMENDED,
            (Option("clients", int, _CLIENTS + ", a multiple of 2", 200, low=2), _TRAIN_IMAGES),
        ),
        ScenarioEntry(
            "diverse-shift",
            "images with different label shares, corruptions and meanings of labels; only the meanings make groups",
            diverse_shift.diverse_shift,
            diverse_shift.RECOMMENDED,
            (
                *_SHIFTED_IMAGES,
                _TRAIN_IMAGES,
                *_CONCEPTS,
                Option(
                    "concept_shift",
                    str,
                    "difference between concepts: the first beta C labels shifted by 0, 1, ..., or all reversed",
                    "label_swap",
                    diverse_shift.CONCEPT_SHIFTS,
                ),
                *_label_shift("dirichlet_prior"),
                _corruptions(True),
                _POOL,
                Option(
                    "pca",
                    int,
                    "number of principal axes of clean images to project on; by default pixels are used",
                    None,
                    low=1,
                ),
            ),
        ),
        ScenarioEntry(
            "diverse-shift-a",
            "diverse-shift on small Fashion-MNIST; clients hold few classes, which hides the groups",
            diverse_shift.diverse_shift_a,
            diverse_shift.RECOMMENDED,
            (),
        ),
        ScenarioEntry(
            "diverse-shift-b",
            "diverse-shift on small Fashion-MNIST; clients hold most classes",
            diverse_shift.diverse_shift_b,
            diverse_shift.RECOMMENDED,
            (),
        ),
        ScenarioEntry(
            "mixed-clients",
            "images whose labels mean different things inside one client; each sample has a true group",
            mixed_clients.mixed_clients,
            diverse_shift.RECOMMENDED,
            (
                *_SHIFTED_IMAGES,
                *_CONCEPTS,
                Option(
                    "mixing",
                    float,
                    "concepts in a client ~ Dir(mixing, ...): a small value gives nearly one",
                    0.4,
                    above=0,
                ),
                *_label_shift("none"),
                _corruptions(False),
            ),
        ),
        ScenarioEntry(
            "noisy-labels",
            "images with wrong training labels under shifts of labels and looks; one true group",
            noisy_labels.noisy_labels,
            diverse_shift.RECOMMENDED,
            (
                *_SHIFTED_IMAGES,
                Option(
                    "noise_kind",
                    str,
                    "wrong labels: the next class, or any other class",
                    "pair",
                    tuple(noisy_labels.FLIPS),
                ),
                Option("noise", float, "probability that a training label is wrong", 0.2, low=0, high=1),
                *_label_shift("dirichlet_prior"),
                _corruptions(True),
                _POOL,
            ),
        ),
        ScenarioEntry(
            "few-classes",
            "images; every client has only a few classes",
            few_classes.few_classes,
            {**diverse_shift.RECOMMENDED, "clusters": 5},
            (*_SHIFTED_IMAGES, Option("classes_each", int, "number of classes of each client", 2, low=1), _POOL),
        ),
        ScenarioEntry(
            "femnist",
            "handwritten characters of real writers; their groups are unknown",
            femnist.femnist,
            femnist.RECOMMENDED,
            (Option("writers", int, "number of writers to use, the first ones; by default all", None, low=1),),
        ),
        ScenarioEntry(
            "linear-representation",
            "linear data whose groups have a few directions in common (HCFL, appendix B)",
            linear_representation.linear_representation,
            linear_representation.RECOMMENDED,
            (
                Option("clients", int, _CLIENTS, 40, low=1),
                Option("samples", int, "mean number of samples of a client (n)", 100, low=1),
                Option("dimension", int, "number of features (d)", 30, low=1),
                Option("width", int, "number of directions that all groups have in common (c)", 4, low=1),
                Option("groups", int, "number of true groups (k)", 8, low=1),
                Option("noise", float, "standard deviation of the noise (sigma)", 0.0, low=0),
                Option("drift", float, "standard deviation of a client's head around that of its group", 0.0, low=0),
                Option("imbalance", float, "samples of the largest group over those of the smallest", 1.0, low=1),
            ),
        ),
        ScenarioEntry(
            "ifca-synthetic",
            "linear data in many dimensions, true models of zeros and ones; the synthetic experiment of the IFCA paper",
            ifca_synthetic.ifca_synthetic,
            ifca_synthetic.RECOMMENDED,
            (
                Option("clients", int, _CLIENTS + ", a multiple of groups", 100, low=1),
                Option("samples", int, "number of samples of each client (n)", 100, low=1),
                Option("dimension", int, "number of features (d)", 1000, low=1),
                Option("groups", int, "number of true groups (p)", 2, low=1),
                Option("norm", float, "factor of the zeros and ones of the true models (R)", 1.0, above=0),
                Option("noise", float, "standard deviation of the noise (sigma)", 0.1, low=0),
            ),
        ),
        ScenarioEntry(
            "odcl-linear",
            "linear data with five active features; the synthetic experiment of the ODCL paper",
            odcl_linear.odcl_linear,
            odcl_linear.RECOMMENDED,
            (
                Option("clients", int, _CLIENTS, 100, low=1),
                Option("samples", str, _SIZES, "400"),
                Option("dimension", int, "number of features (d)", 20, low=odcl_linear.ACTIVE),
                Option(
                    "intervals",
                    str,
                    "intervals of the entries of the true models, one for each group, such as 1:2,-2:-1",
                    odcl_linear.TEN,
                ),
                Option("noise", float, "standard deviation of the noise (sigma)", 1.0, low=0),
            ),
        ),
        ScenarioEntry(
            "odcl-clusterpath",
            "linear data of four groups that are closer to each other; appendix D.2 of the ODCL paper",
            odcl_clusterpath.odcl_clusterpath,
            odcl_linear.RECOMMENDED,
            (
                Option("clients", int, _CLIENTS, 100, low=1),
                Option("samples", str, _SIZES, "400"),
            ),
        ),
        ScenarioEntry(
            "odcl-logistic",
            "two classes in the plane, four groups; the logistic experiment of the ODCL paper",
            odcl_logistic.odcl_logistic,
            odcl_logistic.RECOMMENDED,
            (
                Option("clients", int, _CLIENTS, 100, low=1),
                Option("samples", int, "number of samples of each client (n)", 1000, low=1),
            ),
        ),
        ScenarioEntry(
            "opposite-labels",
            "two classes of images, which two groups label in opposite ways; the real data of the ODCL paper",
            opposite_labels.opposite_labels,
            opposite_labels.RECOMMENDED,
            (
                Option("dataset", str, "data set of the images", "digits", tuple(opposite_labels.CLASSES)),
                Option("clients", int, _CLIENTS + ", a multiple of 2", 100, low=2),
                Option(
                    "samples",
                    int,
                    "number of samples of each client (n), half of each class; by default 4, or 40 for cifar10",
                    None,
                    low=2,
                ),
                Option("noise", float, "share of wrong training labels", 0.0, low=0, high=0.5),
                Option(
                    "noise_kind",
                    str,
                    "whether each client has exactly this share of wrong labels, or labels are wrong independently",
                    "exact",
                    ("exact", "iid"),
                ),
            ),
        ),
        ScenarioEntry(
            "school",
            "exam scores of pupils in 139 London schools; their groups are unknown",
            school.school,
            table.RECOMMENDED,
            (_HOLDOUT,),
        ),
        ScenarioEntry(
            "grunfeld",
            "investment of eleven firms over twenty years, explained by value and capital; needs statsmodels",
            grunfeld.grunfeld,
            table.RECOMMENDED,
            (_HOLDOUT,),
        ),
        ScenarioEntry(
            "table",
            "your own table: a .csv, .tsv or .parquet file whose rows belong to clients",
            table.table,
            table.RECOMMENDED,
            (
                Option("table", str, "file with one row for each sample, .csv, .tsv or .parquet"),
                Option("client", str, "column that names the client of each row"),
                Option("target", str, "column to predict"),
                Option(
                    "features",
                    str,
                    "columns to predict from, separated by commas or by repeating the flag; by default all that can "
                    "be used",
                    listed=True,
                ),
                Option("drop", str, "columns to leave out, separated by commas or by repeating the flag", listed=True),
                Option("task", str, "task of the target; by default inferred from its values", None, get_args(Task)),
                Option(
                    "missing",
                    str,
                    "missing values of features: replace them by the mean and mark them by a feature, or refuse them",
                    "impute",
                    get_args(Missing),
                ),
                _HOLDOUT,
            ),
        ),
    )
}


Build = TypeVar("Build", bound=Callable[..., FederatedDataset])


def register_scenario(name: str, recommended: Mapping[str, object] | None = None) -> Callable[[Build], Build]:
    """Return a decorator that makes a function a scenario: `coterie.scenario(name)`, `coterie run NAME`.

    The function takes `seed` and its options as keywords and returns the clients, as `from_arrays` does. The types and
    defaults of its parameters and the `Args` of its docstring describe the options; its first line is the summary.

    Args:
        name: Name of the scenario. Only a function of the same name can take it again, as when a notebook cell is run
            twice.
        recommended: Options of runs that suit the scenario, used where the user does not give them.

    Returns:
        A decorator that returns the function itself.

    Raises:
        ConfigError: if the name is taken, or a parameter has no type or no default.

    Example:
        >>> import numpy as np
        >>> import coterie
        >>> from coterie.data import register_scenario
        >>> @register_scenario("coin-flips", recommended={"learner": "logistic", "clusters": 1})
        ... def coin_flips(*, seed: int = 0, clients: int = 4) -> coterie.FederatedDataset:
        ...     random = np.random.default_rng(seed)
        ...     return coterie.from_arrays([(random.normal(size=(9, 2)), random.integers(2, size=9))] * clients)
        >>> len(coterie.scenario("coin-flips", clients=6).clients)
        6
    """

    def known(build: Build) -> Build:
        taken = SCENARIOS.get(name)
        if taken is not None and taken.build.__qualname__ != build.__qualname__:
            raise ConfigError(f"there is already a scenario called {name!r}: choose another name")
        options = options_of_function(build, exclude=frozenset({"seed"}))

        @wraps(build)
        def named(*, seed: int, **given: object) -> FederatedDataset:
            used = {option.name: option.default for option in options} | given
            stored = {each: value for each, value in used.items() if value is not None}
            return replace(build(seed=seed, **used), name=name, options=stored)

        summary = (build.__doc__ or name).strip().partition("\n")[0].rstrip(".")
        SCENARIOS[name] = ScenarioEntry(name, summary, named, recommended or {}, options)
        return build

    return known


def find_scenario(name: str) -> ScenarioEntry:
    """Return the scenario of this name; an unknown name causes installed plugins to be loaded first.

    Args:
        name: Name of the scenario, as `coterie scenarios` lists it.

    Returns:
        The scenario with its options.

    Raises:
        ConfigError: if there is no such scenario; the message suggests similar names.

    Example:
        >>> from coterie.data import find_scenario
        >>> find_scenario("rotated-digits").name
        'rotated-digits'
    """
    if isinstance(name, str) and name not in SCENARIOS:
        load_installed()
    if not isinstance(name, str) or name not in SCENARIOS:
        raise unknown_name("scenario", name, SCENARIOS)
    return SCENARIOS[name]


def scenario(name: str, *, seed: int = 0, **options: object) -> FederatedDataset:
    """Return the clients of a named scenario; the same options and seed give the same data.

    Args:
        name: Name of the scenario, as `coterie scenarios` lists it.
        seed: Seed of everything that is drawn.
        **options: Options of the scenario, as `coterie describe NAME` lists them.

    Returns:
        The clients, which `coterie.fit` takes.

    Raises:
        ConfigError: if the scenario or an option is unknown, or a value is not allowed.
        InputError: if the data set of the scenario is not on this machine.

    Example:
        >>> import coterie
        >>> len(coterie.scenario("rotated-digits", clients=8, seed=0).clients)
        8
    """
    entry = find_scenario(name)
    checked = check_all(options, entry.options, f"scenario {name}")
    _check_sizes(checked)
    try:
        built = entry.build(seed=check_seed(seed), **checked)
    except CoterieError:
        raise
    except (MemoryError, OverflowError, ValueError) as error:  # numbers that are allowed one by one
        raise ConfigError(
            f"scenario {name} cannot be built with these options ({shown(error)}): use fewer clients or samples"
        ) from error
    source = ScenarioSource(name, seed, json.dumps(plain_options(checked), sort_keys=True))
    return replace(built, recommended={**entry.recommended, **built.recommended}, source=source)


@register("scenario")
@dataclass(frozen=True)
class ScenarioSource(DataSource):
    """A scenario with its seed and options."""

    scenario: str
    seed: int
    options: str
    """Options as a JSON object."""

    def load(self) -> FederatedDataset:
        return scenario(self.scenario, seed=self.seed, **json.loads(self.options))


LARGEST_SIZE = 10_000_000
"""The largest number of clients, samples or features of a scenario."""


def _check_sizes(options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if isinstance(value, int) and value > LARGEST_SIZE:
            raise ConfigError(f"{name} of a scenario must be at most {LARGEST_SIZE:,}, got {value}: choose less")
