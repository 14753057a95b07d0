"""The base class of tier 2: a client algorithm, and the server's half of it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from coterie.client.interfaces import Objective
from coterie.client.round import ClientAlgorithm
from coterie.core.regroup import Changes
from coterie.server.aggregate import RoundReplies, Update, changes_of_members, mean_update, sums_of_changes

Placing = Literal["least-loss", "tree", "mixture", "density"]
"""How a client that did not train finds its models, see `coterie/evaluate/placing.py`."""


class AssignmentRule(ClientAlgorithm):
    """How clients are assigned to clusters: what they do in a round, and what the server makes of their replies.

    The server half is that of clients that are members of one cluster, unless a member of the tier overrides it.
    """

    def server_placing(self, objective: Objective) -> Placing:
        """Return how a client that did not train finds its models."""
        if not self.mixture:
            return "least-loss"
        return "density" if objective.models_features else "mixture"

    def server_changes(self, replies: RoundReplies) -> Changes:
        """Return the changes of single clients, from replies whose rows hold them."""
        return changes_of_members(replies)

    def server_aggregate(self, replies: RoundReplies) -> Update:
        """Return the mean changes of all models, from the replies of a round."""
        if "change" in replies.reply.rows:
            return mean_update(replies, sums_of_changes(replies, self.server_changes(replies)))
        return mean_update(replies, replies.reply.slotted["clusters"])


def best(scores: Tensor) -> Tensor:
    """Return the cluster of the largest score, (B, R), from scores (B, R, K); ties go to the lowest index."""
    return scores.nan_to_num(nan=-torch.inf, neginf=-torch.inf).argmax(dim=2)
