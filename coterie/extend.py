"""Building blocks for user-defined methods, client tasks and tier members; see docs/extending.md.

The base classes of methods are in `coterie.methods`, of tier members in `coterie.tiers`, of optimizers in
`coterie.learners`, and of callbacks in `coterie.callbacks`.
"""

from coterie.client.group import ClientGroup
from coterie.client.round import ClientRound
from coterie.client.solvers import LocalSteps
from coterie.client.tasks.local_solve import LocalSolve
from coterie.client.tasks.score import Score
from coterie.core.blocks import Block, cut
from coterie.core.clusters import Clusters, Params, flat, unflat
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.federation import Replies, positions_of
from coterie.core.keys import Purpose, keys_for_clients
from coterie.core.messages import Broadcast, Reply
from coterie.core.regroup import NewCluster, Regroup
from coterie.core.shard import Positions
from coterie.core.state import UNKNOWN, ServerState
from coterie.core.state_array import Inherit, RegroupEvent, RegroupRule, Reset, Share, StateArray, Unchanged
from coterie.core.task import Task
from coterie.methods.exchanges import Cost, ask_all
from coterie.methods.groups import FoundGroups, OneModelEach, SingleGroup, TrueGroups
from coterie.methods.round import finished_round, participants
from coterie.options import Auto, Option, OptionGroup, option
from coterie.server.clustering.agglomerate import agglomerate
from coterie.server.clustering.choose import ClusterSettings, cluster_points
from coterie.tiers.assignment.lowest_loss import Choosing
from coterie.tiers.view import View

__all__ = [
    "UNKNOWN",
    "Auto",
    "Block",
    "Broadcast",
    "Choosing",
    "ClientGroup",
    "ClientRound",
    "ClusterSettings",
    "Clusters",
    "Cost",
    "Expected",
    "FoundGroups",
    "Inherit",
    "LocalSolve",
    "LocalSteps",
    "NewCluster",
    "OneModelEach",
    "Option",
    "OptionGroup",
    "Params",
    "Positions",
    "Purpose",
    "Regroup",
    "RegroupEvent",
    "RegroupRule",
    "Replies",
    "Reply",
    "Reset",
    "RunFacts",
    "Score",
    "ServerState",
    "Share",
    "SingleGroup",
    "Spec",
    "StateArray",
    "Task",
    "TrueGroups",
    "Unchanged",
    "View",
    "agglomerate",
    "ask_all",
    "cluster_points",
    "cut",
    "finished_round",
    "flat",
    "keys_for_clients",
    "option",
    "participants",
    "positions_of",
    "unflat",
]
