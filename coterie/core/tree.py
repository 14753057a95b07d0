"""The splits of a run, in order, so that somebody who comes later can find its way to a cluster. (CFL)"""

from __future__ import annotations

import torch

from coterie.core.clusters import Clusters, Params, flat
from coterie.core.regroup import Regroup


def with_splits(tree: Params, regroup: Regroup, before: Clusters, after: Clusters) -> Params:
    """The tree with the splits of this regroup, one row each, {name: (S, ...)}.

    cluster, second: the number of the cluster, which its first part keeps, and that of its second part. model (S, P):
    what its members were sent, as in `before`. updates (S, 2, P): what the members of each part made of it in the mean.
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
    return {name: torch.cat([tree[name], row]) if tree else row for name, row in rows.items()}
