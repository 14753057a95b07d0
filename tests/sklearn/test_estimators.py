"""The scikit-learn estimators: groups, new groups, pipelines and searches, and scikit-learn's own checks."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from coterie.errors import ColumnWarning, ConfigError, InputError
from coterie.methods import IFCA
from coterie.sklearn import ClusteredClassifier, ClusteredRegressor, ClusterModel, estimator_of

RANDOM = np.random.default_rng(0)
SITE = np.repeat(np.arange(8), 15)
SLOPE = np.where(SITE % 2, -2.0, 2.0)
X = RANDOM.normal(3, 5, (len(SITE), 2))
Y = SLOPE * (X[:, 0] - 3) + X[:, 1]
LABEL = np.where(Y > 3, "high", "low")
FAST = {"method": "ifca", "clusters": 2, "rounds": 20, "restarts": 1}


@pytest.fixture(scope="module")
def regressor():
    return ClusteredRegressor(**FAST).fit(X, Y, groups=SITE)


@pytest.fixture(scope="module")
def classifier():
    return ClusteredClassifier(**FAST).fit(X, LABEL, groups=SITE)


def test_groups_with_the_same_relation_share_a_cluster(regressor, classifier):
    for model in (regressor, classifier):
        assert list(model.cluster_) == list(range(8))
        even, odd = ({model.cluster_[site] for site in range(first, 8, 2)} for first in (0, 1))
        assert len(even) == len(odd) == 1
        assert even != odd
        assert model.n_features_in_ == 2
        np.testing.assert_allclose(model.weights_, [0.5, 0.5])
    assert regressor.score(X, Y, SITE) > 0.99
    assert classifier.score(X, LABEL, SITE) > 0.95
    assert classifier.classes_.tolist() == ["high", "low"]


def test_rows_without_a_known_group_are_predicted_by_the_mixture(regressor, classifier):
    """Both clusters have half of the rows, so that a new group gets the mean of both models."""
    by_cluster = [regressor.predict(X, np.full(len(X), site)) for site in (0, 1)]
    with pytest.warns(UserWarning, match="predict was called without groups"):
        mixture = regressor.predict(X)
    np.testing.assert_allclose(mixture, np.mean(by_cluster, axis=0), atol=1e-9)
    np.testing.assert_allclose(regressor.predict(X, np.full(len(X), 99)), mixture)
    shares = [classifier.predict_proba(X, np.full(len(X), site)) for site in (0, 1)]
    np.testing.assert_allclose(classifier.predict_proba(X, np.full(len(X), "new")), np.mean(shares, axis=0), atol=1e-9)


@pytest.mark.parametrize("kind", [int, float, str, object, lambda site: site.astype(float).astype(object)])
def test_a_group_is_the_same_in_any_type(regressor, kind):
    groups = SITE.astype(kind) if isinstance(kind, type) else kind(SITE)
    np.testing.assert_array_equal(regressor.predict(X, groups), regressor.predict(X, SITE))


def test_groups_that_are_nearly_those_of_the_training_are_warned_of(regressor):
    with pytest.warns(ColumnWarning, match="8 clients are treated as new, but have almost the name"):
        regressor.predict(X, SITE.astype(float).astype(str))


def test_long_groups_that_have_become_floats_are_refused():
    with pytest.raises(InputError, match="lost their last digits"):
        ClusteredRegressor(**FAST).fit(X, Y, groups=2.0**53 + SITE)


def test_labelled_rows_that_fit_no_cluster_are_warned_of(regressor, classifier):
    new = np.full(len(X), "new")
    even = SITE % 2 == 0
    with pytest.warns(ColumnWarning, match="the labelled samples fit no cluster"):
        regressor.predict(X, new, support=(X[even], 1000 * Y[even], new[even]))
    with pytest.warns(ColumnWarning, match="the labelled samples fit no cluster"):
        classifier.predict(X, new, support=(X, RANDOM.permutation(LABEL), new))
    for known, values in ((regressor, Y), (classifier, LABEL)):  # rows of a group fit
        known.predict(X, new, support=(X[even][:6], values[even][:6], new[:6]))


def test_a_new_group_is_placed_by_its_labelled_rows(regressor, classifier):
    new = np.full(len(X), 99)
    odd = SITE == 1
    support = (X[odd], Y[odd], new[odd])
    np.testing.assert_allclose(regressor.predict(X, new, support=support), regressor.predict(X, np.ones(len(X))))
    support = (X[odd], LABEL[odd], new[odd])
    expected = classifier.predict_proba(X, np.ones(len(X), int))
    np.testing.assert_allclose(classifier.predict_proba(X, new, support=support), expected)
    with pytest.raises(InputError, match=r"support must be \(X, y, groups\)"):
        regressor.predict(X, new, support=(X, Y))
    with pytest.raises(InputError, match="the class 'mid', which was not in the training"):
        classifier.predict(X, new, support=(X[odd], np.full(odd.sum(), "mid"), new[odd]))


def test_groups_are_known_by_their_text(regressor):
    expected = regressor.predict(X, SITE)
    for groups in (SITE.astype(float), SITE.astype(str), SITE.astype(object), pd.Series(SITE)):
        np.testing.assert_array_equal(regressor.predict(X, groups), expected)


def test_rows_may_come_in_any_order(regressor):
    order = RANDOM.permutation(len(X))
    again = ClusteredRegressor(**FAST).fit(X[order], Y[order], groups=SITE[order])
    np.testing.assert_allclose(again.predict(X, SITE), regressor.predict(X, SITE), atol=1e-6)


def test_without_groups_there_is_one_model_and_a_warning():
    with pytest.warns(UserWarning, match="without groups, so that all rows are one group"):
        model = ClusteredRegressor(**FAST).fit(X, 3 * X[:, 0] + 1)
    assert model.cluster_ == {"all": 0}
    np.testing.assert_allclose(model.predict(X), 3 * X[:, 0] + 1, atol=0.01)


def test_auto_finds_the_groups_or_one_model():
    found = ClusteredRegressor(rounds=30).fit(X, Y + RANDOM.normal(0, 0.1, len(Y)), groups=SITE)
    assert len(set(found.cluster_.values())) == 2
    same = ClusteredRegressor(rounds=30).fit(X, X[:, 0] + RANDOM.normal(0, 1, len(Y)), groups=SITE)
    assert set(same.cluster_.values()) == {0}


def test_parameters_and_copies(classifier):
    assert ClusteredRegressor(IFCA(clusters=3), lr=0.1).get_params()["lr"] == 0.1
    assert clone(classifier).get_params() == classifier.get_params()
    assert ClusteredClassifier().set_params(rounds=5, clusters=3).get_params()["rounds"] == 5
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(X, SITE), classifier.predict_proba(X, SITE))
    one = estimator_of(classifier.result_, 1)
    assert isinstance(one, ClusterModel)
    columns = {"x0": X[:, 0], "x1": X[:, 1]}
    site = next(site for site, cluster in classifier.cluster_.items() if cluster == 1)
    np.testing.assert_array_equal(one.predict(columns), classifier.predict(X, np.full(len(X), site)))


@pytest.mark.parametrize(
    ("params", "groups", "error", "message"),
    [
        ({"rouds": 3}, SITE, ConfigError, "did you mean 'rounds'"),
        ({"seed": 3}, SITE, ConfigError, "seed is no parameter of the estimator: use random_state"),
        ({}, SITE[:-1], InputError, "120 rows but 119 groups"),
        ({}, [None, *SITE[1:]], InputError, "groups has missing values"),
    ],
)
def test_mistakes_are_answered_with_what_to_do(params, groups, error, message):
    with pytest.raises(error, match=message):
        ClusteredRegressor(**(FAST | params)).fit(X, Y, groups=groups)


def test_frames_keep_the_names_of_their_columns():
    frame = pd.DataFrame(X, columns=["dose", "age"])
    model = ClusteredRegressor(**FAST).fit(frame, Y, groups=SITE)
    assert model.feature_names_in_.tolist() == ["dose", "age"]
    assert model.result_.schema.feature_names == ("dose", "age")


def test_pipelines_and_searches_route_the_groups():
    with sklearn.config_context(enable_metadata_routing=True):
        model = ClusteredRegressor(**FAST).set_fit_request(groups=True).set_score_request(groups=True)
        pipeline = make_pipeline(StandardScaler(), model)
        grid = {"clusteredregressor__clusters": [1, 2]}
        # folds of rows: all sites are known, so that two clusters are better
        search = GridSearchCV(pipeline, grid, cv=KFold(3, shuffle=True, random_state=0)).fit(X, Y, groups=SITE)
        assert search.best_params_ == {"clusteredregressor__clusters": 2}
        assert search.best_score_ > 0.99
        # folds of sites: the sites of a fold are new, and are predicted by the mixture
        folds = GridSearchCV(model, {"clusters": [2]}, cv=GroupKFold(4)).fit(X, Y, groups=SITE)
        assert folds.best_score_ < 0.7


DEFAULTS_ONLY = "check_no_attributes_set_in_init"
"""It looks at the signature of the constructor, where options such as `rounds` stand as **options."""
SKIPPED = "check_array_api_input"
"""It needs SCIPY_ARRAY_API, and the estimators compute with NumPy and PyTorch."""


def checks():
    for kind in (ClusteredClassifier, ClusteredRegressor):
        for estimator, check in estimator_checks_generator(kind(rounds=5)):
            name = check.func.__name__
            if name != SKIPPED:
                used = kind() if name == DEFAULTS_ONLY else estimator
                yield pytest.param(used, check, id=f"{kind.__name__}-{name}")


@pytest.mark.filterwarnings("ignore:fit was called without groups", "ignore::FutureWarning")
@pytest.mark.parametrize(("estimator", "check"), list(checks()))
def test_scikit_learn_accepts_the_estimators(estimator, check):
    check(estimator)


# ---- silent mistakes -------------------------------------------------------------------------------------------------


def test_a_missing_group_in_a_list_is_refused():
    with pytest.raises(InputError, match="groups has missing values"):
        ClusteredRegressor("fedavg", rounds=1).fit(np.ones((3, 1)), np.ones(3), groups=[np.nan, "a", "b"])


def test_labelled_rows_of_other_groups_do_not_count_in_silence(regressor):
    X, y = np.ones((2, regressor.n_features_in_)), np.ones(2)
    with pytest.warns(UserWarning, match="support has no rows of 1 new group, such as 'new'"):
        regressor.predict(X, groups=["new", "new"], support=(X, y, ["other", "other"]))


def test_rows_as_groups_get_a_warning():
    random = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="40 groups in 40 rows only"):
        ClusteredRegressor("fedavg", rounds=30).fit(random.normal(size=(40, 1)), random.normal(size=40), range(40))


def test_a_training_that_has_not_converged_gets_a_warning():
    random = np.random.default_rng(0)
    X = random.normal(size=(200, 2))
    with pytest.warns(ConvergenceWarning, match="still fell by .* in the last 5 of 8 rounds"):
        ClusteredRegressor("fedavg", rounds=8, lr=0.002).fit(X, X @ [1, 1], np.arange(200) % 8)


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_the_unit_of_the_target_does_not_matter(unit):
    random = np.random.default_rng(0)
    site, X = np.repeat(np.arange(8), 40), random.normal(size=(320, 2))
    y = np.where(site % 2, 2.0, -2.0) * X[:, 0] + random.normal(0, 0.3, 320)
    model = ClusteredRegressor("ifca", clusters=2, rounds=30).fit(X, unit * (y + 50), groups=site)
    assert model.score(X, unit * (y + 50), groups=site) > 0.95
