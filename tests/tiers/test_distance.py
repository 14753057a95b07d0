"""Distances by hand: models, lengths of mean features, shares of classes; and runs that split by them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie.data import scenario
from coterie.errors import ConfigError
from coterie.testing.checks import CHECKS, Case
from coterie.tiers.distance import FeatureNorm, LabelHistogram, Parameters
from coterie.training.planning import prepare
from tests.tiers.test_tiers import a_block


def test_parameters_by_hand():
    changes = torch.tensor([[3.0, 0.0], [0.0, 4.0], [3.0, 0.0]], dtype=torch.float64)  # legs 3 and 4
    assert Parameters().server_pairwise({"own_change": changes}).tolist() == [[0, 5, 0], [5, 0, 5], [0, 5, 0]]


def test_feature_norm_by_hand():
    """Means (3, 4) and (0, 1) have lengths 5 and 1; the padding of the second client does not count."""
    z = torch.tensor([[[2.0, 4], [4, 4]], [[0, 1], [9, 9]]], dtype=torch.float64)
    rows = FeatureNorm().client_summary(z, a_block([[0, 1], [0, 0]], z, sizes=[2, 1]), None)
    assert rows["feature_norm"].flatten().tolist() == pytest.approx([5, 1])
    assert FeatureNorm().server_pairwise(rows)[0].tolist() == pytest.approx([0, 4])


def test_label_histogram_by_hand():
    """Shares (1/2, 1/2, 0), (1, 0, 0) and (0, 0, 1): half of the first client's labels would have to change."""
    x = torch.zeros(3, 4, 1, dtype=torch.float64)
    block = a_block([[0, 0, 1, 1], [0, 0, 0, 1], [2, 2, 2, 2]], x, sizes=[4, 3, 4])
    rows = LabelHistogram().client_summary(None, block, 3)
    assert rows["class_counts"].tolist() == [[2, 2, 0], [3, 0, 0], [0, 0, 4]]
    expected = [[0, 0.5, 1], [0.5, 0, 1], [1, 1, 0]]
    assert LabelHistogram().server_pairwise(rows) == pytest.approx(torch.tensor(expected).numpy())


GAP = {"procedure": "split-by-gap:rho=0.01,hard=true"}


@pytest.mark.parametrize(
    ("learner", "options"),
    [
        ("logistic", {"assignment": "nearest-parameters", "distance": "parameters", **GAP}),
        ("mlp", {"procedure": "split-by-gap:rho=0.001", "distance": "feature-norm", "shared": "body"}),
        (
            "logistic",
            {"assignment": "assigned", "procedure": "split-by-gap:rho=0.1,hard=true", "distance": "label-histogram"},
        ),
        (
            "mlp",
            {
                "assignment": "personal-em",
                "procedure": "split-by-gap:rho=0.01",
                "distance": "parameters",
                "shared": "body",
            },
        ),
    ],
    ids=["parameters", "feature-norm", "label-histogram", "personal"],
)
def test_distances_split_clusters_and_declare_their_rows(learner: str, options: dict[str, str]):
    case = Case("tiered", learner, {"clusters": 1, "max_clusters": 3, **options})
    assert case.run().records[-1]["K"] == 3
    CHECKS["replies"](case)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"procedure": "split-by-spectrum:alpha0=0.3", "distance": "parameters"}, "split-by-spectrum needs cosines"),
        (
            {"procedure": "split-by-norm:eps1=1,eps2=0,gate=0.1", "distance": "label-histogram"},
            "the gate of split-by-norm needs cosines, but distance label-histogram is not one",
        ),
    ],
)
def test_unsuitable_distances_are_refused(options: dict[str, str], message: str):
    with pytest.raises(ConfigError, match=message):
        Case("tiered", "mlp", options).plan()


def test_features_of_a_module_without_a_last_layer_are_refused():
    """The outputs of the softmax are no linear function of features."""

    def network() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.LogSoftmax(dim=1))

    data = scenario("rotated-digits", clients=4)
    options = {"procedure": "split-by-gap:rho=0.1", "distance": "feature-norm"}
    with pytest.raises(ConfigError, match="the inputs of one fully connected last layer with a bias"):
        prepare(data, "tiered", network, options)


def test_label_shares_in_a_regression_are_refused():
    with pytest.raises(ConfigError, match="compares classes, but this is a regression"):
        Case("tiered", "linear", {"procedure": "split-by-gap:rho=0.1", "distance": "label-histogram"}).plan()
