"""Methods as Flower strategies, for server apps that start a strategy themselves.

::

    strategy = ClusteredStrategy(IFCA(clusters=4), nodes=3)      # or ClusteredStrategy("ifca", clusters=4, nodes=3)
    result = strategy.start(grid, num_rounds=20, timeout=120, out="/srv/runs/first")
    result.arrays          # "0/weight", "0/bias", "1/weight", ...
    result.clustered       # Coterie's result: assignments, their certainty, and the cost of training
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

import coterie.training.result
from coterie.errors import ConfigError
from coterie.flower.client_registry import LOG
from coterie.flower.server import Settings, run_federation
from coterie.learners import LearnerChoice
from coterie.methods import Method, find_method
from coterie.training.fitting import Callbacks
from coterie.training.planning import MethodChoice
from coterie.training.records import RoundRecord

TRAINED = ("loss", "clusters", "moved", "answered", "bytes_up", "bytes_down", "seconds")
"""Figures of a round that Flower's result lists as training metrics."""
EVALUATED = ("accuracy", "rmse", "worst_tenth", "validation_loss", "validation_accuracy", "validation_rmse")
"""Figures of a round that Flower's result lists as evaluation metrics."""


@dataclass
class ClusteredResult(Result):
    """Flower's result of a strategy, whose arrays are the models of all clusters.

    Arrays are named by cluster and parameter, such as "0/weight". See `ClusteredStrategy` for an example.
    """

    clustered: coterie.training.result.Result | None = None
    """Coterie's result of the run."""


class ClusteredStrategy(Strategy):
    """Flower strategy that runs a clustered method.

    The strategy carries out its own rounds, so it supports `start`, but not the methods for single messages.

    Args:
        method: A typed method such as `IFCA(clusters=4)` from `coterie.methods`, or its name.
        learner: Name of a model family with settings, or a function that returns a torch.nn.Module.
        callbacks: Callbacks, or functions that are called with the record of each round.
        **options: Options of the method, and settings of the run config (`coterie.flower.server.OPTIONS`).

    Example:
        >>> import coterie
        >>> from coterie.flower.in_process import InProcessGrid
        >>> from coterie.flower.node import make_client_app
        >>> from coterie.flower.strategy import ClusteredStrategy
        >>> data = coterie.scenario("mixed-regression", clients=6)
        >>> grid = InProcessGrid({1: make_client_app(lambda context: data)})
        >>> result = ClusteredStrategy("ifca", clusters=2).start(grid, num_rounds=2)
        >>> len(result.clustered.models)
        2
    """

    def __init__(
        self,
        method: MethodChoice = "ifca",
        *,
        learner: LearnerChoice | None = None,
        callbacks: Callbacks = (),
        **options: Any,
    ) -> None:
        self.method, self.learner, self.callbacks, self.options = method, learner, callbacks, options

    def summary(self) -> None:
        """Log the method and its options."""
        text = ", ".join(f"{name}={value}" for name, value in self.options.items())
        LOG.info("\t└──> %s %s", self._name, text)

    @property
    def _name(self) -> str:
        return self.method.name if isinstance(self.method, Method) else self.method

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        out: str | Path | None = None,
    ) -> ClusteredResult:
        """Run the method to its last round.

        Args:
            grid: Grid that Flower passes to a server app.
            initial_arrays: Initial models, one for each cluster: "0/weight", "1/weight", ...; by default the method
                initialises them.
            num_rounds: Number of rounds, for methods that have rounds.
            timeout: Longest duration of an exchange, in seconds.
            train_config: Not supported.
            evaluate_config: Not supported.
            evaluate_fn: Not supported.
            out: Folder of the run, as an absolute path; an existing unfinished run is resumed.

        Returns:
            Flower's result; its attribute `clustered` is Coterie's result.

        Raises:
            ConfigError: if an option is unknown or not allowed.
        """
        if train_config or evaluate_config or evaluate_fn is not None:
            raise ConfigError(
                "train_config, evaluate_config and evaluate_fn are not supported, because nodes receive all settings "
                "from the method and evaluate models themselves: leave them out and use result.arrays after the run"
            )
        given = {"method": self._name, "deadline": float(timeout), **self.options}
        if out is not None:
            given["out"] = str(out)
        settings = Settings.read(given)  # which loads plugins
        options = dict(settings.options)
        if "rounds" not in find_method(self._name).refuses:
            options = {"rounds": num_rounds, **options}
        if initial_arrays is not None:
            options["init"] = _models_of(initial_arrays)
        settings = replace(settings, method=self.method, options=options)
        return _flower_result(run_federation(grid, settings, self.learner, self.callbacks))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Not supported: the strategy carries out its own rounds."""
        _raise_not_supported()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Not supported: the strategy carries out its own rounds."""
        _raise_not_supported()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Not supported: the strategy carries out its own rounds."""
        _raise_not_supported()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Not supported: the strategy carries out its own rounds."""
        _raise_not_supported()


def _raise_not_supported() -> NoReturn:
    raise ConfigError(
        "a round of a clustered method is more than one model down and one up, so that other strategies cannot wrap "
        "it: call start"
    )


def _models_of(arrays: ArrayRecord) -> list[dict[str, np.ndarray]]:
    """Return the models of all clusters, in order.

    Raises:
        ConfigError: if a name has no cluster, or a cluster is missing.
    """
    models: dict[int, dict[str, np.ndarray]] = {}
    for key, array in arrays.items():
        number, _, name = key.partition("/")
        if not number.isdecimal() or not name:
            raise ConfigError(f"names of initial_arrays must start with a cluster, such as '0/weight', got {key!r}")
        models.setdefault(int(number), {})[name] = array.numpy()
    if sorted(models) != list(range(len(models))):
        raise ConfigError(f"initial_arrays must have clusters 0, 1, ... without a gap, got {sorted(models)}")
    return [models[k] for k in sorted(models)]


def _flower_result(done: coterie.training.result.Result) -> ClusteredResult:
    arrays = {
        f"{k}/{name}": Array(np.ascontiguousarray(value))
        for k, model in enumerate(done.models)
        for name, value in model.items()
    }
    return ClusteredResult(
        ArrayRecord(arrays),
        {record["round"] + 1: _metrics(record, TRAINED) for record in done.records},
        {r["round"] + 1: found for r in done.records if (found := _metrics(r, EVALUATED))},
        clustered=done,
    )


def _metrics(record: RoundRecord, names: Iterable[str]) -> MetricRecord:
    return MetricRecord({name: record[name] for name in names if record.get(name) is not None})
