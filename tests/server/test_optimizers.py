"""Server optimizers: against torch.optim in a plain loop over clusters, by hand, and through splits and merges."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from coterie.core.clusters import Clusters, Params
from coterie.core.plain import from_plain, from_text, to_plain, to_text
from coterie.core.regroup import NewCluster, Regroup
from coterie.core.state import ServerState
from coterie.core.state_array import RegroupEvent
from coterie.errors import ConfigError
from coterie.server.optimizers import ServerAdam, ServerOptimizer, ServerSGD, ServerYogi, move_models
from coterie.training.runs.checkpoint import newest_checkpoint, save_checkpoint

ROUNDS = 6
OPTIMIZER = "optimizer/"


def models(K: int, restarts: int = 1) -> Clusters:
    random = torch.Generator().manual_seed(K)
    shapes = {"weight": (restarts * K, 2, 3), "bias": (restarts * K,)}
    params = {name: torch.randn(shape, generator=random, dtype=torch.float64) for name, shape in shapes.items()}
    return Clusters(params, K, restarts)


def change_of(clusters: Clusters, round_: int) -> Params:
    random = torch.Generator().manual_seed(100 + round_)
    return {n: torch.randn(p.shape, generator=random, dtype=torch.float64) for n, p in clusters.params.items()}


def trained(optimizer: ServerOptimizer, clusters: Clusters, reached: list[Tensor], moments=None) -> list[Params]:
    """Return the models after each round."""
    params, found = clusters.params, []
    moments = optimizer.init(clusters) if moments is None else moments
    for round_, heard in enumerate(reached):
        added, moments = optimizer.step(change_of(clusters, round_), heard, moments)
        params = {name: p + added[name] for name, p in params.items()}
        found.append(params)
    return found


def all_clients(slots: int) -> list[Tensor]:
    return [torch.ones(slots, dtype=torch.bool)] * ROUNDS


def now_and_then(slots: int) -> list[Tensor]:
    """Return rounds in which the first cluster is never trained and the others sometimes."""
    return [torch.tensor([s > 0 and (s + t) % 3 > 0 for s in range(slots)]) for t in range(ROUNDS)]


def same(found: Params, expected: Params) -> None:
    for name, p in expected.items():
        torch.testing.assert_close(found[name], p, rtol=1e-12, atol=1e-12)


def with_torch(make, clusters: Clusters, reached: list[Tensor], schedule=lambda step: {}) -> Params:
    """Return the models of a plain loop with one torch optimizer for each cluster."""
    final: dict[str, list[Tensor]] = {name: [] for name in clusters.params}
    for slot in range(clusters.K * clusters.restarts):
        own = {name: torch.nn.Parameter(p[slot].clone()) for name, p in clusters.params.items()}
        optimizer, step = make(list(own.values())), 0
        for round_, heard in enumerate(reached):
            if not heard[slot]:
                continue
            step += 1
            for name, change in change_of(clusters, round_).items():
                own[name].grad = -change[slot]
            optimizer.param_groups[0].update(schedule(step))
            optimizer.step()
        for name, p in own.items():
            final[name].append(p.detach())
    return {name: torch.stack(rows) for name, rows in final.items()}


# ---- against torch ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [1, 2])
@pytest.mark.parametrize("reached", [all_clients, now_and_then])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True), (0.5, True)])
def test_sgd_is_that_of_torch_for_every_cluster(momentum, nesterov, reached, restarts):
    clusters, heard = models(3, restarts), reached(3 * restarts)
    found = trained(ServerSGD(0.7, momentum, nesterov), clusters, heard)[-1]
    expected = with_torch(
        lambda own: torch.optim.SGD(own, lr=0.7, momentum=momentum, nesterov=nesterov), clusters, heard
    )
    same(found, expected)


@pytest.mark.parametrize("reached", [all_clients, now_and_then])
def test_adam_without_memory_is_that_of_torch(reached):
    """With beta_1 = beta_2 = 0, no bias correction is needed: both take steps lr Delta / (|Delta| + tau)."""
    clusters, heard = models(3), reached(3)
    found = trained(ServerAdam(0.1, 0.0, 0.0, 0.01), clusters, heard)[-1]
    expected = with_torch(lambda own: torch.optim.Adam(own, lr=0.1, betas=(0.0, 0.0), eps=0.01), clusters, heard)
    same(found, expected)


@pytest.mark.parametrize("reached", [all_clients, now_and_then])
def test_adam_is_that_of_torch_without_bias_correction(reached):
    """torch: x += lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + eps), m and v from 0.

    With lr = eta (1 - b1^t) / sqrt(1 - b2^t) and eps = tau / sqrt(1 - b2^t) that is eta m / (sqrt(v) + tau). FedOpt
    starts v at tau^2; here it is given zeros.
    """
    eta, b1, b2, tau = 0.1, 0.9, 0.99, 1e-3
    clusters, heard = models(3), reached(3)
    optimizer = ServerAdam(eta, b1, b2, tau)
    zeros = {name: a.with_value(torch.zeros_like(a.value)) for name, a in optimizer.init(clusters).items()}

    def undone(t: int) -> dict[str, float]:
        root = math.sqrt(1 - b2**t)
        return {"lr": eta * (1 - b1**t) / root, "eps": tau / root}

    expected = with_torch(lambda own: torch.optim.Adam(own, betas=(b1, b2)), clusters, heard, undone)
    same(trained(optimizer, clusters, heard, zeros)[-1], expected)


# ---- by hand ---------------------------------------------------------------------------------------------------


def one_number(optimizer: ServerOptimizer, *changes: float) -> list[float]:
    """Return the model of one cluster with a single parameter after each change, starting at 0."""
    clusters = Clusters({"w": torch.zeros(1, 1, dtype=torch.float64)}, K=1)
    moments, x, found = optimizer.init(clusters), clusters.params["w"], []
    for change in changes:
        added, moments = optimizer.step(
            {"w": torch.tensor([[change]], dtype=torch.float64)}, torch.tensor([True]), moments
        )
        x = x + added["w"]
        found.append(x.item())
    return found


def test_momentum_by_hand():
    # b = 1, x = 0.5 * 1; b = 0.5 * 1 + 2 = 2.5, x = 0.5 + 0.5 * 2.5
    assert one_number(ServerSGD(0.5, 0.5), 1.0, 2.0) == [0.5, 1.75]
    # looking ahead: 0.5 (1 + 0.5 * 1) = 0.75; then 0.5 (2 + 0.5 * 2.5) = 1.625 more
    assert one_number(ServerSGD(0.5, 0.5, nesterov=True), 1.0, 2.0) == [0.75, 2.375]


def test_adam_by_hand():
    # tau = 0.5, so v starts at 0.25; Delta = 1: m = 0.5 * 1, v = 0.75 * 0.25 + 0.25 * 1 = 0.4375
    # Delta = -2: m = 0.5 * 0.5 - 0.5 * 2 = -0.75, v = 0.75 * 0.4375 + 0.25 * 4 = 1.328125
    first = 0.1 * 0.5 / (math.sqrt(0.4375) + 0.5)
    second = first + 0.1 * -0.75 / (math.sqrt(1.328125) + 0.5)
    assert one_number(ServerAdam(0.1, 0.5, 0.75, 0.5), 1.0, -2.0) == pytest.approx([first, second], rel=1e-12)


def test_yogi_by_hand():
    # tau = 0.5, so v starts at 0.25; Delta = 1: v < 1, so v = 0.25 + 0.25 * 1 = 0.5, m = 0.5 * 1
    # Delta = -0.1: v > 0.01, so v = 0.5 - 0.25 * 0.01 = 0.4975, m = 0.5 * 0.5 - 0.5 * 0.1 = 0.2
    # Delta = 0: v = 0.4975 - 0 stays, m = 0.1
    first = 0.1 * 0.5 / (math.sqrt(0.5) + 0.5)
    second = first + 0.1 * 0.2 / (math.sqrt(0.4975) + 0.5)
    third = second + 0.1 * 0.1 / (math.sqrt(0.4975) + 0.5)
    found = one_number(ServerYogi(0.1, 0.5, 0.75, 0.5), 1.0, -0.1, 0.0)
    assert found == pytest.approx([first, second, third], rel=1e-12)


OPTIMIZERS = [ServerSGD(0.7), ServerSGD(0.7, 0.9), ServerSGD(0.7, 0.9, True), ServerAdam(0.1), ServerYogi(0.1)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=to_text)
def test_a_cluster_without_contributions_keeps_its_model_and_moments(optimizer):
    clusters = models(3)
    _, moments = optimizer.step(change_of(clusters, 0), torch.ones(3, dtype=torch.bool), optimizer.init(clusters))
    change = change_of(clusters, 1)
    change["weight"][1] = torch.nan  # zero divided by zero
    added, after = optimizer.step(change, torch.tensor([True, False, True]), moments)
    assert all(p[1].abs().sum() == 0 and bool(p[[0, 2]].ne(0).all()) for p in added.values())
    assert after.keys() == moments.keys()
    for name, array in after.items():
        assert torch.equal(array.value[0, 1], moments[name].value[0, 1])
        assert not torch.equal(array.value[0, 0], moments[name].value[0, 0])


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=to_text)
def test_a_shared_body_has_moments_for_each_restart(optimizer):
    clusters = models(2)  # two clusters move as two restarts of a body do
    body = optimizer.init_shared(clusters.params)
    assert all(array.axes[0] == "restart" and "cluster" not in array.axes for array in body.values())
    same(trained(optimizer, clusters, all_clients(2), body)[-1], trained(optimizer, clusters, all_clients(2))[-1])


# ---- splits, merges and restarts ----------------------------------------------------------------------------------


def stepped(state: ServerState, optimizer: ServerOptimizer, change: Params) -> ServerState:
    """Return the state after one step of all clusters, with the moments."""
    own = {n.removeprefix(OPTIMIZER): a for n, a in state.arrays.items() if n.startswith(OPTIMIZER)}
    reached = torch.ones(state.clusters.K * state.clusters.restarts, dtype=torch.bool)
    added, moments = optimizer.step(change, reached, own)
    params = {name: p + added[name] for name, p in state.clusters.params.items()}
    clusters = Clusters(params, state.clusters.K, state.clusters.restarts)
    return ServerState(state.round + 1, clusters, state.arrays).with_arrays(moments, OPTIMIZER)


def one_parameter(optimizer: ServerOptimizer, K: int, restarts: int = 1) -> ServerState:
    clusters = Clusters({"w": torch.zeros(K * restarts, dtype=torch.float64)}, K, restarts)
    return ServerState.fresh(clusters, 4).with_arrays(optimizer.init(clusters), OPTIMIZER)


def w(*values: float) -> Params:
    return {"w": torch.tensor(values, dtype=torch.float64)}


def test_momentum_follows_a_split_and_a_merge():
    optimizer = ServerSGD(1.0, 0.5)
    state = stepped(one_parameter(optimizer, 2), optimizer, w(4.0, 8.0))
    assert state.clusters.params["w"].tolist() == [4, 8]
    split = Regroup((NewCluster((0,)), NewCluster((1,)), NewCluster((0,))))
    state = state.regrouped(RegroupEvent(split, "abcd", torch.tensor([2, 2])))
    state = stepped(state, optimizer, w(0.0, 0.0, 2.0))
    # both children go on with momentum 4: 4 + 2, 8 + 4, 4 + 2 + 2
    assert state.clusters.params["w"].tolist() == [6, 12, 8]
    merge = Regroup((NewCluster((0, 1), "average"), NewCluster((2,)), NewCluster(())))
    state = state.regrouped(RegroupEvent(merge, "abcd", torch.tensor([1, 3, 0])))
    # models (6 + 12) / 2 = 9, 8 and the mean of all for the newborn; momenta (1 * 2 + 3 * 4) / 4 = 3.5, 4, 0
    assert state.arrays["optimizer/momentum/w"].value.tolist() == [[3.5, 4, 0]]
    after = stepped(state, optimizer, w(1.0, 1.0, 1.0)).clusters.params["w"] - state.clusters.params["w"]
    assert after.tolist() == pytest.approx([0.5 * 3.5 + 1, 0.5 * 4 + 1, 1], rel=1e-12)


@pytest.mark.parametrize("kind", [ServerAdam, ServerYogi])
def test_a_newborn_cluster_has_initial_moments(kind):
    optimizer = kind(0.1, 0.9, 0.99, 0.1)
    state = stepped(one_parameter(optimizer, 1), optimizer, w(3.0))
    birth = Regroup((NewCluster((0,)), NewCluster(())))
    state = state.regrouped(RegroupEvent(birth, "abcd", torch.tensor([4])))
    for moment, start in optimizer.starts.items():
        assert state.arrays[f"optimizer/{moment}/w"].value[0, 1] == start
    moved = stepped(state, optimizer, w(3.0, 3.0)).clusters.params["w"] - state.clusters.params["w"]
    fresh = stepped(one_parameter(optimizer, 1), optimizer, w(3.0)).clusters.params["w"]
    assert moved[1].item() == pytest.approx(fresh.item(), rel=1e-12)


def test_the_best_restart_keeps_its_own_moments():
    optimizer = ServerSGD(1.0, 0.5)
    state = stepped(one_parameter(optimizer, 2, 2), optimizer, w(1.0, 2.0, 3.0, 4.0)).keep_restart(1)
    assert state.arrays["optimizer/momentum/w"].value.tolist() == [[3, 4]]
    assert stepped(state, optimizer, w(0.0, 0.0)).clusters.params["w"].tolist() == [4.5, 6]


# ---- whole states ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    params: Params
    reached: Tensor
    body: Params = field(default_factory=dict)
    overall: Params = field(default_factory=dict)


def whole_state(restarts: int = 2, K: int = 2) -> ServerState:
    clusters = models(K, restarts)
    body = {"base": torch.randn(restarts, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))}
    overall = {name: p[:restarts].clone() for name, p in clusters.params.items()}
    return ServerState.fresh(replace(clusters, body=body, overall=overall), 4)


def a_change(state: ServerState, round_: int, reached: list[bool]) -> Change:
    """Return random changes, and zeros for clusters without contributions."""
    random, clusters, slots = torch.Generator().manual_seed(round_), state.clusters, torch.tensor(reached)
    restarts = slots.reshape(clusters.restarts, -1).any(dim=1)

    def like(params: Params, rows: Tensor) -> Params:
        drawn = {name: torch.randn(p.shape, generator=random, dtype=p.dtype) for name, p in params.items()}
        return {name: p * rows.reshape(-1, *(1,) * (p.dim() - 1)) for name, p in drawn.items()}

    overall = like(clusters.overall or {}, restarts)
    return Change(like(clusters.params, slots), slots, like(clusters.shared, restarts), overall)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=to_text)
def test_all_parts_of_the_models_have_separate_moments(optimizer):
    state = whole_state()
    first, second = (a_change(state, t, reached) for t, reached in enumerate([[True] * 4, [True, False, False, False]]))
    found = move_models(optimizer, move_models(optimizer, state, first), second, rate=0.5)
    parts = {
        "params": (state.clusters.params, optimizer.init(state.clusters), second.reached),
        "body": (state.clusters.shared, optimizer.init_shared(state.clusters.shared), torch.tensor([True, False])),
        "overall": (
            state.clusters.overall,
            optimizer.init_shared(state.clusters.overall or {}),
            torch.tensor([True, False]),
        ),
    }
    for part, (before, moments, reached) in parts.items():
        one, moments = optimizer.step(getattr(first, part), torch.ones(len(reached), dtype=torch.bool), moments)
        halved = {name: change / 2 for name, change in getattr(second, part).items()}
        two, moments = optimizer.step(halved, reached, moments)
        same(getattr(found.clusters, part), {name: p + one[name] + two[name] for name, p in before.items()})
        for name, array in moments.items():
            assert torch.equal(found.arrays[f"server-optimizer/{part}/{name}"].value, array.value)


def test_a_body_that_is_not_trained_does_not_change():
    state = whole_state()
    change = replace(a_change(state, 0, [True] * 4), body={}, overall={})
    for optimizer in OPTIMIZERS:
        moved = move_models(optimizer, state, change).clusters
        assert torch.equal(moved.shared["base"], state.clusters.shared["base"])
        assert not torch.equal(moved.params["bias"], state.clusters.params["bias"])


def test_plain_sgd_is_one_addition_without_moments():
    state = whole_state()
    change = a_change(state, 0, [True] * 4)
    moved = move_models(ServerSGD(0.3), state, change, rate=0.5)
    assert moved.arrays.keys() == state.arrays.keys()
    for name, p in state.clusters.params.items():
        assert torch.equal(moved.clusters.params[name], p + (0.3 * 0.5) * change.params[name])
    averaged = move_models(ServerSGD(), state, change)
    for name, p in state.clusters.params.items():
        assert torch.equal(averaged.clusters.params[name], p + change.params[name])


def test_moments_in_a_state_survive_a_checkpoint(tmp_path):
    optimizer, state = ServerAdam(0.1), whole_state()
    once = move_models(optimizer, state, a_change(state, 0, [True, False, True, True]))
    save_checkpoint(tmp_path, once)
    found = newest_checkpoint(tmp_path, pytest.fail)
    assert found is not None
    later = a_change(state, 1, [True, True, False, True])
    one, other = move_models(optimizer, once, later), move_models(optimizer, found[0], later)
    assert all(torch.equal(p, other.clusters.params[name]) for name, p in one.clusters.params.items())
    assert all(torch.equal(array.value, other.arrays[name].value) for name, array in one.arrays.items())


# ---- settings --------------------------------------------------------------------------------------------------


def test_only_plain_sgd_is_left_to_the_average():
    assert ServerSGD(0.3).plain_lr == 0.3
    assert ServerSGD(0.3).init(models(2)) == {}
    for optimizer in OPTIMIZERS[1:]:
        assert optimizer.plain_lr is None
        assert optimizer.init(models(2))


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=to_text)
def test_optimizers_have_plain_forms(optimizer):
    assert from_plain(ServerOptimizer, to_plain(optimizer)) == optimizer
    assert from_text(ServerOptimizer, to_text(optimizer)) == optimizer


def test_optimizers_have_names():
    assert sorted(ServerOptimizer.members) == ["adam", "sgd", "yogi"]
    assert from_text(ServerOptimizer, "sgd:lr=0.5,momentum=0.9,nesterov=true") == ServerSGD(0.5, 0.9, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sgd:lr=0", "lr of a server optimizer must be positive, got 0.0"),
        ("adam:lr=nan", "lr of a server optimizer must be positive"),
        ("sgd:momentum=1", "momentum must be at least 0 and below 1, got 1.0"),
        ("sgd:nesterov=true", "needs a positive momentum"),
        ("adam:beta1=-0.1", "beta1 must be at least 0 and below 1"),
        ("yogi:beta2=1.5", "beta2 must be at least 0 and below 1"),
        ("yogi:tau=0", "tau must be positive, got 0.0"),
    ],
)
def test_settings_out_of_range_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        from_text(ServerOptimizer, text)
