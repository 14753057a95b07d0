"""Intervals against statsmodels and against simulation; memberships and the guides of the theory by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from scipy.stats import binom

from coterie.client.group import ClientGroup
from coterie.core.clusters import Clusters
from coterie.core.dataset import Profile
from coterie.engines.in_shards import InShards
from coterie.engines.sequential import Sequential
from coterie.engines.simulated import Simulated
from coterie.errors import TrainingError
from coterie.evaluate.regression import (
    Labels,
    Meats,
    Moments,
    ask_curvature,
    coefficient_names,
    coefficients,
    design,
    floor,
    kappa,
    pooled_fits,
    regression_report,
    skewness,
)
from coterie.learners import make_learner
from tests.core.make import Samples, make_shard

EXACT = {"rtol": 1e-9, "atol": 1e-9}
D = 3
TRUE = np.array([[1.0, -1.0, 0.5], [0.0, 2.0, -0.5]])


def mixture(sizes: list[int], own: list[int], seed: int = 0) -> list[Samples]:
    """Two groups, with noise that grows with |x_0| and a shift that each client has of its own."""
    random = np.random.default_rng(seed)
    data = []
    for n, k in zip(sizes, own, strict=True):
        x = random.standard_normal((n, D))
        noise = random.standard_normal(n) * (0.3 + 0.5 * np.abs(x[:, 0])) + 0.5 * random.standard_normal()
        data.append((x, x @ TRUE[k] + noise))
    return data


def line(spec: str = "linear:bias=true", width: int = D):
    return make_learner(spec, Profile((width,), None))


def models(K: int, p: int = D, bias: bool = True, seed: int = 3) -> Clusters:
    """Models that are nowhere near least squares."""
    random = np.random.default_rng(seed)
    weight = torch.from_numpy(random.standard_normal((K, p)))
    return Clusters({"weight": weight} | ({"bias": torch.from_numpy(random.standard_normal(K))} if bias else {}), K)


def federation(data: list[Samples], spec: str = "linear:bias=true", engine=Simulated):
    shard = make_shard(data)
    return engine(ClientGroup(line(spec, shard.x.shape[1]), shard, None))


def pooled(data: list[Samples], own: list[int], k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A cluster's samples with a last column of ones, its targets, and whose they are."""
    mine = [i for i, cluster in enumerate(own) if cluster == k]
    x = np.concatenate([data[i][0] for i in mine])
    groups = np.repeat(mine, [len(data[i][1]) for i in mine])
    return np.column_stack([x, np.ones(len(x))]), np.concatenate([data[i][1] for i in mine]), groups


SIZES = [1, 30, 12, 5, 18, 1, 9, 25, 14, 3, 21, 40]
OWN = [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2]


# ---- coefficients --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [Simulated, Sequential, lambda side: InShards(side, shards=3)])
def test_standard_errors_and_intervals_are_those_of_statsmodels(engine):
    """Seven clients in cluster 0 are enough for four coefficients; three and two in the others are not."""
    data = mixture(SIZES, [k % 2 for k in OWN])
    found, fits = pooled_fits(federation(data, engine=engine), line(), models(4), torch.tensor(OWN))
    assert found.moments.clients.tolist() == [7, 3, 2, 0]
    assert found.moments.samples.tolist() == [76, 42, 61, 0]
    assert [fit.unit for fit in fits] == ["clients", "samples", "samples", ""]
    for k in range(3):
        x, y, groups = pooled(data, OWN, k)
        plain = sm.OLS(y, x).fit()
        kind = {"cov_type": "cluster", "groups": groups} if k == 0 else {"cov_type": "HC1"}
        expected = plain.get_robustcov_results(**kind, use_t=True)
        fit = fits[k]
        np.testing.assert_allclose(fit.estimate, expected.params, **EXACT)
        np.testing.assert_allclose(fit.errors, expected.bse, **EXACT)
        np.testing.assert_allclose(np.column_stack([fit.low, fit.high]), expected.conf_int(), **EXACT)
        assert fit.sigma == pytest.approx(math.sqrt(plain.mse_resid), rel=1e-9)
        assert fit.freedom == (6 if k == 0 else len(y) - 4)


def test_without_its_factor_the_sandwich_by_samples_is_hc0():
    data = mixture([20, 15], [0, 0])
    _, (fit,) = pooled_fits(federation(data), line(), models(1), torch.tensor([0, 0]))
    x, y, _ = pooled(data, [0, 0], 0)
    expected = sm.OLS(y, x).fit(cov_type="HC0").bse
    np.testing.assert_allclose(fit.errors * math.sqrt((35 - 4) / 35), expected, **EXACT)


