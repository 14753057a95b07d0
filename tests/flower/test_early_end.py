"""A run that cannot succeed ends at once: wrong settings, and apps that fail at every node."""

import pytest
from flwr.app import Context

import coterie
from coterie.core.dataset import FederatedDataset
from coterie.errors import ConfigError, CoterieError, TrainingError
from coterie.flower.client_registry import ClientRegistry
from coterie.flower.exchange import Exchange
from coterie.flower.in_process import InProcessGrid
from coterie.flower.node import make_client_app
from coterie.flower.preflight import check_run_options
from coterie.flower.server import Settings, run_federation
from coterie.methods import Method
from coterie.methods.groups import TrueGroups
from coterie.testing.checks import small_federation
from coterie.training.planning import prepare
from tests.flower.make import Clock

WAIT = 100.0


def missing_file(context: Context) -> FederatedDataset:
    raise FileNotFoundError(2, "No such file or directory", "/data/ward.csv")


def wrong_type(context: Context) -> FederatedDataset:
    return {"ward-7": ([1.0], [0])}  # type: ignore[return-value]


def several_lines(context: Context) -> FederatedDataset:
    raise RuntimeError("first line\nand the reason")


def bad_data(context: Context) -> FederatedDataset:
    return coterie.from_arrays({"a": ([[float("nan")]], [0])})


def good(context: Context) -> FederatedDataset:
    return small_federation("linear").take([int(context.node_config["partition-id"])])


def called(*loads, nodes=None):
    """Collect the clients of nodes with these apps; return the seconds that it took, the error and the registry."""
    clock = Clock()
    apps = {i: make_client_app(load) for i, load in enumerate(loads)}
    grid = InProcessGrid(apps, {i: {"partition-id": i} for i in apps}, clock=clock)
    exchange = Exchange(grid, deadline=10, poll=0.25, clock=clock, sleep=clock.sleep)
    registry = ClientRegistry()
    try:
        registry.collect(exchange, nodes or len(loads), WAIT)
        return clock.now, None, registry
    except CoterieError as error:
        return clock.now, error, registry


LOADS = {missing_file: "ward.csv", wrong_type: "load must return", several_lines: "the reason", bad_data: "a"}


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("count", [1, 5])
def test_an_app_that_fails_at_every_node_ends_the_run_at_once_with_the_reason(load, count, caplog):
    seconds, error, _ = called(*[load] * count)
    assert isinstance(error, TrainingError)
    assert LOADS[load] in str(error)
    assert "\n" not in str(error)
    assert seconds < 5, "the registry waited although every app fails"
    assert [LOADS[load] in record.getMessage() for record in caplog.records] == [True] * count, "not shown once each"


def test_the_registry_waits_for_more_nodes_while_one_works():
    seconds, error, registry = called(missing_file, good, nodes=2)
    assert seconds >= WAIT, "another working node might have connected"
    assert "only 1 of 2 nodes" in str(error)
    assert "ward.csv" in str(error)
    assert len(registry.bound) == 1
    assert called(missing_file, good, nodes=1)[1] is None


def test_the_registry_waits_for_nodes_that_are_not_connected_yet():
    seconds, error, _ = called(missing_file, nodes=2)
    assert seconds >= WAIT
    assert "ward.csv" in str(error)


@pytest.mark.parametrize(
    "method", [name for name, kind in Method.members.items() if not isinstance(kind.groups, TrueGroups)]
)
def test_the_check_of_settings_accepts_what_a_run_would_accept(method):
    """The defaults of every method pass, as they do for known data."""
    check_run_options(method, {})


@pytest.mark.parametrize("learner", ["linear", "logistic", "mlp:hidden=8", "cnn"])
@pytest.mark.parametrize("options", [{}, {"clusters": 7}, {"rounds": 3, "lr": 0.1}, {"init": "odcl"}, {"lr": -1}])
def test_the_check_of_settings_refuses_only_what_suits_no_data(learner, options):
    """Options that suit some data pass the check."""
    options = {"learner": learner, **options}
    given = {name: value for name, value in options.items() if name != "learner"}
    passes = False
    for kind in ("linear", "logistic", "cnn"):
        data = coterie.scenario("mixed-regression" if kind == "linear" else "rotated-digits", clients=8)
        try:
            prepare(data, "ifca", learner, given)
        except CoterieError:
            continue
        passes = True
    if passes:
        check_run_options("ifca", options)
    else:
        with pytest.raises(ConfigError):
            check_run_options("ifca", options)


def test_a_server_app_refuses_wrong_settings_without_asking_a_node():
    class Untouched(InProcessGrid):
        def get_node_ids(self):
            raise AssertionError("a node was asked")

    with pytest.raises(ConfigError, match="did you mean 'clusters'"):
        run_federation(Untouched({}), Settings.read({"clustres": 3}))
