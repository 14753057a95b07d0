"""The tasks that clients know, one file each; importing this package registers all of them."""

from coterie.client.tasks.anchor_step import AnchorStep
from coterie.client.tasks.curvature import Curvature
from coterie.client.tasks.evaluate import Evaluate
from coterie.client.tasks.fine_tune import FineTune
from coterie.client.tasks.introduce import Introduce
from coterie.client.tasks.local_round import LocalRound
from coterie.client.tasks.local_solve import LocalSolve
from coterie.client.tasks.mixture_weights import MixtureWeights
from coterie.client.tasks.moment_product import MomentProduct
from coterie.client.tasks.regression_meats import RegressionMeats
from coterie.client.tasks.regression_moments import RegressionMoments
from coterie.client.tasks.score import Score
from coterie.client.tasks.summary import Summary

__all__ = [
    "AnchorStep",
    "Curvature",
    "Evaluate",
    "FineTune",
    "Introduce",
    "LocalRound",
    "LocalSolve",
    "MixtureWeights",
    "MomentProduct",
    "RegressionMeats",
    "RegressionMoments",
    "Score",
    "Summary",
]
