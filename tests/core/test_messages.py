"""Serialisation, merging and sizes of messages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load

from coterie.core.clusters import Clusters
from coterie.core.messages import (
    ALL,
    Broadcast,
    Reply,
    Slotted,
    decode_broadcast,
    decode_reply,
    encode_broadcast,
    encode_reply,
    merge,
    merge_slotted,
)

PARAMS = {"weight": torch.arange(12.0, dtype=torch.float64).reshape(6, 2), "bias": torch.arange(6.0)}
BODY = {"base": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])}
RESTARTS = 2


def clusters(body: bool = True) -> Clusters:
    return Clusters(PARAMS, K=3, restarts=RESTARTS, body=BODY if body else None)


def same(a: dict, b: dict) -> bool:
    return list(a) == list(b) and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def sorted_same(a: dict, b: dict) -> bool:
    return same(dict(sorted(a.items())), dict(sorted(b.items())))


def payload(data: bytes) -> int:
    """Return the number of bytes of all arrays in a serialised message."""
    return sum(a.nbytes for a in load(data).values())


def one(place: int) -> np.ndarray:
    return np.array([place])


# ---- through bytes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [True, False])
def test_a_broadcast_survives_serialisation(body):
    sent = Broadcast(
        7,
        clusters(body),
        only=torch.tensor([[0, 3], [ALL, ALL]]),
        scalars={"lr": 0.1, "mu": 2.0},
        each={"own": torch.tensor([2, 1]), "anchor": torch.rand(2, 3)},
    )
    back = decode_broadcast(encode_broadcast(sent))
    assert (back.round, back.scalars) == (7, {"lr": 0.1, "mu": 2.0})
    assert (back.clusters.K, back.clusters.restarts, back.clusters.slots) == (3, RESTARTS, None)
    assert sorted_same(back.clusters.params, PARAMS)
    assert (back.clusters.body is not None) == body
    assert sorted_same(back.clusters.shared, BODY if body else {})
    assert back.only is not None
    assert torch.equal(back.only, sent.only)
    assert sorted_same(back.each, sent.each)


def test_a_broadcast_without_optional_parts_survives_serialisation():
    back = decode_broadcast(encode_broadcast(Broadcast(0, clusters(False))))
    assert back.only is None
    assert back.clusters.slots is None
    assert back.each == {}


def test_kept_slots_survive_serialisation():
    sent = Broadcast(1, clusters(), only=torch.tensor([[1, 5], [2, 3]])).to(one(0))
    back = decode_broadcast(encode_broadcast(sent))
    assert back.clusters.slots is not None
    assert back.clusters.slots.tolist() == [1, 5]
    assert back.clusters.at(torch.tensor([5]))["weight"].tolist() == [[10, 11]]


def test_arrays_that_share_memory_can_be_sent():
    own = torch.tensor([0, 2])
    sent = Broadcast(0, Clusters(PARAMS, K=6), only=own[:, None], each={"own": own})
    back = decode_broadcast(encode_broadcast(sent))
    assert back.each["own"].tolist() == [0, 2]


def reply(clients: tuple[str, ...] = ("a", "b")) -> Reply:
    return Reply(
        clients,
        sums={"loss": torch.tensor([1.5, 2.5], dtype=torch.float64), "samples": torch.tensor(8.0)},
        slotted={
            "clusters": Slotted(
                torch.tensor([0, 4]),
                {"change/weight": torch.rand(2, 3), "mass": torch.tensor([1.0, 2.0])},
                torch.tensor([1, 3]),
            ),
            "body": Slotted(torch.tensor([0, 1]), {"change/base": torch.rand(2, 2)}, torch.tensor([2, 2])),
        },
        rows={"cluster": torch.zeros(len(clients), 2, dtype=torch.int64)},
        rejected=("z",),
    )


def test_a_reply_survives_serialisation():
    sent = reply()
    back = decode_reply(encode_reply(sent))
    assert (back.clients, back.rejected) == (("a", "b"), ("z",))
    assert sorted_same(dict(back.sums), dict(sent.sums))
    assert sorted_same(back.rows, sent.rows)
    assert list(back.slotted) == ["clusters", "body"]
    for name, slotted in sent.slotted.items():
        assert torch.equal(back.slotted[name].slots, slotted.slots)
        assert torch.equal(back.slotted[name].counts, slotted.counts)
        assert sorted_same(back.slotted[name].arrays, slotted.arrays)


def test_an_empty_reply_survives_serialisation():
    back = decode_reply(encode_reply(Reply((), rejected=("a",))))
    assert (back.clients, back.rejected, back.rows) == ((), ("a",), {})


# ---- contents of messages ------------------------------------------------------------------------------------


def test_a_client_receives_only_its_own_models():
    part = Broadcast(0, clusters(), only=torch.tensor([[2, 4], [0, 3]])).to(one(1))
    assert part.only is not None
    assert part.only.tolist() == [[0, 3]]
    assert part.clusters.params["bias"].tolist() == [0, 3]
    assert part.clusters.shared["base"].shape == (2, 3)


def test_a_part_contains_all_models_that_any_of_its_clients_needs():
    part = Broadcast(0, clusters(), only=torch.tensor([[2, 4], [0, 3], [2, 5]])).to(np.array([0, 2]))
    assert part.clusters.slots is not None
    assert part.clusters.slots.tolist() == [2, 4, 5]


def test_a_part_contains_all_models_if_one_of_its_clients_needs_all():
    part = Broadcast(0, clusters(), only=torch.tensor([[2, 4], [ALL, ALL]])).to(np.array([0, 1]))
    assert part.clusters.slots is None
    assert part.clusters.params["bias"].shape == (6,)


def test_each_client_gets_its_row():
    part = Broadcast(0, clusters(), each={"own": torch.tensor([5, 6, 7])}).to(np.array([2, 0]))
    assert part.each["own"].tolist() == [7, 5]


# ---- numbers of bytes ----------------------------------------------------------------------------------------
# float64 weight (2) and float32 bias: 16 + 4 = 20 bytes a slot; float32 body (3): 12 bytes a restart


def test_bytes_down_by_hand_when_all_get_every_model():
    broadcast = Broadcast(0, clusters(), scalars={"lr": 0.1})
    # round 8 + lr 8 + 2 restarts * 12 + 6 slots * 20 = 160 for each of 3 clients
    assert broadcast.bytes_for(3) == 3 * 160


def test_bytes_down_by_hand_when_each_gets_its_own():
    broadcast = Broadcast(0, clusters(), only=torch.tensor([[0, 3], [2, 4]]))
    # round 8 + 2 restarts * 12 + 2 slots * (20 + 8 for the index) = 88 for each of 2 clients
    assert broadcast.bytes_for(2) == 2 * 88


def test_bytes_down_by_hand_when_some_get_all():
    broadcast = Broadcast(0, clusters(False), only=torch.tensor([[0, 3], [ALL, ALL]]))
    # round 8 + 2 * 28 = 64 for the first; round 8 + 6 * 20 = 128 for the second
    assert broadcast.bytes_for(2) == 64 + 128


@pytest.mark.parametrize("body", [True, False])
def test_counted_bytes_down_are_the_arrays_of_a_message_to_all(body):
    sent = Broadcast(3, clusters(body), scalars={"lr": 1.0}, each={"own": torch.tensor([0, 1]), "v": torch.rand(2, 5)})
    assert sent.bytes_for(2) == sum(8 + 8 + payload(encode_broadcast(sent.to(one(i)))) for i in range(2))


def test_counted_bytes_down_are_the_arrays_of_a_message_to_a_client_with_assigned_models():
    sent = Broadcast(3, clusters(), only=torch.tensor([[1, 5]]), scalars={"lr": 1.0})
    assert sent.bytes_for(1) == 8 + 8 + payload(encode_broadcast(sent.to(one(0))))


def test_counted_bytes_down_are_the_arrays_of_a_message_to_a_client_without_assigned_models():
    sent = Broadcast(3, clusters(), only=torch.tensor([[ALL, ALL]]), scalars={"lr": 1.0})
    assert sent.bytes_for(1) == 8 + 8 + payload(encode_broadcast(sent.to(one(0))))


def single_reply() -> Reply:
    slotted = Slotted(
        torch.tensor([4]),
        {"change/weight": torch.rand(1, 3), "mass": torch.ones(1, dtype=torch.float64)},
        torch.tensor([1]),
    )
    return Reply(
        ("a",),
        sums={"loss": torch.zeros(2, dtype=torch.float64)},
        slotted={"clusters": slotted},
        rows={"cluster": torch.zeros(1, 2, dtype=torch.int64)},
    )


def test_bytes_up_by_hand():
    # loss 2 * 8 + cluster 2 * 8 + slot (3 * 4 + mass 8 + index 8) = 60
    assert single_reply().nbytes == 60


def test_counted_bytes_up_are_the_arrays_of_one_clients_message():
    assert single_reply().nbytes == payload(encode_reply(single_reply()))


def test_bytes_up_of_many_are_those_of_each_alone():
    several = [single_reply() for _ in range(3)]
    together = merge(
        [Reply((f"c{i}",), r.sums, r.slotted, r.rows) for i, r in enumerate(several)],
    )
    assert together.nbytes == 3 * 60


# ---- merging -------------------------------------------------------------------------------------------------


def slotted(slots: list[int], values: list[float], counts: list[int]) -> Slotted:
    return Slotted(torch.tensor(slots), {"v": torch.tensor(values)[:, None]}, torch.tensor(counts))


def test_merging_adds_sums_slot_by_slot_and_puts_rows_in_order():
    first = Reply(
        ("b",), {"n": torch.tensor(2.0)}, {"s": slotted([0, 2], [1, 2], [1, 1])}, {"r": torch.tensor([[5]])}, ("x",)
    )
    second = Reply(
        ("a", "c"), {"n": torch.tensor(3.0)}, {"s": slotted([1, 2], [4, 8], [1, 2])}, {"r": torch.tensor([[6], [7]])}
    )
    merged = merge([first, second])
    assert merged.clients == ("b", "a", "c")
    assert merged.rejected == ("x",)
    assert float(merged.sums["n"]) == 5
    assert merged.rows["r"].flatten().tolist() == [5, 6, 7]
    total = merged.slotted["s"]
    assert total.slots.tolist() == [0, 1, 2]
    assert total.arrays["v"].flatten().tolist() == [1, 4, 10]  # 2 + 8 in slot 2
    assert total.counts.tolist() == [1, 1, 3]


def test_merging_the_other_way_round_changes_the_order_of_rows_only():
    parts = [
        Reply((c,), {"n": torch.tensor(float(v))}, {"s": slotted([v], [v], [1])}, {"r": torch.tensor([v])})
        for v, c in enumerate("abc")
    ]
    there, back = merge(parts), merge(parts[::-1])
    assert back.clients == there.clients[::-1]
    assert back.rows["r"].tolist() == there.rows["r"].tolist()[::-1]
    assert torch.equal(there.sums["n"], back.sums["n"])
    assert torch.equal(there.slotted["s"].arrays["v"], back.slotted["s"].arrays["v"])


def test_merging_no_clients_is_an_empty_reply_with_the_rejected_clients():
    merged = merge([Reply((), rejected=("a",)), Reply((), rejected=("b",))])
    assert (merged.clients, merged.rejected, merged.sums) == ((), ("a", "b"), {})


def test_a_reply_of_rejected_clients_only_adds_nothing():
    good = Reply(("a",), {"n": torch.tensor(1.0)}, rows={"r": torch.tensor([1])})
    bad = Reply((), {"n": torch.tensor(torch.inf)}, rows={"r": torch.zeros(0, dtype=torch.int64)}, rejected=("b",))
    merged = merge([bad, good])
    assert merged.clients == ("a",)
    assert float(merged.sums["n"]) == 1
    assert merged.rejected == ("b",)


def test_merging_does_not_change_its_arguments():
    parts = [slotted([0], [1], [1]), slotted([0], [2], [1])]
    merge_slotted(parts)
    assert [float(p.arrays["v"]) for p in parts] == [1, 2]


SLOTS = st.lists(st.integers(0, 6), min_size=1, max_size=5, unique=True).map(sorted)


@settings(max_examples=40, deadline=None)
@given(st.lists(SLOTS, min_size=1, max_size=5), st.integers(0, 10**6))
def test_slotted_sums_add_up_as_in_a_dictionary(parts, seed):
    random = np.random.default_rng(seed)
    made = [
        Slotted(torch.tensor(s), {"v": torch.from_numpy(random.random((len(s), 2)))}, torch.ones(len(s)).long())
        for s in parts
    ]
    plain: dict[int, np.ndarray] = {}
    for part in made:
        for slot, value in zip(part.slots.tolist(), part.arrays["v"].numpy(), strict=True):
            plain[slot] = plain.get(slot, 0) + value
    merged = merge_slotted(made)
    assert merged.slots.tolist() == sorted(plain)
    np.testing.assert_allclose(merged.arrays["v"].numpy(), [plain[s] for s in sorted(plain)], rtol=1e-12)
    assert merged.counts.tolist() == [sum(s in p for p in parts) for s in sorted(plain)]
