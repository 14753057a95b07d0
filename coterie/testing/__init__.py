"""The check suite: properties that every method must have, for methods here and for those of others."""

from coterie.testing.checks import CHECKS, Case, check_method, check_task, small_federation

__all__ = ["CHECKS", "Case", "check_method", "check_task", "small_federation"]
