"""A server that has no data: the app, the strategy, the run folder and going on."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

import coterie
from coterie.core.dataset import FederatedDataset
from coterie.errors import ConfigError, CoterieError, RunError, TrainingError
from coterie.flower.clients import clients_of
from coterie.flower.in_process import Deliver, InProcessGrid, at_once
from coterie.flower.node import make_client_app
from coterie.flower.server import Settings, make_server_app
from coterie.flower.strategy import ClusteredStrategy
from coterie.flower.wire import task_of
from coterie.testing.checks import LEARNERS, small_federation, small_module
from coterie.training.planning import prepare
from tests.flower.make import NODES, clients_behind_a_grid, part_of

OPTIONS: Mapping[str, Any] = {"clusters": 2, "rounds": 3, "local_steps": 2, "lr": 0.05, "dtype": "float64", "seed": 3}


def grid_of(
    data: FederatedDataset,
    folder: Path | None = None,
    deliver: Deliver = at_once,
    nodes: Mapping[int, Sequence[int]] = NODES,
    learner: Any = None,
) -> InProcessGrid:
    def app(places: Sequence[int]) -> Any:
        own = part_of(data, places)
        return make_client_app(lambda context: own, learner=learner, state_folder=folder)

    return InProcessGrid({node: app(places) for node, places in nodes.items()}, deliver=deliver)


def config_of(out: Path, **more: Any) -> dict[str, Any]:
    """As it stands in an app's pyproject.toml: hyphens, and empty texts for what is left to the method."""
    said = {name.replace("_", "-"): value for name, value in OPTIONS.items()}
    return {**said, "nodes": 3, "wait": 5.0, "out": str(out), "init": "", **more}


def call(app: Any, grid: InProcessGrid, config: Mapping[str, Any]) -> None:
    """As Flower calls a server app."""
    app(grid, Context(1, 0, {}, RecordDict(), dict(config)))


def same_models(one: coterie.Result, other: coterie.Result) -> None:
    for a, b in zip(one.models, other.models, strict=True):
        for name in a:
            np.testing.assert_allclose(b[name], a[name], rtol=1e-9, atol=1e-12)
    assert one.assignments == other.assignments


def test_an_app_leaves_the_folder_that_a_simulation_leaves(tmp_path):
    data = small_federation("linear")
    call(make_server_app(), grid_of(data), config_of(tmp_path / "run", method="ifca"))
    simulated = coterie.fit(data, "ifca", out=tmp_path / "simulated", **OPTIONS)
    ended = coterie.load(tmp_path / "run")
    same_models(simulated, ended)
    for ours, theirs in zip(ended.records, simulated.records, strict=True):
        assert ours["rmse"] == pytest.approx(theirs["rmse"], rel=1e-9)
        assert ours["bytes_up"] == theirs["bytes_up"]
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {path.name for path in (tmp_path / "simulated").iterdir()} | {"federation.json", "report.html"}
    assert ended.config["scenario"] == "flower"
    assert not {"engine", "device"} & ended.config.keys()
    assert "site-3" in (tmp_path / "run" / "report.html").read_text()


def test_an_app_with_method_auto_diagnoses_as_a_simulation_does(tmp_path):
    data = small_federation("linear")
    config = config_of(tmp_path / "run", method="auto") | {"clusters": ""}
    call(make_server_app(), grid_of(data), config)
    options = {name: value for name, value in OPTIONS.items() if name != "clusters"}
    simulated, ended = coterie.fit(data, "auto", **options), coterie.load(tmp_path / "run")
    assert ended.config["method"] == simulated.config["method"]
    assert ended.diagnosis is not None
    assert simulated.diagnosis is not None
    assert ended.diagnosis.recommendation == simulated.diagnosis.recommendation
    assert ended.diagnosis.structure.kind == simulated.diagnosis.structure.kind
    same_models(simulated, ended)
    call(make_server_app(), grid_of(data), config)  # a finished run is not diagnosed again
    with pytest.raises(ConfigError, match="did you mean 'clusters'"):
        call(make_server_app(), grid_of(data), config_of(tmp_path / "other", method="auto", clustres=3))


