"""Parts of the sharded engines without worker processes."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import coterie
from coterie.cluster.address import read_workers
from coterie.cluster.engine import SHARDS, DaskShards, shard_count
from coterie.cluster.shard_data import (
    ShardRecipe,
    decode_shard,
    encode_shard,
    framed,
    in_folder,
    shard_of,
    stored_part,
    unframed,
)
from coterie.cluster.worker import Kept
from coterie.core.client_state import NEVER, ROUNDS, ClientStateStore, joined_rows
from coterie.core.messages import Reply
from coterie.data.arrays import stored_rows
from coterie.engines.shards import Answer, Cut, reduce_pairwise
from coterie.errors import ConfigError, CoterieError, InputError, TrainingError
from coterie.methods.settings import RunSettings
from coterie.testing.checks import small_federation

SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=40)


@given(SIZES, st.data())
def test_a_cut_has_every_client_once_and_no_empty_shard(sizes, data):
    shards = data.draw(st.integers(1, len(sizes)))
    cut = Cut.of(np.array(sizes), shards)
    parts = [cut.positions(s) for s in range(len(cut))]
    assert len(parts) == shards
    assert all(len(part) for part in parts)
    assert np.concatenate(parts).tolist() == list(range(len(sizes)))


@given(SIZES, st.data())
def test_the_parts_of_a_question_are_the_asked_clients_of_each_shard_in_their_order(sizes, data):
    cut = Cut.of(np.array(sizes), data.draw(st.integers(1, len(sizes))))
    asked = np.array(data.draw(st.lists(st.integers(0, len(sizes) - 1), unique=True)), dtype=np.int64)
    places = np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=len(asked), max_size=len(asked))))
    parts = cut.parts(asked, places)
    assert [shard for shard, _ in parts] == sorted({shard for shard, _ in parts})
    for shard, part in parts:
        assert part.tolist() == [p for p in places if asked[p] in cut.positions(shard)]
    assert sorted(p for _, part in parts for p in part) == places.tolist()


def test_samples_decide_the_place_of_a_cut():
    assert Cut.of(np.array([1, 1, 1, 1, 96]), 2).borders.tolist() == [0, 4, 5]
    assert Cut.of(np.array([10, 10, 10, 10]), 2).borders.tolist() == [0, 2, 4]


def test_pairs_are_joined_along_a_tree_that_depends_on_the_number_only():
    assert reduce_pairwise("abcde", lambda one, other: f"({one}{other})") == "(((ab)c)(de))"
    assert reduce_pairwise("a", lambda one, other: "") == "a"


def answer(positions, value, **more):
    reply = Reply((), sums={"loss": torch.tensor(value)}, rows={"row": torch.tensor(positions, dtype=torch.float64)})
    return Answer(reply, torch.tensor(positions), seconds=1.0, **more)


def test_answers_join_and_survive_the_wire():
    states = {"weights": torch.ones(1, 2), ROUNDS: torch.tensor([4])}
    wider = {"weights": torch.full((2, 3), 2.0), ROUNDS: torch.tensor([4, 5])}
    first = answer([0, 1], 0.5, states=states, stored=torch.tensor([1]))
    second = answer([2, 4], 0.25, states=wider, stored=torch.tensor([2, 4]))
    joined = Answer.decode(Answer.decode(first.encode()).join(Answer.decode(second.encode())).encode())
    assert joined.positions.tolist() == [0, 1, 2, 4]
    assert joined.reply.rows["row"].tolist() == [0, 1, 2, 4]
    assert float(joined.reply.sums["loss"]) == 0.75
    assert joined.seconds == 2.0
    assert joined.stored.tolist() == [1, 2, 4]
    assert joined.states["weights"].tolist() == [[1, 1, 0], [2, 2, 2], [2, 2, 2]]
    assert joined.states[ROUNDS].tolist() == [4, 4, 5]


def test_the_first_failure_counts_instead_of_the_replies():
    class OwnError(TrainingError):
        """An error of a plugin, whose class other processes do not know."""

    failed = Answer.failed(OwnError("first")).join(Answer.failed(InputError("second")))
    arrived = Answer.decode(answer([0], 1.0).join(failed).encode()).error
    assert (type(arrived), str(arrived)) == (TrainingError, "first")


def test_rows_of_states_are_replaced_and_grow():
    store = ClientStateStore(3)
    assert store.rows(torch.tensor([1]))[ROUNDS].tolist() == [NEVER]
    store.replace_rows(torch.tensor([1]), {"model": torch.tensor([[1.0, 2.0]]), ROUNDS: torch.tensor([0])})
    store.replace_rows(torch.tensor([2]), {"model": torch.tensor([[3.0, 4.0, 5.0]]), ROUNDS: torch.tensor([1])})
    store.replace_rows(torch.tensor([1]), {"model": torch.tensor([[6.0]]), ROUNDS: torch.tensor([2])})
    assert store.arrays["model"].tolist() == [[0, 0, 0], [6, 0, 0], [3, 4, 5]]
    assert store.rounds.tolist() == [NEVER, 2, 1]
    assert joined_rows([store.rows(torch.tensor([2, 1]))])["model"].tolist() == [[3, 4, 5], [6, 0, 0]]


def test_a_shard_alone_has_its_own_rows_only_and_the_wire_keeps_them():
    data = coterie.scenario("mixed-regression", clients=6)
    part = shard_of(data, np.array([2, 3]), tested=True)
    for i, position in enumerate((2, 3)):
        for own, whole in ((part.train, data.train), (part.test, data.test)):
            rows = slice(whole.starts[position], whole.stops[position])
            assert torch.equal(own.x[own.starts[i] : own.stops[i]], whole.x[rows])
            assert torch.equal(own.y[own.starts[i] : own.stops[i]], whole.y[rows])
    assert len(part.train.y) == data.sizes[[2, 3]].sum()
    assert len(part.test.y) <= len(data.test.y)  # clients of a group share test samples
    assert shard_of(data, np.array([2]), tested=False).test is None
    arrived = decode_shard(encode_shard(part))
    assert arrived.fingerprint() == part.fingerprint()


def test_a_recipe_finds_other_samples_and_survives_the_wire():
    data = coterie.scenario("mixed-regression", clients=6, noise=0.5, seed=4)
    part = shard_of(data, np.arange(2, 5), tested=True)
    recipe = ShardRecipe.decode(ShardRecipe(part.fingerprint(), 2, 5, True, data.source, ("client-3",)).encode())
    loaded = shard_of(recipe.source.load(), recipe.positions, recipe.tested)
    assert recipe.checked(loaded).clients == part.clients
    with pytest.raises(InputError, match="other samples for clients 2 to 4"):
        recipe.checked(shard_of(data, np.arange(1, 4), tested=True))


def test_data_that_is_changed_loses_its_source():
    data = coterie.scenario("mixed-regression", clients=6)
    assert data.source is not None
    assert coterie.core.validation.validation_split(data, 0.2, 0).source is None
    assert data.take([0, 1]).source is None
    assert data.training_only().source is data.source


def test_the_place_of_rows_in_a_file_is_known_for_parts_of_a_map_only(tmp_path):
    rows = np.arange(40.0, dtype=np.float32).reshape(10, 4)
    np.save(tmp_path / "x.npy", rows)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    found = stored_rows(mapped[2:][1:]).part(1, 3)
    read = np.fromfile(found.path, found.dtype, 8, offset=found.offset).reshape(found.shape)
    np.testing.assert_array_equal(read, rows[4:6])
    for other in (rows, mapped[:, :2], mapped + 0, np.load(tmp_path / "x.npy", mmap_mode="c")):
        assert stored_rows(other) is None
    data = coterie.from_rows(mapped, np.arange(10.0), [3, 2, 5])
    assert stored_part(data, np.array([1, 2])).shape == (7, 4)
    assert stored_part(data.take([0, 2]), np.array([0, 1])) is None
    assert coterie.core.validation.validation_split(data, 0.4, 0).stored is None


def test_kept_values_are_dropped_in_the_order_of_their_last_use():
    kept, loaded = Kept(10), []

    def recall(key, size):
        return kept.recall(key, lambda: loaded.append(key) or key, lambda value: size)

    for key, size in (("a", 4), ("b", 4), ("a", 4), ("c", 4), ("a", 4), ("b", 4), ("huge", 99)):
        assert recall(key, size) == key
    assert loaded == ["a", "b", "c", "b", "huge"]
    assert list(kept.values) == ["huge"]


@given(st.lists(st.binary(max_size=20)))
def test_framed_messages_come_out_as_they_went_in(parts):
    assert unframed(framed(parts)) == parts


def test_texts_that_name_workers():
    assert read_workers("local:4").count == 4
    for text in ("tcp://127.0.0.1:8786", "tcp://localhost:1", "tcp://[::1]:8786", "tls://scheduler.example:8786"):
        assert read_workers(text).address == text
    assert read_workers("tls://10.1.2.3:8786").encrypted
    for text in ("local:0", "local:", "local:99999", "8786", "http://a:1", "tcp://a b:1", "", 4):
        with pytest.raises(ConfigError, match=r"expected local:N|start between 1 and"):
            read_workers(text)
    for text in ("tcp://scheduler:8786", "tcp://192.168.0.2:8786", "tcp://127.0.0.1.example.org:8786"):
        with pytest.raises(ConfigError, match="without encryption"):
            read_workers(text)


def test_relative_paths_are_read_from_the_folder_of_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "here").touch()
    with in_folder(str(tmp_path / "run")):
        assert (tmp_path.joinpath("run").resolve() / "here").samefile("here")
    with in_folder("/nowhere"):
        assert not (tmp_path / "here").exists()


@pytest.mark.parametrize(
    ("memory", "shards"), [(0, 9), (1 << 40, 9), (24_000, 9)], ids=["no limit", "plenty", "few clients"]
)
def test_there_are_sixteen_shards_or_as_many_as_clients(memory, shards, monkeypatch):
    assert shards < SHARDS
    fake_memory(monkeypatch, memory)
    assert shard_count(small_federation("linear"), RunSettings(workers="local:1", dtype="float64")) == shards


def test_two_shards_fit_into_the_memory_of_a_worker(monkeypatch):
    data = coterie.scenario("mixed-regression", clients=100, dimension=9, samples=10)  # 1000 rows of 80 bytes
    settings = RunSettings(workers="local:1", dtype="float64")
    for memory, shards in ((40_000, 16), (30_000, 32), (10_000, 64)):  # 0.6 memory >= 2 shards x 2 copies
        fake_memory(monkeypatch, memory)
        assert shard_count(data, settings) == shards
    fake_memory(monkeypatch, 1000)
    with pytest.raises(ConfigError, match="a client has 800 bytes of samples, and a worker may use 600"):
        shard_count(data, settings)


def fake_memory(monkeypatch, memory):
    workers = {"a": {"memory_limit": memory}, "b": {"memory_limit": 2 * memory}}
    monkeypatch.setattr("coterie.cluster.engine.connected", lambda name: SimpleNamespace(workers=lambda: workers))


def placed(before, workers, shards=6):
    federation = SimpleNamespace(_places=dict(before), _cut=range(shards))
    DaskShards._place(federation, workers)
    return federation._places


def test_shards_stay_where_they_are_and_are_shared_fairly():
    two = placed({}, {"a": 0, "b": 0})
    assert two == dict(zip(range(6), "aaabbb", strict=True))
    assert placed(two, {"a": 0, "b": 0}) == two
    three = placed(two, {"a": 0, "b": 0, "c": 0})
    assert sorted(three.values()) == list("aabbcc")
    assert sum(three[s] == two[s] for s in two) == 4
    lost = placed(two, {"b": 0})
    assert set(lost.values()) == {"b"}
    assert len(placed({}, dict.fromkeys("abcdefgh", 0))) == 6


def test_all_errors_have_a_name_for_the_wire():
    for kind in CoterieError.__subclasses__():
        error = Answer.decode(Answer.failed(kind("why")).encode()).error
        assert (type(error), str(error)) == (kind if kind.__module__ == "coterie.errors" else CoterieError, "why")


def test_false_labels_lose_the_source():
    data = coterie.scenario("few-classes", clients=6)
    changed = coterie.engines.attacks.with_false_labels(data, np.arange(6) < 2)
    assert replace(data, source=None).source is changed.source is None
