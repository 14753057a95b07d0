"""Callbacks: code that runs before the first round, after every round and at the end of a training run."""

from coterie.training.callbacks.base import Callback, TrainingRun
from coterie.training.callbacks.csv_file import CSVLogger
from coterie.training.callbacks.early_stopping import EarlyStopping
from coterie.training.callbacks.functions import Lambda
from coterie.training.callbacks.mlflow import MLflow
from coterie.training.callbacks.tensorboard import TensorBoard
from coterie.training.callbacks.tracking import Outcome, Session, Tracker, TrackerWarning, tracker_from_text
from coterie.training.callbacks.wandb import WandB

__all__ = [
    "CSVLogger",
    "Callback",
    "EarlyStopping",
    "Lambda",
    "MLflow",
    "Outcome",
    "Session",
    "TensorBoard",
    "Tracker",
    "TrackerWarning",
    "TrainingRun",
    "WandB",
    "tracker_from_text",
]
