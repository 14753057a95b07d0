"""Sentences about the privacy of a run: what the server saw and what the guarantee covers, from its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.methods.base import Method
from coterie.privacy.mechanism import response_probability
from coterie.report.formats import plain

SIMULATED = (
    "If clients add noise to their replies, a federation does not ask for these figures; this simulation computed them "
    "from the data. Epsilon covers neither them nor the clusters of single clients on this page."
)
TRUSTED = (
    "Epsilon is about the models: this page, the records and the checkpoints show single clients as they are and stay "
    "with the server."
)


def server_saw(method: Method, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the values that the server saw of each client in the rounds."""
    rows = dict(method.reveals())
    if not method.trains:
        return rows
    if config.get("privacy") is None:
        return {"update": method.tiers().seen() if method.exchanges else "nothing: no model travels", **rows}
    clip, noise = config["privacy_clip"], config["privacy_noise"]
    if config["privacy"] == "central":
        return {"update": f"{method.tiers().seen()}. The change is cut to length {plain(clip)}", **rows}
    sd = plain(clip * noise)
    hidden = f"cut to length {plain(clip)}, with noise of standard deviation {sd} on every parameter"
    changes = {"change": f"{rows['change']}, {hidden}"} if "change" in rows else {}
    saw = {**rows, **changes, "update": f"the change of the model it trained, {hidden}; no loss is sent"}
    if "privacy_choice" in config:
        K, epsilon = int(config["clusters"]), config["privacy_choice"]
        share = f"{100 * response_probability(epsilon, K):.0f} % of the times"
        saw["cluster"] = (
            f"a cluster that is in {share} the one it chose, else any other (epsilon {plain(epsilon)} a round)"
        )
    return saw | {"samples": "n_i, as it is"}


def guarantee(config: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """Return a sentence with epsilon and delta; empty for a run that is not private."""
    if "epsilon" not in metrics:
        return ""
    who = "what it sends hides" if config["privacy"] == "local" else "the models hide"
    return (
        f"Differential privacy, {config['privacy']}: {who} a client's whole data with epsilon "
        f"{plain(metrics['epsilon'])} at delta {metrics['delta']:g}, for the client that was asked most often."
    )


def beyond(config: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """Return the limits of the guarantee in words; empty for a run that is not private."""
    if "epsilon" not in metrics:
        return ""
    return SIMULATED if config["privacy"] == "local" else TRUSTED
