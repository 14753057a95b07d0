"""The diagnosis of a federation: tests, groups and a recommendation from a few exchanges."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

from coterie.client.group import ClientGroup
from coterie.core.dataset import ClientDirectory, FederatedDataset
from coterie.core.federation import Federation
from coterie.diagnosis.advice import Learned, recommend, tuning_steps
from coterie.diagnosis.consequences import client_rows, find_gain, find_power
from coterie.diagnosis.held_out import cross_validate
from coterie.diagnosis.pooled import Pooled, pooled_fit
from coterie.diagnosis.session import Session
from coterie.diagnosis.shift import ask_scores, find_shift, model_differs, without_hidden_slopes
from coterie.diagnosis.structure import ask_differences, find_structure
from coterie.diagnosis.values import Cost, DataFacts, Diagnosis
from coterie.engines.remote import RemoteClients
from coterie.engines.simulated import Simulated
from coterie.errors import ConfigError
from coterie.evaluate.baselines import PERFECT_LOSS, PERFECT_R2
from coterie.learners import make_learner
from coterie.methods.fedavg import FedAvg
from coterie.methods.settings import RunSettings

FEWEST_CLIENTS = 4


def diagnose(data: ClientDirectory, *, seed: int = 0, network: bool = True) -> Diagnosis:
    """Test whether the clients differ and whether they form groups, and recommend a method, before training.

    Clients send sums, and rows with scores, small matrices and losses. A linear model, or a logistic model for classes,
    of the principal components of the features stands for the model that will be trained.

    Args:
        data: The clients, simulated or remote.
        seed: Seed of the random signs and of the search for groups.
        network: Whether a neural network may be trained; otherwise methods that need one are not recommended.

    Returns:
        The diagnosis; `to_json` gives all of it.

    Raises:
        ConfigError: if there are fewer than four clients.
        InputError: if all targets are the same.
        TrainingError: if no client answers.

    Example:
        >>> import coterie
        >>> data = coterie.scenario("mixed-regression", clients=20)
        >>> diagnose(data).structure.kind
        'groups'
    """
    if not isinstance(data, ClientDirectory):
        raise ConfigError(f"expected the result of from_table, from_arrays or scenario, got {type(data).__name__}")
    data = data.compact()
    if len(data.clients) < FEWEST_CLIENTS:
        raise ConfigError(
            f"a diagnosis compares clients and needs at least {FEWEST_CLIENTS} of them, got {len(data.clients)}: "
            "check the client column"
        )
    return diagnose_clients(federation_of(data, seed), data, seed, network)


def diagnose_clients(federation: Federation, data: ClientDirectory, seed: int, network: bool = True) -> Diagnosis:
    """Return the diagnosis of clients that can be asked; see `diagnose`.

    Args:
        federation: The clients.
        data: Description of the clients.
        seed: Seed of the random signs and of the search for groups.
        network: Whether a neural network may be trained.
    """
    began = time.perf_counter()
    session = Session.of(federation)
    pooled = pooled_fit(session, data.profile, seed)
    scores = ask_scores(session, pooled, seed)
    shift = find_shift(scores, pooled, data.schema.target, seed)
    differences = ask_differences(session, pooled, scores, seed)
    found = find_structure(differences, model_differs(shift), seed)
    power = find_power(found, differences, pooled, shift.model.unit)
    facts = _facts(data, pooled, session)
    clients = client_rows(session.ids, found, differences, pooled, session.sizes.astype(np.float64))
    gain = find_gain(cross_validate(session, pooled, differences, found, seed), found, scores, pooled, seed)
    steps = tuning_steps(shift, gain, facts)
    if pooled.classes is None:
        shift = without_hidden_slopes(shift, max(0.0, gain.one_model - gain.over_one.value))
    return Diagnosis(
        facts=facts,
        shift=shift,
        structure=found.structure,
        power=power,
        gain=gain,
        clients=clients,
        recommendation=recommend(shift, found.structure, power, gain, _learned(pooled, network), steps=steps),
        warnings=_warnings(pooled, session),
        cost=Cost(session.exchanges, session.bytes_up, session.bytes_down, time.perf_counter() - began),
        seed=seed,
    )


def federation_of(data: ClientDirectory, seed: int) -> Federation:
    """Return the clients as a federation: simulated with a linear or logistic learner, or remote."""
    name = "linear" if data.profile.classes is None else "logistic"
    learner = make_learner(name, data.profile)
    if isinstance(data, RemoteClients):
        return data.connect(RunSettings(learner=learner.spec, seed=seed, dtype="float64"), FedAvg().tiers())
    if not isinstance(data, FederatedDataset):
        raise ConfigError(
            f"the clients of {type(data).__name__} cannot be asked: use from_table, from_arrays or Flower"
        )
    group = ClientGroup.of(data, learner, torch.float64, torch.device("cpu"), None, seed, keeps=False)
    return Simulated(group)


def _learned(pooled: Pooled, network: bool) -> Learned:
    """Return the kind of model that suits the data."""
    if pooled.classes is None:
        return "regression"
    return "network" if network and pooled.summarised else "logistic"


def _facts(data: ClientDirectory, pooled: Pooled, session: Session) -> DataFacts:
    sizes, classes = session.sizes, data.profile.classes
    model = "a linear model" if classes is None else "a logistic model"
    used = f"{pooled.components} principal components of the features" if pooled.summarised else "the features"
    table = data.options.get("table")
    return DataFacts(
        f"table {Path(str(table)).name}" if table else data.name,
        len(sizes),
        int(sizes.sum()),
        int(sizes.min()),
        float(np.median(sizes)),
        int(sizes.max()),
        int(np.prod(data.profile.features)),
        classes,
        data.schema.target,
        f"{model} of {used}",
        pooled.score,
    )


def _warnings(pooled: Pooled, session: Session) -> tuple[str, ...]:
    found = []
    perfect = PERFECT_LOSS if pooled.classes is not None else 1 - PERFECT_R2
    if pooled.score < perfect * pooled.null_score:
        found.append(
            "One model for all clients predicts the target almost without error: a feature probably contains the "
            "target or was computed from it. Leave that feature out; otherwise this diagnosis means little."
        )
    if session.silent:
        names = ", ".join(session.silent[:5]) + (", ..." if len(session.silent) > 5 else "")
        found.append(f"Clients that did not answer are left out: {names}.")
    if pooled.summarised:
        found.append(
            f"The {pooled.summarised} features were summarised by {pooled.components} principal components; "
            "differences in other directions are not seen."
        )
    few = int((session.sizes < 2).sum())
    if few:
        clients = "1 client has" if few == 1 else f"{few} clients have"
        found.append(f"{clients} a single sample, which enters the pooled model but no test.")
    return tuple(found)
