"""Where the models of a run may begin: the names that `start` takes, with the settings of each.

start=random                 as the learner draws
start=gaussian:sd=1          a name with settings, separated by commas
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.errors import ConfigError, unknown_name
from coterie.options import Option, check_all
from coterie.tiers.distance import PrincipalAngles

MOMENT_DESCENT, ODCL, RANDOM, GAUSSIAN = "moment-descent", "odcl", "random", "gaussian"
PRINCIPAL_ANGLES, DECOMPOSED_COSINE = "principal-angles", "decomposed-cosine"

MOMENT_OPTIONS = (
    Option("anchors", int, "anchor clients (n_H); unset: 3 k ln k, rounded up", None, low=1),
    Option("anchor_samples", int, "least number of samples of an anchor; unset: the largest clients are", None, low=2),
    Option("iterations", int, "steps of the anchors (T); unset: until they stop getting closer", None, low=1),
    Option("subspace_rounds", int, "exchanges in which the clients find a subspace together (T_1)", 10, low=1),
    Option(
        "moments",
        str,
        "products over all pairs of a client's samples, or over two points of clients that are new in every "
        "iteration (the paper's letter; needs hundreds of clients a feature)",
        "all-pairs",
        ("all-pairs", "two-points"),
    ),
    Option("private_anchors", float, "standard deviation of the noise on what clients see of the anchors", 0.0, low=0),
    Option("start_norm", float, "length of the anchors' common start, in a random direction", 0.0, low=0),
    Option("delta", float, "least distance of two true models (Delta); unset: read off the anchors", None, above=0),
    Option("epsilon", float, "with delta: an anchor stops at this share of it", 0.1, above=0, high=1),
    Option("alpha", float, "least eigenvalue of the features' covariance; unset: the mean one", None, above=0),
    Option("beta", float, "largest eigenvalue of the features' covariance; unset: the mean one", None, above=0),
)

SOLVER_OPTIONS = (
    Option(
        "solver",
        str,
        "how a client solves its own problem: exact (linear, and logistic with l2), sgd (projected, inexact), or steps "
        "(local_steps or local_epochs from one common model); unset: exact where it can be",
        None,
        ("exact", "sgd", "steps"),
    ),
    Option("solve_steps", int, "solver=steps: gradient steps; unset: local_steps or local_epochs", None, low=1),
    Option("sgd_steps", int, "solver=sgd: steps, one sample each (T)", 10_000, low=1),
    Option("sgd_radius", float, "solver=sgd: radius of the ball that is projected on (R); to be given", None, above=0),
    Option(
        "sgd_mu",
        float,
        "solver=sgd: strong convexity (mu), the step is 1/(mu t); unset: a client's own least eigenvalue, or l2",
        None,
        above=0,
    ),
    Option(
        "sgd_output", str, "solver=sgd: the last iterate, or their mean with weights t", "last", ("last", "average")
    ),
)

ODCL_OPTIONS = (
    Option(
        "clustering",
        str,
        "how the server clusters the clients' solutions",
        "kmeans++",
        ("kmeans++", "spectral", "convex", "gradient"),
    ),
    Option("choose_k", str, "clusters=auto: which rule finds their number", "silhouette", ("silhouette", "elbow")),
    Option(
        "gradient_step", float, "clustering=gradient: the step alpha times the number of clients, below 2", 1.0, above=0
    ),
    Option("spectral_parts", int, "clustering=spectral: all three parts, or the first alone", 3, low=1, high=3),
    Option(
        "lam",
        float,
        "clustering=convex: a fixed lambda; unset: by the path; oracle13: from the true groups",
        None,
        above=0,
        words=("oracle13",),
    ),
    Option("convex_grid", str, "clustering=convex: the lambdas of the path", "log", ("log", "equidistant")),
    Option("convex_rule", str, "clustering=convex: which lambda of the path is taken", "b", ("b", "a-then-b")),
    Option("convex_weights", str, "clustering=convex: who is pulled to whom", "uniform", ("uniform", "knn")),
    *SOLVER_OPTIONS,
)

ANGLE_OPTIONS = (
    Option("directions", int, "leading singular vectors of a client's samples that it tells (p)", 3, low=1),
    Option("per_class", bool, "singular vectors of the samples of each class, instead of all together", False),
    Option(
        "angle",
        str,
        "how far two clients are apart, in degrees: the least principal angle, or the sum of all",
        "least",
        ("least", "sum"),
    ),
    Option("linkage", str, "distance of two clusters: the mean or the largest", "average", ("average", "complete")),
    Option(
        "beta",
        float,
        "clusters=auto: clusters are united while the nearest are at most so many degrees apart; unset: 7 for the "
        "least angle, to be given for sums. It depends on the data: see last_unions of a first run",
        None,
        low=0,
    ),
)

UPDATE_OPTIONS = (
    Option("pretrain_steps", int, "local steps of every client before it is grouped", 50, low=1),
    Option(
        "measure",
        str,
        "how updates are compared: edc, k-means on the cosines with K leading directions; madc, complete linkage on "
        "the mean difference of cosines with all others",
        "edc",
        ("edc", "madc"),
    ),
    Option("founders", int, "clients that make the groups (n), the others join the nearest; unset: 20 K", None, low=1),
)


@dataclass(frozen=True)
class StartEntry:
    """A way to begin."""

    name: str
    summary: str
    options: tuple[Option, ...] = ()
    reveals: Mapping[str, str] = field(default_factory=dict)
    """Rows of the replies before the first round, and what each tells the server about a single client."""


STARTS: dict[str, StartEntry] = {
    entry.name: entry
    for entry in (
        StartEntry(RANDOM, "as the learner draws"),
        StartEntry(
            GAUSSIAN,
            "every parameter drawn from N(0, sd^2)",
            (Option("sd", float, "standard deviation of every parameter; 0: all are zero", 1.0, low=0),),
        ),
        StartEntry(
            MOMENT_DESCENT,
            "coarse models by a few anchor clients (linear regression)",
            MOMENT_OPTIONS,
            {
                "anchor": "of the few anchors: its own model as it is estimated, step by step",
                "sigma": "of the few anchors: how far that estimate has to go",
            },
        ),
        StartEntry(
            ODCL,
            "the clients' own solutions, clustered and averaged (one exchange)",
            ODCL_OPTIONS,
            {
                "model": "its own model, as it would have it alone",
                "losses": "how well each cluster fits it, if it has no solution of its own",
            },
        ),
        StartEntry(
            PRINCIPAL_ANGLES,
            "groups by the angles between the clients' leading directions, all from one model (pacfl)",
            ANGLE_OPTIONS,
            dict(PrincipalAngles.reveals),
        ),
        StartEntry(
            DECOMPOSED_COSINE,
            "groups by what clients make of one model, and the means of what they made of it (fedgroup)",
            UPDATE_OPTIONS,
            {
                "model": "what it made of the common model",
                "losses": "how well each cluster fits it, if its own pretraining diverged",
            },
        ),
        StartEntry(
            "cluster-oracle",
            "for experiments: models trained on the pooled data of each true group, plus noise",
            (Option("noise", float, "standard deviation of the noise on every parameter", 0.0, low=0), *SOLVER_OPTIONS),
        ),
        StartEntry(
            "near-truth",
            "for experiments: at a distance from the true models, in a random direction",
            (
                Option("low", float, "least distance, as a share of that between the nearest true models", 0.2, low=0),
                Option("high", float, "largest distance", 1 / 3, low=0),
            ),
        ),
    )
}


def read_start(text: str) -> tuple[str, dict[str, Any]] | None:
    """Name and settings of a start, checked; None if the text is no name of one (then it is a run folder)."""
    name, _, rest = text.partition(":")
    if name not in STARTS:
        return None
    known = {option.name: option for option in STARTS[name].options}
    given: dict[str, object] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if key not in known:
            raise (
                unknown_name(f"setting of start {name}", key, known)
                if known
                else ConfigError(f"start {name} has no settings, got {part!r}")
            )
        if not equals:
            raise ConfigError(f"start {name}: settings look like {key}=VALUE, got {part!r}")
        given[key] = known[key].read(value)
    return name, check_all(given, known.values(), f"start {name}")