def test_an_app_that_is_started_again_goes_on(tmp_path):
    data, out, states = small_federation("linear"), tmp_path / "run", tmp_path / "states"
    told = 0

    def dies(message: Message, answer: Message) -> list[tuple[float, Message]]:
        nonlocal told
        told += task_of(message.content) == "local-round"
        if told > 6:  # in the third round
            raise KeyboardInterrupt
        return [(0.0, answer)]

    config = config_of(out, method="fedem", **{"evaluate-every": 9})
    with pytest.raises(KeyboardInterrupt):
        call(make_server_app(), grid_of(data, states, dies), config)
    before = json.loads((out / "federation.json").read_bytes())
    call(make_server_app(), grid_of(data, states), config)
    same_models(coterie.fit(data, "fedem", **OPTIONS), coterie.load(out))
    assert json.loads((out / "federation.json").read_bytes()) == before  # the run keeps its name, clients their nodes
    report = out / "report.html"
    report.unlink()
    call(make_server_app(), InProcessGrid({}), config)  # finished: nobody is asked and nothing is written
    assert not report.exists()


def test_two_servers_do_not_share_a_folder(tmp_path):
    data, out = small_federation("linear"), tmp_path / "run"

    def second(record: Mapping[str, Any]) -> None:
        call(make_server_app(), grid_of(data), config_of(out))

    with pytest.raises(RunError, match="is being written to by another process"):
        coterie.fit(clients_of(grid_of(data), nodes=3, wait=1), out=out, callbacks=[second], **OPTIONS)
    call(make_server_app(), grid_of(data), config_of(out))
    same_models(coterie.fit(data, "ifca", **OPTIONS), coterie.load(out))


def test_a_client_that_lives_elsewhere_after_a_break_is_refused(tmp_path):
    data, out = small_federation("linear"), tmp_path / "run"
    clients = clients_of(grid_of(data), nodes=3, wait=1)
    with pytest.raises(RuntimeError, match="killed"):
        coterie.fit(clients, "ifca", out=out, callbacks=[killed], **OPTIONS)
    moved = {11: NODES[11], 5: NODES[7], 7: NODES[5]}
    again = clients_of(grid_of(data, nodes=moved), wait=0.5, again=out)
    ended = coterie.resume(out, again)
    gone_on = ended.records[0]  # the checkpoint before the first round is the last one
    assert gone_on["answered"] == 3
    assert set(gone_on["missing"]) == {data.clients[i] for i in (*NODES[5], *NODES[7])}
    reasons = " ".join(note["reason"] for note in gone_on["notes"])
    assert "node 5 brings client 'site-4', which lives at node 7: a client keeps its node: refused" in reasons


def killed(record: Mapping[str, Any]) -> None:
    if record["round"] == 1:
        raise RuntimeError("killed")


def test_other_clients_than_those_of_the_run_are_not_gone_on_with(tmp_path):
    data, out = small_federation("linear"), tmp_path / "run"
    with pytest.raises(RuntimeError, match="killed"):
        coterie.fit(clients_of(grid_of(data), nodes=3, wait=1), out=out, callbacks=[killed], **OPTIONS)
    fewer = clients_of(grid_of(data, nodes={11: NODES[11]}))
    with pytest.raises(RunError, match="the data differs from that of the run"):
        coterie.resume(out, fewer)
    with pytest.raises(RunError, match="for remote clients start their app again"):
        coterie.resume(out)
    with pytest.raises(RunError, match="no run with clients elsewhere"):
        clients_of(grid_of(data), again=tmp_path)


