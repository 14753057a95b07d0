"""The four choices that define a clustered method: objective, assignment, procedure, distance. (Guo, Tang, Lin 2025)

The name of a member's method starts with the side it runs on: `client_` next to the data, `server_` without it. To add
a member, derive from `Objective`, `AssignmentRule`, `ProcedureStep` or `Distance` and decorate it with
`coterie.register`.
"""

from coterie.tiers.assignment import (
    Assigned,
    AssignmentRule,
    CountShares,
    EMMixture,
    LowestLoss,
    NearestParameters,
    PersonalEM,
    SingleCluster,
    SoftmaxLoss,
)
from coterie.tiers.distance import (
    AnchorCosine,
    Distance,
    FeatureNorm,
    LabelHistogram,
    Parameters,
    PrincipalAngles,
    Prototypes,
    UpdateCosine,
)
from coterie.tiers.halves_groups import GroupByHalves
from coterie.tiers.objective import Conditional, Joint, Objective, Ratio
from coterie.tiers.procedure import (
    MergeAbove,
    Procedure,
    ProcedureStep,
    RemoveUnclaimed,
    SplitByGap,
    SplitByNorm,
    SplitBySpectrum,
)
from coterie.tiers.split_test import MergeByTest, OwnBodiesByTest, SplitByTest

__all__ = [
    "AnchorCosine",
    "Assigned",
    "AssignmentRule",
    "Conditional",
    "CountShares",
    "Distance",
    "EMMixture",
    "FeatureNorm",
    "GroupByHalves",
    "Joint",
    "LabelHistogram",
    "LowestLoss",
    "MergeAbove",
    "MergeByTest",
    "NearestParameters",
    "Objective",
    "OwnBodiesByTest",
    "Parameters",
    "PersonalEM",
    "PrincipalAngles",
    "Procedure",
    "ProcedureStep",
    "Prototypes",
    "Ratio",
    "RemoveUnclaimed",
    "SingleCluster",
    "SoftmaxLoss",
    "SplitByGap",
    "SplitByNorm",
    "SplitBySpectrum",
    "SplitByTest",
    "UpdateCosine",
]
