"""The check suite: properties that every method must have, for built-in and user-defined methods."""

from coterie.testing.checks import CHECKS, Case, check_method, check_task, small_federation

__all__ = ["CHECKS", "Case", "check_method", "check_task", "small_federation"]
