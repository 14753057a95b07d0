"""Federated learning methods as typed values: one file for each paper. Every method passes the check suite."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from coterie.learners.local_training import FullBatch, LocalTraining, MiniBatch
from coterie.learners.optimizers import SGD, Adam, AdamW
from coterie.learners.schedules import Constant, Cosine, ExponentialDecay, StepDecay
from coterie.methods.auto_init import AutoInit
from coterie.methods.base import Method, TieredMethod, find_method
from coterie.methods.cfl import CFL
from coterie.methods.fedamp import FedAMP
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedem import FedEM
from coterie.methods.fedgmm import FedGMM
from coterie.methods.fedgroup import FedGroup
from coterie.methods.fedprox import FedProx
from coterie.methods.fedrc import FedRC
from coterie.methods.fedsoft import FedSoft
from coterie.methods.fesem import FeSEM
from coterie.methods.flexcfl import FlexCFL
from coterie.methods.hcfl import HCFL, HCFLSplit
from coterie.methods.hcfl_plus import HCFLPlus
from coterie.methods.icfl import ICFL
from coterie.methods.ifca import IFCA
from coterie.methods.ifca_momentum import IFCAMomentum
from coterie.methods.initializers import GaussianInit, NearTruth, RandomInit
from coterie.methods.linear_heads import LinearHeads, LinearHeadsFound
from coterie.methods.local import Local
from coterie.methods.moment_descent import MomentDescent
from coterie.methods.odcl import ODCL
from coterie.methods.one_shot import OneShot
from coterie.methods.one_shot_yardsticks import ClusterOracle, LocalERM, NaiveAveraging, OracleAveraging
from coterie.methods.oracle import Oracle
from coterie.methods.pacfl import PACFL
from coterie.methods.round import Step
from coterie.methods.run import FirstModels, Initial, Initializer, Run
from coterie.methods.stocfl import StoCFL
from coterie.methods.tiered import Tiered
from coterie.methods.two_phase import TwoPhase
from coterie.server.averaging import Averaging
from coterie.server.optimizers import ServerAdam, ServerOptimizer, ServerSGD, ServerYogi
from coterie.tiers.composition import Tiers

__all__ = [
    "CFL",
    "HCFL",
    "ICFL",
    "IFCA",
    "ODCL",
    "PACFL",
    "SGD",
    "Adam",
    "AdamW",
    "AutoInit",
    "Averaging",
    "ClusterOracle",
    "Constant",
    "Cosine",
    "ExponentialDecay",
    "FeSEM",
    "FedAMP",
    "FedAvg",
    "FedEM",
    "FedGMM",
    "FedGroup",
    "FedProx",
    "FedRC",
    "FedSoft",
    "FirstModels",
    "FlexCFL",
    "FullBatch",
    "GaussianInit",
    "HCFLPlus",
    "HCFLSplit",
    "IFCAMomentum",
    "Initial",
    "Initializer",
    "LinearHeads",
    "LinearHeadsFound",
    "Local",
    "LocalERM",
    "LocalTraining",
    "Method",
    "MiniBatch",
    "MomentDescent",
    "NaiveAveraging",
    "NearTruth",
    "OneShot",
    "Oracle",
    "OracleAveraging",
    "RandomInit",
    "Run",
    "ServerAdam",
    "ServerOptimizer",
    "ServerSGD",
    "ServerYogi",
    "Step",
    "StepDecay",
    "StoCFL",
    "Tiered",
    "TieredMethod",
    "Tiers",
    "TwoPhase",
    "find_method",
]

for _module in iter_modules(__path__):  # so that a new file in this package needs no entry above
    import_module(f"{__name__}.{_module.name}")
