"""Tier 2: how clients are assigned to clusters, and what they compute in a round. Importing it registers them."""

from coterie.tiers.assignment.assigned import Assigned
from coterie.tiers.assignment.base import AssignmentRule, best
from coterie.tiers.assignment.em_mixture import EMMixture
from coterie.tiers.assignment.lowest_loss import Choosing, LowestLoss, SingleCluster, SoftmaxLoss
from coterie.tiers.assignment.nearest_parameters import NearestParameters
from coterie.tiers.assignment.personal import CountShares, PersonalEM, PersonalModels

__all__ = [
    "Assigned",
    "AssignmentRule",
    "Choosing",
    "CountShares",
    "EMMixture",
    "LowestLoss",
    "NearestParameters",
    "PersonalEM",
    "PersonalModels",
    "SingleCluster",
    "SoftmaxLoss",
    "best",
]
