"""Mixed regression in two phases: Su, Xu, Yang 2022."""

from __future__ import annotations

from papers.su_xu_yang import mixed_regression, starts

REPRODUCTIONS = (*mixed_regression.REPRODUCTIONS, *starts.REPRODUCTIONS)