@pytest.mark.parametrize(("clients", "unit"), [(4, "samples"), (5, "clients")])
def test_four_coefficients_need_five_clients(clients, unit):
    data = mixture([20] * clients, [0] * clients)
    assert pooled_fits(federation(data), line(), models(1), torch.zeros(clients, dtype=torch.int64))[1][0].unit == unit


def test_where_the_models_are_makes_no_difference():
    data = mixture(SIZES, [k % 2 for k in OWN])
    ours = federation(data)
    fits = [pooled_fits(ours, line(), models(3, seed=seed), torch.tensor(OWN))[1] for seed in (1, 2)]
    for one, other in zip(*fits, strict=True):
        np.testing.assert_allclose(one.low, other.low, **EXACT)
        np.testing.assert_allclose(one.high, other.high, **EXACT)


def test_a_model_that_is_not_finite_still_has_its_least_squares():
    data = mixture(SIZES, [k % 2 for k in OWN])
    broken = models(3)
    broken.params["weight"][0] = torch.nan
    fits = pooled_fits(federation(data), line(), broken, torch.tensor(OWN))[1]
    np.testing.assert_allclose(
        fits[0].low, pooled_fits(federation(data), line(), models(3), torch.tensor(OWN))[1][0].low
    )


def test_an_interval_by_hand():
    """One feature x = 1, clients with y = 0, 0 and 3 of one sample each, so the estimate is their mean, 1.

    Residuals -1, -1, 2; the meat is 1 + 1 + 4 = 6; X^T X = 3; c = 3/2 * 2/2: variance 1.5 * 6 / 9 = 1.
    t with 2 degrees of freedom at 97.5 %: 4.302653. sigma = sqrt(6 / 2).
    """
    data = [(np.ones((1, 1)), np.array([value])) for value in (0.0, 0.0, 3.0)]
    _, (fit,) = pooled_fits(
        federation(data, "linear"), line("linear", 1), models(1, 1, bias=False), torch.tensor([0, 0, 0])
    )
    assert fit.estimate.tolist() == pytest.approx([1])
    assert fit.errors.tolist() == pytest.approx([1])
    assert [fit.low[0], fit.high[0]] == pytest.approx([1 - 4.302653, 1 + 4.302653], abs=1e-6)
    assert fit.sigma == pytest.approx(math.sqrt(3))


@pytest.mark.parametrize(("clients", "each"), [(60, 10), (2, 60)], ids=["by clients", "by samples"])
def test_intervals_cover_the_truth_as_often_as_they_say(clients, each):
    """300 simulated problems are 300 clusters of one vectorised fit.

    The noise is uniform and grows with the feature, and where there are many clients, features and noise have a part
    that is each client's own: the textbook formula would be wrong. A count outside of the central 99.9 % of the
    binomial says that it is not 95 %.
    """
    problems, p = 300, 2
    unit = "clients" if clients > p else "samples"
    random = np.random.default_rng(7)
    x = random.standard_normal((problems, clients, each, p))
    if unit == "clients":
        x += random.standard_normal((problems, clients, 1, p))
    noise = random.uniform(-1, 1, (problems, clients, each)) * (0.5 + np.abs(x[..., 0]))
    if unit == "clients":
        noise += random.standard_normal((problems, clients, 1))
    y = x @ np.array([1.0, -2.0]) + noise
    gram = np.einsum("kcni,kcnj->kij", x, x)
    theta = np.linalg.solve(gram, np.einsum("kcni,kcn->ki", x, y)[..., None])[..., 0]
    r = y - np.einsum("kcni,ki->kcn", x, theta)
    pull = np.einsum("kcni,kcn->kci", x, r)
    middle = np.einsum("kci,kcj->kij", pull, pull), np.einsum("kcn,kcni,kcnj->kij", r**2, x, x), (r**2).sum(axis=(1, 2))

    def covered(clients: int) -> list[int]:
        number = np.full(problems, clients)
        sums = Moments(number, np.full(problems, x[0, ..., 0].size), gram, np.zeros_like(theta), np.zeros(problems))
        fits = coefficients(theta, [design(g) for g in gram], sums, Meats(number, *middle))
        assert {fit.unit for fit in fits} == {"clients" if clients > p else "samples"}
        return [sum(fit.low[j] <= true <= fit.high[j] for fit in fits) for j, true in enumerate((1.0, -2.0))]

    low, high = binom.interval(0.999, problems, 0.95)
    assert all(low <= count <= high for count in covered(clients)), covered(clients)
    if unit == "clients":
        assert max(covered(2)) < low, "samples of a client are not independent, and intervals by samples show it"