@pytest.mark.filterwarnings("ignore:clusters=auto")  # a few rounds of a few clients cannot tell
def test_the_number_of_clusters_is_chosen_by_trial_runs_at_the_clients():
    data = small_federation("linear", sizes=(12,) * 9)
    options = {**OPTIONS, "clusters": "auto", "max_clusters": 2, "choose_seeds": 2, "choose_rounds": 2}
    simulated = coterie.fit(data, "ifca", **options)
    elsewhere = coterie.fit(clients_of(grid_of(data), nodes=3, wait=1), "ifca", **options)
    for one, other in zip(simulated.metrics["chosen"]["table"], elsewhere.metrics["chosen"]["table"], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-9)
    same_models(simulated, elsewhere)
    with pytest.raises(ConfigError, match="hold out once: leave validation out"):
        coterie.fit(clients_of(grid_of(data), nodes=3, wait=1), "ifca", **options, validation=0.2)


def test_silence_when_scores_are_asked_for_is_a_note_and_no_end():
    data, deaf = small_federation("linear"), []

    def silent_once(message: Message, answer: Message) -> list[tuple[float, Message]]:
        if task_of(message.content) == "evaluate" and len(deaf) < 3:
            deaf.append(message)
            return []
        return [(0.0, answer)]

    plan = prepare(data, "ifca", None, OPTIONS)
    ended = coterie.fit(clients_behind_a_grid(plan, deliver=silent_once), "ifca", **OPTIONS)
    first, second = ended.records[0], ended.records[2]
    assert "rmse" not in first
    assert "rmse" in second
    assert any("when asked how well the models fit" in note["reason"] for note in first["notes"])


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"out": "runs/a"}, "name the folder from the root"),
        ({"nodes": 0}, "nodes must be a whole number at least 1, got 0"),
        ({"deadline": "soon"}, "deadline must be a number above 0, got 'soon'"),
        ({"clusers": 3}, "did you mean 'clusters'"),
        ({"engine": "sequential"}, "these are remote: leave it out"),
        ({"method": "ifka"}, "did you mean 'ifca'"),
    ],
)
def test_a_mistake_in_the_run_config_is_one_sentence(config, sentence):
    with pytest.raises(CoterieError, match=sentence):
        call(make_server_app(), grid_of(small_federation("linear")), {"nodes": 3, **config})


def test_too_few_nodes_are_an_error_that_says_how_many_came():
    with pytest.raises(TrainingError, match=r"4 nodes were waited for, but 3 have come within 0\.1 s"):
        clients_of(grid_of(small_federation("linear")), nodes=4, wait=0.1)


def test_announced_clients_come_later_and_are_written_down(tmp_path):
    data = small_federation("linear")
    grid = grid_of(data, nodes={11: NODES[11], 5: NODES[5]})
    late = grid_of(data, nodes={7: NODES[7]}).apps[7]
    clients = clients_of(grid, nodes=2, wait=0.1, expected=data.clients)

    def comes(record: Mapping[str, Any]) -> None:
        grid.apps[7] = late

    ended = coterie.fit(clients, "ifca", out=tmp_path / "run", callbacks=[comes], **OPTIONS)
    assert [record["answered"] for record in ended.records] == [5, 9, 9]
    assert json.loads((tmp_path / "run" / "federation.json").read_bytes())["bound"]["site-4"] == 7
    assert {row["id"] for row in ended.clients} == set(data.clients)
    assert all(row["score"] is not None for row in ended.clients)  # late ones are scored, too


# ---- the strategy ---------------------------------------------------------------------------------------------


