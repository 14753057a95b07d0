"""Settings of a run that do not belong to a method: learner, rounds, engine, evaluation, privacy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.options import AUTO, SEED, Auto, Option, check_fields, option, options_of

MOST_ROUNDS = 100
"""Largest number of rounds with rounds=auto."""
USUAL_ROUNDS = 50
"""Number of rounds with rounds=auto if it must be known in advance, and the smallest one if the number of clusters
changes."""


def most_of(rounds: int | Auto) -> int:
    """Return the largest number of rounds that the setting `rounds` allows."""
    return MOST_ROUNDS if rounds == AUTO else rounds


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of one run; each field is also an option of the command line."""

    learner: str | None = option(
        None, "model family with settings, such as linear, logistic:l2=0.01, mlp:hidden=200, cnn"
    )
    rounds: int | Auto = option(
        AUTO,
        f"number of communication rounds (T); auto: until the training loss settles, at most {MOST_ROUNDS} "
        f"(docs/defaults.md), or {USUAL_ROUNDS} if the number must be known in advance",
        low=1,
    )
    participation: float = option(1.0, "share of clients that are asked in each round", above=0, high=1)
    engine: Literal["simulated", "sequential", "dask"] = option(
        "simulated",
        "simulated: all clients at once; sequential: one client at a time, through serialised messages; dask: shards "
        "of clients on the processes or machines in workers (docs/cluster.md)",
    )
    shards: int | None = option(
        None,
        "number of parts into which the clients are divided; sums are rounded in the same way for the same number; by "
        "default chosen by the engine",
        low=1,
    )
    workers: str | None = option(
        None,
        "processes of Dask that share the work: local:N starts N here, tcp://HOST:PORT or tls://HOST:PORT is a running "
        "scheduler; with engine=dask they serve the clients, with clusters=auto they carry out trial runs",
    )
    device: str = option("cpu", "torch device for computations: cpu, cuda, cuda:1")
    dtype: Literal["float32", "float64"] | None = option(
        None, "floating-point type; by default float64 for linear, logistic and representation, float32 for networks"
    )
    seed: int = option(0, SEED.help, low=SEED.low, high=SEED.high)
    evaluate_every: int | Auto = option(
        AUTO,
        "number of rounds between evaluations on held-out data, which also follow the last round; auto: 1, or more if "
        "evaluation would take too much of the time (docs/measures.md)",
        low=1,
    )
    checkpoint_every: int = option(10, "number of rounds between checkpoints", low=1)
    validation: float | None = option(
        None,
        "share of each client's training samples that is held out for validation and never trained on; its loss and "
        "score are recorded every evaluate_every rounds",
        above=0,
        high=0.9,
    )
    patience: int | None = option(
        None,
        "stop after this many consecutive rounds in which the training loss has not improved by more than 0.01 %; "
        "with validation: after this many evaluations of the validation loss, and the best models are kept",
        low=1,
    )
    finetune: int | None = option(
        None,
        "after the last round every client takes this many further steps from its cluster's model, with the last "
        "learning rate, and is also scored with the result, which never leaves the client; by default none",
        low=1,
    )
    poison: str | None = option(
        None,
        "attacks in simulations: in every round some clients attack, and scores are those of the other clients; "
        "sign-flip, scale or noise with :share=0.2,strength=10, or label-flip:share=0.2",
    )
    privacy: Literal["local", "central"] | None = option(
        None,
        "differential privacy for a client's whole data (docs/privacy.md). local: every client adds noise to what it "
        "sends, so the server need not be trusted; central: the server adds noise to the models",
    )
    privacy_epsilon: float | None = option(
        None,
        "with privacy: the budget epsilon; the noise is calibrated to it, and the run stops before it is exceeded",
        above=0,
    )
    privacy_delta: float | None = option(
        None, "with privacy: delta of the guarantee; by default 1e-5", above=0, high=0.1
    )
    privacy_clip: float | None = option(
        None,
        "with privacy: norm to which a client's update is clipped, over all parameters; by default 1",
        above=0,
    )
    privacy_noise: float | None = option(
        None,
        "with privacy: standard deviation of the noise divided by privacy_clip, on a client's update (local) or on a "
        "sum of updates (central); by default calibrated to privacy_epsilon",
        above=0,
    )
    privacy_choice: float | None = option(
        None,
        "with privacy=local, if clients choose a cluster: epsilon of each report of the chosen cluster; by default all "
        "reports together use half of privacy_epsilon",
        above=0,
    )

    def __post_init__(self) -> None:
        check_fields(self)


RUN_OPTIONS: tuple[Option, ...] = options_of(RunSettings)
PRIVACY_OPTIONS = frozenset(each.name for each in RUN_OPTIONS if each.name.startswith("privacy"))
"""Names of the options of private runs."""
WITHOUT_ROUNDS = frozenset(each.name for each in RUN_OPTIONS) - {
    *("learner", "engine", "shards", "workers", "device", "dtype", "seed", "validation", "finetune")
}
"""Names of the options of runs that have no meaning for a method without rounds."""
