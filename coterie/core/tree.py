"""The splits of a run in order, by which a newcomer finds its cluster. (CFL)"""

from __future__ import annotations

import torch

from coterie.core.clusters import Clusters, Params, flat
from coterie.core.regroup import Regroup
from coterie.core.state_array import StateArray


def with_splits(tree: Params, regroup: Regroup, before: Clusters, after: Clusters) -> dict[str, StateArray]:
    """Return the tree with the splits of this regroup added, one row for each split.

    The arrays of S splits are `cluster` and `second` (S,), the number of the cluster that was split, which its first
    part keeps, and the number of its second part; `model` (S, P), the model that the members received; and `updates`
    (S, 2, P), the mean change that the members of each part made to it. They record history: numbers of clusters are
    those at the time of the split, so no later regroup changes them.

    Args:
        tree: The splits so far; empty before the first regroup.
        regroup: The regroup, in which every cluster keeps its number or becomes two.
        before: The models that clients received in this round.
        after: The models after the regroup.
    """
    children = [[c for c, new in enumerate(regroup.clusters) if new.parents == (k,)] for k in range(before.K)]
    split = [k for k, parts in enumerate(children) if len(parts) == 2]
    pairs = torch.tensor([children[k] for k in split], dtype=torch.int64).reshape(-1, 2)
    sent, made = flat(before.params).cpu()[split], flat(after.params).cpu()
    rows = {
        "cluster": torch.tensor(split, dtype=torch.int64),
        "second": pairs[:, 1],
        "model": sent,
        "updates": made[pairs] - sent[:, None],
    }
    grown = {name: torch.cat([tree[name], row]) if tree else row for name, row in rows.items()}
    return {name: StateArray(value, (None,) * value.dim()) for name, value in grown.items()}
