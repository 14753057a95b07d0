"""Mixed regression in two phases: Su, Xu, Yang 2022."""

from __future__ import annotations

from papers.su_xu_yang.mixed_regression import REPRODUCTIONS

__all__ = ["REPRODUCTIONS"]
