"""Checks for differential privacy: it requires rounds in which clients send one model change and their cluster only."""

from __future__ import annotations

from coterie.client.interfaces import Distance, Objective
from coterie.client.round import ClientAlgorithm, RoundSettings
from coterie.core.clusters import Clusters
from coterie.errors import ConfigError


def why_not_private(objective: Objective, assignment: ClientAlgorithm, distance: Distance | None) -> str | None:
    """Return the reason why a round cannot be private, or None if it can.

    Args:
        objective: Tier 1 of the method.
        assignment: Tier 2 of the method.
        distance: Tier 4 of the method.
    """
    if assignment.not_private:
        return f"with assignment {assignment.name} clients send {assignment.not_private}, to which no noise is added"
    if objective.counts:
        return f"with the objective {objective.name} clients send counts or moments, to which no noise is added"
    if distance is not None and distance.needs != "updates":
        return f"for the distance {distance.name} clients send facts about their data, to which no noise is added"
    return None


def check_private_round(settings: RoundSettings, assignment: ClientAlgorithm, clusters: Clusters) -> None:
    """Check that the replies of a private round reveal nothing that is not protected by noise.

    Clients make this check themselves, so that they need not trust the server.

    Raises:
        ConfigError: if replies would reveal more.
    """
    privacy = settings.privacy
    if privacy is None:
        return
    why = why_not_private(settings.objective, assignment, settings.distance)
    if why is None and (clusters.restarts > 1 or clusters.shared or clusters.overall):
        why = "clients would also send changes of several restarts, a shared body or an overall model, without noise"
    reveals_choice = clusters.K > 1 and not assignment.assigned
    if why is None and privacy.local and privacy.choice is None and reveals_choice:
        why = "clients would send the cluster they chose without randomisation"
    if why is not None:
        raise ConfigError(
            f"this round cannot be made private, since {why}: choose a method and options that support privacy"
        )
