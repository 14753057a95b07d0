"""The base class of tier 2: a client algorithm together with its server half."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from coterie.client.interfaces import Objective
from coterie.client.round import ClientAlgorithm
from coterie.core.regroup import Changes
from coterie.server.aggregate import RoundReplies, Update, changes_of_members, mean_update, sums_of_changes

Placing = Literal["least-loss", "tree", "mixture", "density"]
"""How a client that did not train is assigned to models; see `coterie/evaluate/placing.py`."""


class AssignmentRule(ClientAlgorithm):
    """How clients are assigned to clusters: what they compute in a round, and how the server aggregates their replies.

    The default server half is for clients that are members of one cluster.

    Example:
        >>> from coterie.core.plain import from_text
        >>> from coterie.tiers import AssignmentRule
        >>> from_text(AssignmentRule, "em-mixture:mu=0.4")
        EMMixture(mu=0.4)
    """

    def server_placing(self, objective: Objective) -> Placing:
        """Return how a client that did not train is assigned to models."""
        if not self.mixture:
            return "least-loss"
        return "density" if objective.models_features else "mixture"

    def server_changes(self, replies: RoundReplies) -> Changes:
        """Return the updates of single clients, from replies that contain them as rows."""
        return changes_of_members(replies)

    def server_aggregate(self, replies: RoundReplies) -> Update:
        """Return the mean updates of all models, from the replies of a round."""
        if "change" in replies.reply.rows:
            return mean_update(replies, sums_of_changes(replies, self.server_changes(replies)))
        return mean_update(replies, replies.reply.slotted["clusters"])


def best(scores: Tensor) -> Tensor:
    """Return the cluster of the largest score, (B, R), from scores (B, R, K); ties go to the lowest index."""
    return scores.nan_to_num(nan=-torch.inf, neginf=-torch.inf).argmax(dim=2)
