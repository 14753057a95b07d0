"""Callbacks for `coterie.fit`: trackers, early stopping, and the base class of user-defined callbacks."""

from coterie.training.callbacks import (
    Callback,
    CSVLogger,
    EarlyStopping,
    Lambda,
    MLflow,
    Outcome,
    Session,
    TensorBoard,
    Tracker,
    TrackerWarning,
    TrainingRun,
    WandB,
    tracker_from_text,
)

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
