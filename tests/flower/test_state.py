"""States of clients on the disk of their node: complete or absent, for the round that the server names."""

from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core.client_state import NEVER, ClientStates
from coterie.core.messages import Broadcast
from coterie.flower.state import ClientStateFolder
from coterie.testing.checks import Case
from coterie.training.fitting import initialize
from tests.flower.make import federation_of

NO_ROUND = torch.full((2,), NEVER)
IDS = ("a/../ü", "b")


def kept(**rows: list[float]) -> ClientStates:
    states = ClientStates.of(2)
    states.write(np.array([0, 1]), 4, {name: torch.tensor(value) for name, value in rows.items()})
    return states


def test_states_are_found_by_run_client_and_round(tmp_path):
    store = ClientStateFolder(tmp_path, "run")
    store.save(IDS, kept(weights=[[0.5, 0.5], [0.25, 0.75]], cluster=[3, 1]), NO_ROUND)
    states, lost = store.load(IDS, torch.tensor([4, 4]))
    assert lost == ()
    assert states.store.arrays["weights"].tolist() == [[0.5, 0.5], [0.25, 0.75]]
    assert states.store.arrays["cluster"].tolist() == [3, 1]
    assert states.store.rounds.tolist() == [4, 4]
    # only for clients whose answers the server accepted, in any order and combination
    states, lost = store.load(("c", "b"), torch.tensor([NEVER, 4]))
    assert (states.store.rounds.tolist(), lost) == ([NEVER, 4], ())
    assert states.store.arrays["cluster"].tolist() == [0, 1]
    assert store.load(IDS, torch.tensor([3, 4]))[1] == IDS[:1]
    assert ClientStateFolder(tmp_path, "another run").load(IDS, torch.tensor([4, 4]))[1] == IDS


def test_only_new_states_are_written(tmp_path):
    store, states = ClientStateFolder(tmp_path, "run"), kept(cluster=[3, 1])
    store.save(IDS, states, torch.tensor([4, NEVER]))
    assert store.load(IDS, torch.tensor([4, 4]))[1] == IDS[:1]


def test_a_crash_before_the_rename_keeps_the_state_of_the_round_before(tmp_path, monkeypatch):
    store = ClientStateFolder(tmp_path, "run")
    store.save(IDS, kept(cluster=[3, 1]), NO_ROUND)
    states = kept(cluster=[3, 1])
    states.write(np.array([0, 1]), 5, {"cluster": torch.tensor([8, 9])})

    def crash(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            store.save(IDS, states, torch.tensor([4, 4]))
    home = next(tmp_path.glob("*/*"))
    (home / "000005.safetensors.tmp").write_bytes(b"half of a fi")  # left by a kill
    assert store.load(IDS, torch.tensor([5, 5]))[1] == IDS
    assert store.load(IDS, torch.tensor([4, 4]))[0].store.arrays["cluster"].tolist() == [3, 1]
    store.delete_older(IDS, (4, 4))
    assert store.load(IDS, torch.tensor([4, 4]))[1] == ()


def test_a_damaged_file_is_a_lost_state(tmp_path):
    store = ClientStateFolder(tmp_path, "run")
    store.save(IDS, kept(cluster=[3, 1]), NO_ROUND)
    for path in tmp_path.glob("*/*/*"):
        path.write_bytes(path.read_bytes()[:-1])
    assert store.load(IDS, torch.tensor([4, 4]))[1] == IDS


def test_old_states_are_deleted_for_each_client(tmp_path):
    store = ClientStateFolder(tmp_path, "run")
    for round_ in (2, 5, 9):
        states = ClientStates.of(2)
        states.write(np.array([0, 1]), round_, {"cluster": torch.tensor([round_, round_])})
        store.save(IDS, states, NO_ROUND)
    store.delete_older(IDS, (5, NEVER))
    assert [store.load(IDS, torch.tensor([r, r]))[1] for r in (2, 5, 9)] == [IDS[:1], (), ()]


@pytest.mark.parametrize("method", ["fedem", "fesem", "fedsoft"])
def test_a_client_that_has_lost_its_state_continues_as_a_newcomer_with_a_note(method, tmp_path):
    plan = Case(method, "linear").plan()
    clusters, all_clients = initialize(plan).state.clusters, np.arange(9)
    common = {"loss": torch.tensor([1.0], dtype=torch.float64)}

    def ask(federation, round_, accepted):
        broadcast = Broadcast(
            round_, clusters, scalars={"lr": 0.05}, each={"accepted": torch.tensor(accepted)}, common=common
        )
        return federation.ask(plan.tiers.task(3, 1), broadcast, all_clients)

    federation = federation_of(plan, tmp_path)
    assert ask(federation, 0, [NEVER] * 9).notes == ()
    whole = ask(federation, 1, [0] * 9)
    newcomers = [NEVER if i in (1, 2) else 0 for i in range(9)]
    anew = ask(federation, 1, newcomers).reply  # site-1 and site-2, the clients of node 5, as newcomers
    for client in ("site-1", "site-2"):
        for path in ClientStateFolder(tmp_path, "a run")._home(client).glob("*"):
            path.unlink()
    replies = ask(federation, 1, [0] * 9)
    (note,) = replies.notes
    assert note.reason == "node 5 has lost the stored state of these clients: they started anew"
    assert note.clients == ("site-1", "site-2")
    assert replies.reply.clients == plan.data.clients
    for name, value in anew.rows.items():
        assert torch.equal(replies.reply.rows[name], value), name
    if method != "fesem":  # a cluster may be the same by chance
        assert any(not torch.equal(whole.reply.rows[n], v) for n, v in anew.rows.items()) or any(
            not torch.equal(whole.reply.slotted[n].arrays["mass"], s.arrays["mass"]) for n, s in anew.slotted.items()
        )
