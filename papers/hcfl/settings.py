"""Settings of the paper where Coterie's own defaults differ."""

from __future__ import annotations

from collections.abc import Mapping

MIXTURES = ("fedem", "fedrc")
"""Backbones whose clients are mixtures; the paper averages their models over all clients."""

RANDOM_STARTS = ("fedem", "fedrc", "fedgmm", "fesem")
"""Methods that Coterie starts from the clients' own solutions by default, where the papers draw the models."""


def of_the_paper(method: str, options: Mapping[str, object]) -> dict[str, object]:
    """Return the options of a run with the paper's settings filled in.

    These are heads before the body, averaging over all clients, random first models and no grace period.
    """
    filled: dict[str, object] = {}
    backbone = options.get("backbone", "fedrc" if method.startswith("hcfl") else method)
    if backbone in MIXTURES or (method == "tiered" and str(options.get("assignment")).startswith("em-mixture")):
        filled["averaging"] = "all"
    if method in RANDOM_STARTS:
        filled["init"] = "random"
    if method.startswith("hcfl"):
        filled["backbone"] = backbone
    if method == "hcfl+":
        filled |= {"rho": 0.3, "grace": 0, "order": "heads-first"}
    return filled | dict(options)
