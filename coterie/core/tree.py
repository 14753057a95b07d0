"""Tree of all splits of a run, by which CFL assigns a newcomer to a cluster."""

from __future__ import annotations

import torch

from coterie.core.clusters import Clusters, Params, flat
from coterie.core.regroup import Regroup
from coterie.core.state_array import StateArray


def with_splits(tree: Params, regroup: Regroup, before: Clusters, after: Clusters) -> dict[str, StateArray]:
    """Return the tree with one row added for each split of a regroup.

    The tree of S splits consists of these arrays:

    - `cluster` (S,): number of the cluster that was split, which is also the number of its first part;
    - `second` (S,): number of the second part;
    - `model` (S, P): model that the members received;
    - `updates` (S, 2, P): mean change of this model by the members of each part.

    Cluster numbers are those at the time of the split; later regroups do not change them.

    Args:
        tree: Splits so far; empty before the first regroup.
        regroup: Regroup in which every cluster keeps its number or is split in two.
        before: Models that the clients received in this round.
        after: Models after the regroup.
    """
    children = [[c for c, new in enumerate(regroup.clusters) if new.parents == (k,)] for k in range(before.K)]
    split = [k for k, parts in enumerate(children) if len(parts) == 2]
    pairs = torch.tensor([children[k] for k in split], dtype=torch.int64).reshape(-1, 2)
    sent, new = flat(before.params).cpu()[split], flat(after.params).cpu()
    rows = {
        "cluster": torch.tensor(split, dtype=torch.int64),
        "second": pairs[:, 1],
        "model": sent,
        "updates": new[pairs] - sent[:, None],
    }
    grown = {name: torch.cat([tree[name], row]) if tree else row for name, row in rows.items()}
    return {name: StateArray(value, (None,) * value.dim()) for name, value in grown.items()}
