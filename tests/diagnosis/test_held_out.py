"""Cross-validated losses against fits with scikit-learn and NumPy that leave out the same samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.client.own_models import FOLDS, nearby_models
from coterie.client.tasks import CrossValidateAlone
from coterie.core.clusters import Clusters
from coterie.core.messages import Broadcast
from coterie.data import from_arrays
from coterie.diagnosis.diagnose import diagnose, diagnose_clients, federation_of
from coterie.diagnosis.held_out import HeldOut, cross_validate
from coterie.diagnosis.pooled import Pooled, model_arrays, pooled_fit
from coterie.diagnosis.session import Session
from coterie.diagnosis.shift import ask_scores
from coterie.diagnosis.structure import Differences, ask_differences, find_structure
from tests.diagnosis.make import federation

SEED = 5


def measured(data, rejects: bool = True) -> tuple[HeldOut, Pooled, Differences]:
    session = Session.of(federation_of(data, SEED))
    pooled = pooled_fit(session, data.profile, SEED)
    differences = ask_differences(session, pooled, ask_scores(session, pooled, SEED), SEED)
    found = find_structure(differences, rejects, SEED)
    return cross_validate(session, pooled, differences, found, SEED), pooled, differences


def folds_of(data, pooled: Pooled, differences: Differences) -> list[np.ndarray]:
    """Return the folds of the samples of each client."""
    common = {**model_arrays(pooled), "directions": differences.directions}
    broadcast = Broadcast(-1, Clusters({}, K=1), common=common, scalars=pooled.scalars)
    folds = [np.zeros(0)] * len(data.clients)
    for models, fold in nearby_models(data.train, broadcast, SEED):
        for row, place in enumerate(models.samples.block.positions):
            folds[place] = fold[row][fold[row] >= 0].numpy()
    return folds


def test_losses_of_a_regression_are_those_of_least_squares_without_the_fold():
    """Two clear groups, so that every client with samples outside the fold chooses its true one."""
    data = federation(groups=2, clients=16).compact()
    found, pooled, differences = measured(data)
    folds = folds_of(data, pooled, differences)
    owner = np.repeat(np.arange(16), data.train.sizes)
    x = np.column_stack([np.ones(len(owner)), data.train.x.numpy()])
    y, fold, group = data.train.y.numpy(), np.concatenate(folds), data.truth[owner]

    def missed(members: np.ndarray) -> np.ndarray:
        left = np.zeros(len(y))
        for f in range(FOLDS):
            fit, rest = members & (fold != f), members & (fold == f)
            left[rest] = y[rest] - x[rest] @ np.linalg.lstsq(x[fit], y[fit], rcond=None)[0]
        return left**2 / 2 / pooled.scalars["y_scale"] ** 2

    everyone = np.ones(len(y), dtype=bool)
    one = np.bincount(owner, missed(everyone))
    groups = np.bincount(owner, missed(group == 0) + missed(group == 1))
    alone = np.bincount(owner, sum(missed(owner == i) for i in range(1, 16)))  # the first client has one sample
    assert found.groups is not None
    assert found.one == pytest.approx(one, rel=0.02)
    assert found.groups[1:] == pytest.approx(groups[1:], rel=0.03)
    assert found.local[1:].sum() == pytest.approx(alone[1:].sum(), rel=0.1)  # a prior of one sample
    assert found.personal.sum() < found.one.sum()


def test_one_model_of_two_classes_is_logistic_regression_without_the_fold():
    from sklearn.linear_model import LogisticRegression

    data = federation(2, distance=0, clients=12).compact()
    found, pooled, differences = measured(data, rejects=False)
    assert found.groups is None
    fold, owner = np.concatenate(folds_of(data, pooled, differences)), np.repeat(np.arange(12), data.train.sizes)
    x, y, loss = data.train.x.numpy(), data.train.y.numpy(), np.zeros(len(owner))
    for f in range(FOLDS):
        fit = LogisticRegression(C=1e3).fit(x[fold != f], y[fold != f])
        p = fit.predict_proba(x[fold == f])
        loss[fold == f] = -np.log(p[np.arange(len(p)), y[fold == f]])
    assert found.one.sum() == pytest.approx(loss.sum(), rel=0.01)


def test_a_diagnosis_without_groups_measures_what_they_would_gain_only_if_they_may_exist():
    alike = diagnose(federation(distance=0, seed=1)).gain
    assert (alike.clusters, alike.over_one.value, alike.over_one.low, alike.over_one.high) == (None, 0, 0, 0)
    assert alike.over_local.value > 0
    groups = diagnose(federation(groups=2)).gain
    assert groups.clusters == 2
    assert groups.personal is not None
    assert groups.personal.value < groups.over_one.value
    assert groups.most_over_one >= groups.over_one.high
    smooth = diagnose(federation(smooth=True, clients=40)).gain
    assert smooth.clusters is None  # five points imitate a spread along one direction


def test_the_gain_of_single_clients_that_deviate_is_not_that_of_groups():
    """One client of 24 has opposite coefficients: no group, and so nothing that a model for each group could gain."""
    data = federation(distance=0, seed=2)
    x, y = data.train.x.clone(), data.train.y.clone()
    start = int(data.train.starts[5])
    rows = slice(start, start + int(data.train.sizes[5]))
    y[rows] = 4 - y[rows]
    ends = np.cumsum(data.train.sizes)[:-1]
    parts = zip(np.split(x.numpy(), ends), np.split(y.numpy(), ends), strict=True)
    found = diagnose(from_arrays(list(parts)))
    assert found.shift.model.rejects
    assert found.structure.kind != "groups"
    assert found.gain.clusters is None
    assert torch.isfinite(torch.tensor(found.gain.over_local.value))


def test_a_client_that_falls_silent_during_cross_validation_is_left_out_of_the_gain():
    """Its row in the table of clients stays, since its groups were found before."""

    class Losing:
        def __init__(self, inner):
            self.inner, self.clients, self.sizes = inner, inner.clients, inner.sizes

        def ask(self, task, sent, clients):
            if isinstance(task, CrossValidateAlone):
                clients = clients[clients != 3]
            return self.inner.ask(task, sent, clients)

    data = federation(2, groups=2).compact()
    whole = diagnose(data)
    found = diagnose_clients(Losing(federation_of(data, 0)), data, 0)
    assert [client.id for client in found.clients] == [client.id for client in whole.clients]
    assert any(data.clients[3] in warning for warning in found.warnings)
    assert found.facts.clients == 24
    assert found.gain.over_one.value == pytest.approx(whole.gain.over_one.value, rel=0.3)
    assert found.gain.over_one.value != whole.gain.over_one.value
