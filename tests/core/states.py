"""Random server states with random arrays, and a slow regroup of one array, entry by entry."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import strategies as st

from coterie.core.clusters import Clusters
from coterie.core.regroup import NewCluster, Regroup
from coterie.core.state import ServerState
from coterie.core.state_array import (
    Axes,
    Axis,
    ClusterNumber,
    Inherit,
    RegroupEvent,
    RegroupRule,
    Reset,
    Share,
    ShareByMember,
    StateArray,
    Unchanged,
)

RULES: list[RegroupRule] = [
    Unchanged(),
    Reset(),
    Inherit(),
    Inherit(newborn=0.25),
    Share(),
    ShareByMember(),
    ClusterNumber(),
]


@st.composite
def arrays(draw: st.DrawFn, K: int, restarts: int, clients: int) -> StateArray:
    """Draw an array with a random rule, random axes in a random order, and random entries."""
    rule = draw(st.sampled_from(RULES))
    optional: list[Axis] = ["restart", "client", *(["cluster"] if isinstance(rule, Reset) else [])]
    named = {*rule.needs, *draw(st.sets(st.sampled_from(optional)))}
    others: list[None] = [None] * draw(st.integers(0, 2))
    axes: Axes = tuple(draw(st.permutations([*sorted(named), *others])))
    lengths = {"cluster": K, "restart": restarts, "client": clients}
    shape = [draw(st.integers(0, 3)) if axis is None else lengths[axis] for axis in axes]
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    if isinstance(rule, ClusterNumber):
        return StateArray(torch.from_numpy(random.integers(-1, K, shape)), axes, rule)
    return StateArray(torch.from_numpy(random.standard_normal(shape)), axes, rule)


@st.composite
def states(draw: st.DrawFn, restarts: int | None = None) -> ServerState:
    """Draw a state with arrays of every kind, restarts, clusters, and a body or an overall model."""
    K, clients = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    R = draw(st.integers(1, 3)) if restarts is None else restarts
    random = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    params = {"bias": torch.randn(R * K, generator=random), "weight": torch.randn(R * K, 2, generator=random).double()}
    body = {"base": torch.randn(R, 3, generator=random)} if draw(st.booleans()) else None
    overall = (
        {name: torch.randn(p[:R].shape, generator=random).to(p) for name, p in params.items()}
        if draw(st.booleans())
        else None
    )
    state = ServerState.fresh(Clusters(params, K, R, body, overall), clients, flows=draw(st.booleans()))
    more = {f"extra/{i}": draw(arrays(K, R, clients)) for i in range(draw(st.integers(0, 4)))}
    return state.with_arrays(more).with_values(choice=torch.randint(-1, K, (clients, R), generator=random))


@st.composite
def events(draw: st.DrawFn, state: ServerState) -> RegroupEvent:
    """Draw a mixture of splits, merges, removals and newborn clusters, hard or soft."""
    K, clients = state.clusters.K, [f"c{i}" for i in range(len(state.choice))]
    parents = st.lists(st.integers(0, K - 1), max_size=3, unique=True)
    new = [tuple(one) for one in draw(st.lists(parents, min_size=1, max_size=5))]
    homes = draw(st.lists(st.integers(-1, len(new) - 1), min_size=len(clients), max_size=len(clients)))
    members = [tuple(c for c, home in zip(clients, homes, strict=True) if home == j) for j in range(len(new))]
    made = [NewCluster(one, "average", inside) for one, inside in zip(new, members, strict=True)]
    sizes = torch.tensor(draw(st.lists(st.integers(0, 4), min_size=K, max_size=K)))
    return RegroupEvent(Regroup(tuple(made), hard=draw(st.booleans())), clients, sizes)


def slowly_regrouped(array: StateArray, event: RegroupEvent) -> np.ndarray:
    """Return the array after a regroup, computed entry by entry."""
    axes, old, new = array.axes, array.value.numpy(), event.regroup.clusters
    at = axes.index("cluster") if "cluster" in axes else None
    shape = [len(new) if dim == at else length for dim, length in enumerate(old.shape)]
    after = np.zeros(shape, dtype=old.dtype)
    for place in itertools.product(*map(range, shape)):
        after[place] = _entry(array, event, place)
    return after


def _entry(array: StateArray, event: RegroupEvent, place: tuple[int, ...]) -> float:
    axes, old, new, rule = array.axes, array.value.numpy(), event.regroup.clusters, array.rule
    client = event.clients[place[axes.index("client")]] if "client" in axes else None
    home = next((j for j, one in enumerate(new) if client in (one.members or ())), None) if event.regroup.hard else None
    if rule == Unchanged():
        return old[place]
    if rule == Reset():
        return 0
    if rule == ClusterNumber():
        first = next((j for j, one in enumerate(new) if old[place] in one.parents), -1)
        return first if home is None else home
    at = axes.index("cluster")
    j = place[at]

    def before(k: int) -> float:
        return float(old[(*place[:at], k, *place[at + 1 :])])

    if rule == ShareByMember() and home is not None:
        return sum(before(k) for k in range(event.old)) if home == j else 0.0
    if rule in (Share(), ShareByMember()):
        return sum(before(k) / sum(k in one.parents for one in new) for k in new[j].parents)
    assert isinstance(rule, Inherit)
    if not new[j].parents:
        return rule.newborn
    counts = [int(event.sizes[k]) for k in new[j].parents]
    counts = counts if sum(counts) else [1] * len(counts)
    return sum(n * before(k) for n, k in zip(counts, new[j].parents, strict=True)) / sum(counts)