# ---- what the data do not determine --------------------------------------------------------------------------


def test_collinear_features_leave_some_coefficients_open():
    """x_2 = 2 x_1 cannot be told apart; x_0 and the intercept can, with the errors of a fit without x_2."""
    data = mixture([20] * 8, [0] * 8)
    twice = [(np.column_stack([x[:, :2], 2 * x[:, 1]]), y) for x, y in data]
    own = torch.zeros(8, dtype=torch.int64)
    _, (fit,) = pooled_fits(federation(twice), line(), models(1), own)
    assert fit.rank == 3
    assert np.isnan(fit.errors).tolist() == [False, True, True, False]
    x, y, groups = pooled([(x[:, :2], y) for x, y in twice], [0] * 8, 0)
    expected = sm.OLS(y, x).fit(cov_type="cluster", cov_kwds={"groups": groups})
    np.testing.assert_allclose(fit.estimate[[0, 3]], expected.params[[0, 2]], **EXACT)
    np.testing.assert_allclose(fit.errors[[0, 3]], expected.bse[[0, 2]], **EXACT)
    # together they still predict as the fit without x_2 does
    assert fit.estimate[1] + 2 * fit.estimate[2] == pytest.approx(expected.params[1], rel=1e-9)


@pytest.mark.parametrize("value", [0.0, 5.0])
def test_a_constant_feature_next_to_an_intercept(value):
    """Zeros say nothing about their own coefficient; another constant nothing about the intercept either."""
    data = [(np.column_stack([x[:, :2], np.full(len(x), value)]), y) for x, y in mixture([20] * 8, [0] * 8)]
    _, (fit,) = pooled_fits(federation(data), line(), models(1), torch.zeros(8, dtype=torch.int64))
    assert fit.rank == 3
    assert np.isnan(fit.errors).tolist() == [False, False, True, value != 0]


def test_units_of_the_features_do_not_matter():
    data, unit = mixture([20] * 8, [0] * 8), np.array([1e-6, 1.0, 1e6])
    own = torch.zeros(8, dtype=torch.int64)
    one = pooled_fits(federation(data), line(), models(1), own)[1][0]
    other = pooled_fits(federation([(x * unit, y) for x, y in data]), line(), models(1), own)[1][0]
    assert other.rank == 4
    np.testing.assert_allclose(other.errors[:3] * unit, one.errors[:3], rtol=1e-6)


def test_more_coefficients_than_samples():
    data = mixture([1, 1, 1], [0] * 3)
    _, (fit,) = pooled_fits(federation(data), line(), models(1), torch.zeros(3, dtype=torch.int64))
    assert fit.why == "it has no more samples (3) than coefficients"
    assert math.isnan(fit.sigma)
    assert np.isnan(fit.errors).all()
    assert np.isfinite(fit.estimate).all()


def test_features_that_overflow_say_nothing():
    data = [(x * 1e200, y) for x, y in mixture([5] * 6, [0] * 6)]
    report = regression_report(federation(data), line(), models(1), torch.zeros(6, dtype=torch.int64))
    assert report is not None
    assert report["clusters"][0]["standard_errors"] == [None] * 4
    json.dumps(report, allow_nan=False)


# ---- guides --------------------------------------------------------------------------------------------------


def test_kappa_by_hand():
    # s = 2, gamma = 1/2: 2 * 0.5 / (1 - 0.25) = 4/3; one step is always 1; FedProx 1 + 1/2
    assert kappa(0.5, 2, prox=False) == pytest.approx(4 / 3, rel=1e-12)
    assert kappa(0.5, 1, prox=False) == pytest.approx(1, rel=1e-12)
    assert kappa(0.5, 2, prox=True) == 1.5
    assert kappa(1.0, 5, prox=False) == 5
    assert kappa(0.0, 5, prox=False) == 1
    assert kappa(1e-12, 5, prox=False) == pytest.approx(1, abs=1e-11)
    assert kappa(1.1, 5, prox=False) is None