def test_a_strategy_gives_flowers_result_with_all_models(tmp_path):
    data = small_federation("linear")
    own = {name: value for name, value in OPTIONS.items() if name != "rounds"}
    strategy = ClusteredStrategy("ifca", nodes=3, wait=5, **own)
    found = strategy.start(grid_of(data), num_rounds=3, timeout=10, out=tmp_path / "run")
    simulated = coterie.fit(data, "ifca", **OPTIONS)
    assert sorted(found.arrays) == ["0/weight", "1/weight"]
    for k, model in enumerate(simulated.models):
        np.testing.assert_allclose(found.arrays[f"{k}/weight"].numpy(), model["weight"], rtol=1e-9)
    assert sorted(found.train_metrics_clientapp) == sorted(found.evaluate_metrics_clientapp) == [1, 2, 3]
    assert found.evaluate_metrics_clientapp[3]["rmse"] == pytest.approx(simulated.records[-1]["rmse"], rel=1e-9)
    assert found.clustered is not None
    assert found.clustered.assignments == simulated.assignments
    assert "rmse" in repr(found)


def test_a_strategy_starts_from_given_models_and_from_a_module_of_ones_own():
    data = small_federation("module")
    start = [{name: p.detach().numpy() for name, p in small_module().named_parameters()} for _ in range(2)]
    arrays = ArrayRecord(
        {f"{k}/{name}": Array(value) for k, model in enumerate(start) for name, value in model.items()}
    )
    own = {name: value for name, value in OPTIONS.items() if name not in ("rounds", "dtype")} | {"dtype": "float32"}
    strategy = ClusteredStrategy("ifca", learner=LEARNERS["module"], nodes=3, wait=5, **own)
    found = strategy.start(grid_of(data, learner=LEARNERS["module"]), arrays, num_rounds=1)
    simulated = coterie.fit(data, "ifca", learner=LEARNERS["module"], init=start, rounds=1, **own)
    for k, model in enumerate(simulated.models):
        for name, value in model.items():
            np.testing.assert_allclose(found.arrays[f"{k}/{name}"].numpy(), value, rtol=1e-4, atol=1e-6)


def test_a_strategy_refuses_what_it_cannot_do():
    strategy, grid = ClusteredStrategy("odcl", nodes=3, wait=5), grid_of(small_federation("linear"))
    with pytest.raises(ConfigError, match="have nobody to go to"):
        strategy.start(grid, train_config=ConfigRecord({"lr": 0.1}))
    with pytest.raises(ConfigError, match="named by cluster, such as '0/weight', got 'weight'"):
        strategy.start(grid, ArrayRecord({"weight": Array(np.zeros(3))}))
    with pytest.raises(ConfigError, match="without a gap, got \\[1\\]"):
        strategy.start(grid, ArrayRecord({"1/weight": Array(np.zeros(3))}))
    with pytest.raises(ConfigError, match="call start"):
        strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    with pytest.warns(UserWarning, match="fewer samples than the model has coefficients"):
        assert strategy.start(grid).clustered is not None  # a method without rounds


def test_what_needs_the_clients_is_computed_before_the_run_ends():
    grid = grid_of(small_federation("linear"))
    found = ClusteredStrategy("ifca", nodes=3, wait=5, **OPTIONS).start(grid, num_rounds=3).clustered
    grid.apps.clear()  # a Flower run is over, and its nodes are gone
    assert found is not None
    assert len(found.coefficients()["clusters"]) == 2
    assert found.posterior().shape == (9, 2)


def test_settings_are_read_from_names_with_hyphens():
    settings = Settings.read({"most-change": 2, "client-weight": "uniform", "lr": "", "expected": "a, b"})
    assert settings.exchange["most_change"] == 2.0
    assert settings.exchange["expected"] == ("a", "b")
    assert settings.options == {"client_weight": "uniform"}
    assert settings.method == "ifca"


def test_why_no_node_can_be_counted_on_is_logged_once(caplog):
    def load(context: Context) -> FederatedDataset:
        raise FileNotFoundError("no such table")

    grid = InProcessGrid({4: make_client_app(load)})
    with pytest.raises(TrainingError, match="node 4 answered with error"):
        clients_of(grid, wait=0.5)
    assert [r.getMessage() for r in caplog.records] == [caplog.records[0].getMessage()]
    assert "no such table" in caplog.records[0].getMessage()
