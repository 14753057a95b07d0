"""Client tasks, one file each; importing this package registers all of them."""

from coterie.client.tasks.anchor_step import AnchorStep
from coterie.client.tasks.compare import Compare
from coterie.client.tasks.cross_validate_alone import CrossValidateAlone
from coterie.client.tasks.cross_validate_groups import CrossValidateGroups
from coterie.client.tasks.curvature import Curvature
from coterie.client.tasks.diagnosis_moments import DiagnosisMoments
from coterie.client.tasks.evaluate import Evaluate
from coterie.client.tasks.feature_means import FeatureMeans
from coterie.client.tasks.feature_products import FeatureProducts
from coterie.client.tasks.feature_spread import FeatureSpread
from coterie.client.tasks.fine_tune import FineTune
from coterie.client.tasks.group_sums import GroupSums
from coterie.client.tasks.half_losses import HalfLosses
from coterie.client.tasks.half_summaries import HalfSummaries
from coterie.client.tasks.half_update import HalfUpdate
from coterie.client.tasks.held_out_choice import HeldOutChoice
from coterie.client.tasks.local_round import LocalRound
from coterie.client.tasks.local_solve import LocalSolve
from coterie.client.tasks.mixture_weights import MixtureWeights
from coterie.client.tasks.moment_product import MomentProduct
from coterie.client.tasks.onboarding import Onboarding
from coterie.client.tasks.pooled_newton import PooledNewton
from coterie.client.tasks.range_test import RangeTest
from coterie.client.tasks.regression_meats import RegressionMeats
from coterie.client.tasks.regression_moments import RegressionMoments
from coterie.client.tasks.score import Score
from coterie.client.tasks.score_rows import ScoreRows
from coterie.client.tasks.shift_draws import ShiftDraws
from coterie.client.tasks.shift_scores import ShiftScores
from coterie.client.tasks.site_moments import SiteMoments
from coterie.client.tasks.site_scores import SiteScores
from coterie.client.tasks.summary import Summary

__all__ = [
    "AnchorStep",
    "Compare",
    "CrossValidateAlone",
    "CrossValidateGroups",
    "Curvature",
    "DiagnosisMoments",
    "Evaluate",
    "FeatureMeans",
    "FeatureProducts",
    "FeatureSpread",
    "FineTune",
    "GroupSums",
    "HalfLosses",
    "HalfSummaries",
    "HalfUpdate",
    "HeldOutChoice",
    "LocalRound",
    "LocalSolve",
    "MixtureWeights",
    "MomentProduct",
    "Onboarding",
    "PooledNewton",
    "RangeTest",
    "RegressionMeats",
    "RegressionMoments",
    "Score",
    "ScoreRows",
    "ShiftDraws",
    "ShiftScores",
    "SiteMoments",
    "SiteScores",
    "Summary",
]