def test_skewness_by_hand():
    # sizes 1, 1, 2 of 4: 3 (1/16 + 1/16 + 4/16) - 1 = 18/16 - 1
    assert skewness(np.array([1, 1, 2])) == pytest.approx(0.125)
    assert skewness(np.array([7, 7, 7])) == 0


def test_floor_by_hand():
    # Delta / sigma = 1/2: ratio 1/4, squared 1/16. n = 160 and 32: 8 e^-10, 8 e^-2 capped at 1.
    # clustering (160 * 8 e^-10 + 32) / 192; chi^2 = 2 (25/36 + 1/36) - 1 = 4/9; deviation sqrt(3 * 2 ln 2 / 2 * 13/9)
    found = floor(np.array([160, 32]), 2, 3, 0.5, 1.0)
    clustering = (160 * 8 * math.exp(-10) + 32) / 192
    deviation = math.sqrt(3 * math.log(2) * 13 / 9)
    expected = {"clustering": clustering, "deviation": deviation, "nu": clustering + deviation}
    assert found == pytest.approx(expected, rel=1e-12)


def test_floor_of_data_without_noise():
    # p_e = min(1, 8 e^-n): 8 e^-10 for models that differ, 1 for models that do not
    assert floor(np.array([10, 10]), 2, 1, 0.3, 0.0)["clustering"] == pytest.approx(8 * math.exp(-10))
    assert floor(np.array([10, 10]), 2, 1, 0.0, 0.0)["clustering"] == 1


# ---- the report ----------------------------------------------------------------------------------------------


def test_names_are_in_the_order_of_the_features():
    learner = line("linear:bias=true,degree=2", 2)
    assert coefficient_names(learner) == ["x1", "x2", "x1^2", "x1 x2", "x2^2", "intercept"]
    assert coefficient_names(learner, ["age", "dose"])[2:4] == ["age^2", "age dose"]
    x = torch.tensor([[[2.0, 3.0]]])
    assert learner.features(x).tolist() == [[[2, 3, 4, 6, 9, 1]]]


