"""Which rounds can be made private: those in which clients send the change of one model and their cluster only."""

from __future__ import annotations

from coterie.client.interfaces import Distance, Objective
from coterie.client.round import ClientAlgorithm, RoundSettings
from coterie.core.clusters import Clusters
from coterie.errors import ConfigError


def why_not_private(objective: Objective, assignment: ClientAlgorithm, distance: Distance | None) -> str | None:
    """Return what clients would send in addition to the change of one model and a cluster; None: nothing."""
    if assignment.not_private:
        return f"with assignment {assignment.name} clients send {assignment.not_private}, for which there is no noise"
    if objective.counts:
        return f"with the objective {objective.name} clients send counts or moments, for which there is no noise"
    if distance is not None and distance.needs != "updates":
        return f"for the distance {distance.name} clients send facts about their data, for which there is no noise"
    return None


def check_private_round(settings: RoundSettings, assignment: ClientAlgorithm, clusters: Clusters) -> None:
    """Refuse a private round whose replies would reveal more than is made private, whoever asks for it.

    Raises:
        ConfigError: if they would.
    """
    privacy = settings.privacy
    if privacy is None:
        return
    why = why_not_private(settings.objective, assignment, settings.distance)
    if why is None and (clusters.restarts > 1 or clusters.shared or clusters.overall):
        why = "several starts, a shared body or an overall model would be trained as well, for which there is no noise"
    reveals_choice = clusters.K > 1 and not assignment.assigned
    if why is None and privacy.local and privacy.choice is None and reveals_choice:
        why = "clients would say which cluster they chose as it is"
    if why is not None:
        raise ConfigError(f"this round cannot be made private: {why}")