@pytest.mark.parametrize("engine", [Simulated, Sequential])
def test_the_report_is_plain_and_whole(engine):
    data = mixture(SIZES, [k % 2 for k in OWN])
    ours, clusters = federation(data, engine=engine), models(4)
    for value in clusters.params.values():
        value[3] = value[0]  # no client uses it, so that its distance from another one does not count
    own = torch.tensor(OWN)
    own[1] = -1  # it never answered
    report = regression_report(ours, line(), clusters, own, lr=0.01, steps=2, labels=Labels(["a", "b", "c"]))
    assert report is not None
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert report["names"] == ["a", "b", "c", "intercept"]
    first, *_, empty = report["clusters"]
    assert (first["clients"], first["samples"], first["unit"], first["freedom"]) == (6, 46, "clients", 5)
    theta = np.column_stack([clusters.params["weight"], clusters.params["bias"]])
    assert [row["coefficients"] for row in report["clusters"]] == theta.tolist()
    assert empty["why"] == "no client belongs to it"
    assert empty["estimate"] == empty["low"] == [None] * 4
    used = theta[:3]
    assert report["separation"] == pytest.approx(
        min(np.linalg.norm(used[a] - used[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    )
    gamma = 0.01 * max(np.linalg.norm(np.column_stack([x, np.ones(len(x))]), 2) ** 2 / len(x) for x, _ in data)
    assert report["gamma"] == pytest.approx(gamma, rel=1e-9)
    assert report["kappa"] == pytest.approx(2 * gamma / (1 - (1 - gamma) ** 2), rel=1e-9)
    kept = np.array(SIZES)[own.numpy() >= 0]
    assert report["skewness"] == pytest.approx(skewness(kept))
    rss = sum(row["sigma"] ** 2 * (row["samples"] - 4) for row in report["clusters"][:3])
    assert report["sigma"] == pytest.approx(math.sqrt(rss / (kept.sum() - 12)), rel=1e-9)
    nu = floor(kept, 3, 4, report["separation"], report["sigma"])["nu"]
    assert report["floor"]["nu"] == pytest.approx(nu)
    assert report["floor"]["error"] is None, "nu is above 1 with so few clients"


def test_the_error_guide_by_hand():
    """sigma kappa / rho nu log(e / nu) with 4000 equal clients, half of them in each cluster."""
    random = np.random.default_rng(0)
    own = torch.arange(4000) % 2
    data = [(x := random.standard_normal((8, 1)), x[:, 0] * (4 * k - 2) + 0.1) for k in own.tolist()]
    clusters = Clusters({"weight": torch.tensor([[-2.0], [2.0]], dtype=torch.float64)}, 2)
    report = regression_report(federation(data, "linear"), line("linear", 1), clusters, own, lr=0.01, steps=1)
    assert report is not None
    # nu = 8 e^-8 + sqrt(2 ln 2 / 4000); kappa of one step is 1, rho is 1/2
    nu = 8 * math.exp(-8) + math.sqrt(2 * math.log(2) / 4000)
    assert report["floor"]["error"] == pytest.approx(report["sigma"] / 0.5 * nu * math.log(math.e / nu), rel=1e-9)


def test_one_cluster_has_no_separation_and_no_floor():
    data = mixture([20] * 8, [0] * 8)
    report = regression_report(federation(data), line(), models(1), torch.zeros(8, dtype=torch.int64))
    assert report is not None
    assert [report[name] for name in ("separation", "floor", "gamma", "kappa")] == [None] * 4


def test_half_a_loss_has_half_a_gamma():
    data, own = mixture([20] * 8, [0] * 8), torch.zeros(8, dtype=torch.int64)
    gammas = []
    for spec in ("linear:bias=true", "linear:bias=true,half=false"):
        report = regression_report(federation(data, spec), line(spec), models(1), own, lr=0.1)
        assert report is not None
        assert report["kappa"] is None, "steps are not known"
        gammas.append(report["gamma"])
    assert gammas[1] == pytest.approx(2 * gammas[0])


def test_no_report_for_other_learners_or_too_large_matrices():
    data, own = mixture([4], [0]), torch.tensor([0])
    other = make_learner("mlp", Profile((D,), None))
    assert regression_report(federation(data), other, models(1), own) is None
    wide = make_learner("linear", Profile((2001,), None))
    assert regression_report(federation(data), wide, models(1, 2001, bias=False), own) is None


class SecondTimeSilent:
    """A federation in which one client does not answer the second question."""

    def __init__(self, inner: Simulated) -> None:
        self.inner, self.clients, self.sizes, self.hashes = inner, inner.clients, inner.sizes, inner.hashes

    def ask(self, task, broadcast, asked):
        kept = np.arange(len(asked) - (task.name == "regression-meats"))
        return self.inner.ask(task, broadcast.to(kept), asked[kept])


def test_a_client_that_answers_once_spoils_the_errors_of_its_cluster_only():
    data, own = mixture([20] * 12, [0] * 6 + [1] * 6), torch.tensor([0] * 6 + [1] * 6)
    _, fits = pooled_fits(SecondTimeSilent(federation(data)), line(), models(2), own)
    assert fits[0].unit == "clients"
    assert fits[1].why == "1 of its 6 clients did not answer the second question"


def test_silence_is_an_error():
    data = mixture([4, 4], [0, 0])
    ours = Simulated(ClientGroup(line(), make_shard(data), None), missing={0: {"c0", "c1"}})
    for question in (lambda: pooled_fits(ours, line(), models(1), torch.tensor([0, 0])), lambda: ask_curvature(ours)):
        with pytest.raises(TrainingError, match="none of the 2 clients answered"):
            question()


# ---- logistic models and original units ----------------------------------------------------------------------------


def labelled(clients: int, each: int, classes: int, seed: int = 0) -> list[Samples]:
    random = np.random.default_rng(seed)
    slopes = random.standard_normal((2, classes))
    data = []
    for _ in range(clients):
        x = random.standard_normal((each, 2)) + random.standard_normal(2) / 2
        logits = x @ slopes + random.gumbel(size=(each, classes)) + 0.3 * random.standard_normal(classes)
        data.append((x, logits.argmax(axis=1)))
    return data


def logistic_federation(data: list[Samples], classes: int):
    learner = make_learner("logistic", Profile((2,), classes))
    return learner, Simulated(ClientGroup(learner, make_shard(data), None))


@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_intervals_are_those_of_statsmodels(classes):
    """Maximum likelihood and the sandwich by clients, from models that are elsewhere."""
    data = labelled(12, 30, classes)
    learner, ours = logistic_federation(data, classes)
    start = Clusters(learner.start([3], torch.float64), 1)
    _, (fit,) = pooled_fits(ours, learner, start, torch.zeros(12, dtype=torch.int64))
    x = np.column_stack([np.concatenate([x for x, _ in data]), np.ones(360)])
    y, groups = np.concatenate([y for _, y in data]), np.repeat(range(12), 30)
    if classes == 2:
        expected = sm.Logit(y, x).fit(disp=0, cov_type="cluster", cov_kwds={"groups": groups, "use_correction": False})
    else:
        expected = sm.MNLogit(y, x).fit(disp=0)
        scores = sm.MNLogit(y, x).score_obs(expected.params.ravel(order="F"))
        by_client = np.stack([scores[groups == g].sum(axis=0) for g in range(12)])
        inverse = np.linalg.inv(sm.MNLogit(y, x).hessian(expected.params.ravel(order="F")))
        bse = np.sqrt(np.diag(inverse @ by_client.T @ by_client @ inverse))
    p = 3 * (classes - 1)
    factor = math.sqrt(12 / 11 * 359 / (360 - p))
    np.testing.assert_allclose(fit.estimate, np.asarray(expected.params).ravel(order="F"), rtol=1e-5)
    np.testing.assert_allclose(fit.errors, factor * (expected.bse if classes == 2 else bse), rtol=1e-4)
    assert fit.unit == "clients"


def test_classes_that_a_feature_separates_have_no_intervals():
    random = np.random.default_rng(0)
    data = [(x := random.standard_normal((20, 2)), (x[:, 0] > 0).astype(np.int64)) for _ in range(8)]
    learner, ours = logistic_federation(data, 2)
    start = Clusters(learner.start([3], torch.float64), 1)
    _, (fit,) = pooled_fits(ours, learner, start, torch.zeros(8, dtype=torch.int64))
    assert "without error" in fit.why
    assert np.isnan(fit.low).all()


def test_coefficients_of_standardised_features_in_original_units():
    """The same fit as on raw features: estimates, errors and the intercept with the means in it."""
    raw, own = mixture([20] * 8, [0] * 8), torch.zeros(8, dtype=torch.int64)
    raw = [(x * [1.0, 10.0, 0.1] + [5.0, -3.0, 100.0], y) for x, y in raw]
    every = np.concatenate([x for x, _ in raw])
    scales = [(float(m), float(s)) for m, s in zip(every.mean(axis=0), every.std(axis=0), strict=True)]
    scaled = [((x - every.mean(axis=0)) / every.std(axis=0), y) for x, y in raw]
    expected = regression_report(federation(raw), line(), models(1), own)
    found = regression_report(federation(scaled), line(), models(1), own, labels=Labels(["a", "b", "c"], scales))
    assert found is not None
    assert expected is not None
    for name in ("estimate", "standard_errors", "low", "high"):
        np.testing.assert_allclose(found["clusters"][0][name], expected["clusters"][0][name], rtol=1e-6)
    assert found["units"] == "original"
    assert found["clusters"][0]["level"] == pytest.approx(float(np.concatenate([y for _, y in raw]).mean()))


def test_coefficients_of_several_classes_name_their_class():
    data = labelled(12, 30, 3)
    learner, ours = logistic_federation(data, 3)
    start = Clusters(learner.start([3], torch.float64), 1)
    own = torch.zeros(12, dtype=torch.int64)
    report = regression_report(ours, learner, start, own, labels=Labels(["u", "v"], classes=("low", "mid", "high")))
    assert report is not None
    assert report["names"] == [f"{c}: {n}" for c in ("mid", "high") for n in ("u", "v", "intercept")]
    assert (report["reference"], report["classes"]) == ("low", ["mid", "high"])


def test_a_level_with_one_class_has_no_interval():
    """All samples with v = 1 are of class 1: its coefficient has no finite maximum, that of u has."""
    random = np.random.default_rng(0)
    data = []
    for _ in range(12):
        u, v = random.standard_normal(40), (random.random(40) < 0.1).astype(float)
        y = np.where(v == 1, 1, random.random(40) < 1 / (1 + np.exp(-u))).astype(np.int64)
        data.append((np.column_stack([u, v]), y))
    learner, ours = logistic_federation(data, 2)
    start = Clusters(learner.start([3], torch.float64), 1)
    _, (fit,) = pooled_fits(ours, learner, start, torch.zeros(12, dtype=torch.int64))
    assert np.isnan(fit.errors[1]) or fit.why
    assert fit.why or np.isfinite(fit.errors[0])
