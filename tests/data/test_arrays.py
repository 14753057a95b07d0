"""A user's own arrays: what is accepted, and an error for everything else that says where and what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie
from coterie import InputError, from_arrays
from coterie.errors import ColumnWarning

X = np.arange(6.0).reshape(3, 2)
Y = np.array([0, 1, 1])


def test_ragged_clients_are_put_one_after_the_other():
    data = from_arrays({"north": (X, Y), "south": (X[:1] + 10, Y[:1])})
    assert data.clients == ("north", "south")
    assert data.train.sizes.tolist() == [3, 1]
    assert data.train.x.tolist() == [[0, 1], [2, 3], [4, 5], [10, 11]]
    assert data.train.y.tolist() == [0, 1, 1, 0]
    assert data.profile.classes == 2
    assert (data.test, data.truth) == (None, None)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_every_client_keeps_its_own_samples(sizes):
    pairs = [(np.full((n, 2), i, float), np.full(n, i / 2)) for i, n in enumerate(sizes)]
    shard = from_arrays(pairs).train
    assert shard.ids == tuple(str(i) for i in range(len(sizes)))
    for i in range(len(sizes)):
        rows = slice(shard.starts[i], shard.stops[i])
        assert shard.x[rows].tolist() == pairs[i][0].tolist()
        assert shard.y[rows].tolist() == pairs[i][1].tolist()


@pytest.mark.parametrize("labels", [[0, 1, 1], [False, True, True], np.array([0, 1, 1], dtype=np.uint8)])
def test_whole_and_boolean_labels_are_classes(labels):
    data = from_arrays([(X, labels)])
    assert data.train.y.dtype == torch.int64
    assert data.train.y.tolist() == [0, 1, 1]
    assert data.profile.classes == 2


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_floating_targets_are_numbers(kind):
    data = from_arrays([(X, np.array([0.5, 1, 2], dtype=kind))])
    assert data.train.y.dtype == torch.float64
    assert data.profile.classes is None


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(np.float64, torch.float64), (np.float32, torch.float32), (np.uint8, torch.float32), (bool, torch.float32)],
)
def test_features_become_floating(kind, expected):
    assert from_arrays([(X.astype(kind), Y)]).train.x.dtype == expected


def test_torch_tensors_and_lists_are_arrays_too():
    data = from_arrays([(torch.from_numpy(X), torch.from_numpy(Y)), (X.tolist(), Y.tolist())])
    assert torch.equal(data.train.x[:3], data.train.x[3:])


def test_later_changes_of_the_users_arrays_do_not_matter():
    x = X.copy()
    data = from_arrays([(x, Y), (X, Y)])
    x[:] = 99
    assert data.train.x[0, 0] == 0


def test_test_samples_follow_the_order_of_training():
    data = from_arrays({"a": (X, Y), "b": (X, Y)}, test={"b": (X[:1] + 5, Y[:1]), "a": (X[:2], Y[:2])})
    assert data.test is not None
    assert data.test.ids == ("a", "b")
    assert data.test.sizes.tolist() == [2, 1]
    assert data.test.x[2].tolist() == [5, 6]


def test_truth_by_id_and_by_order():
    clients = {"a": (X, Y), "b": (X, Y), "c": (X, Y)}
    for truth in ({"c": "ward", "a": "icu", "b": "ward"}, ["icu", "ward", "ward"]):
        data = from_arrays(clients, truth=truth)
        assert data.truth is not None
        assert data.truth.tolist() == [0, 1, 1]
        assert data.group_names == ("icu", "ward")
    assert from_arrays(clients, truth=np.array([7, 3, 7])).truth.tolist() == [1, 0, 1]


def test_ids_are_text():
    assert from_arrays({7: (X, Y), (1, 2): (X, Y)}).clients == ("7", "(1, 2)")


def good(second) -> dict:
    return {"first": (X, Y), "second": second}


BAD_CLIENTS = {
    "no pair": (good(X), "client 'second': expected a pair (x, y), got ndarray"),
    "three": (good((X, Y, Y)), "client 'second': expected a pair (x, y)"),
    "lengths": (good((X, Y[:2])), "client 'second': 3 samples but 2 labels; there must be one label a sample"),
    "empty": (good((X[:0], Y[:0])), "client 'second' has no samples: leave it out"),
    "shape": (good((X[:, :1], Y)), "client 'second': samples of shape (1,), but those before have (2,)"),
    "kind": (good((X, Y / 2)), "client 'second': labels of type float64, but those before are int64; use one kind"),
    "ragged x": (good(([[1], [2, 3]], Y[:2])), "client 'second': x is not an array of numbers"),
    "text x": (good((np.array([["a"], ["b"], ["c"]]), Y)), "client 'second': x must hold numbers, got type <U1"),
    "object x": (good((np.array([[None], [1], [2]]), Y)), "client 'second': x must hold numbers, got type object"),
    "flat x": (good((np.arange(3.0), Y)), "client 'second': x must have shape (samples, features, ...), got (3,)"),
    "no features": ([(np.zeros((3, 0)), Y)], "client '0': x"),
    "nan x": (
        good((np.where(X == 3, np.nan, X), Y)),
        "client 'second': x has 1 NaN or infinite values, the first in sample 1",
    ),
    "inf x": (
        good((np.where(X >= 4, np.inf, X), Y)),
        "client 'second': x has 2 NaN or infinite values, the first in sample 2",
    ),
    "ragged y": (good((X[:2], [[1], [1, 2]])), "client 'second': y"),
    "text y": (
        good((X, ["a", "b", "c"])),
        "client 'second': y must hold integer labels or numbers, got type <U1",
    ),
    "column y": (good((X, Y[:, None])), "client 'second': y must have shape (samples,), got (3, 1); use y.ravel()"),
    "nan y": ([(X, np.array([0, np.nan, 1]))], "client '0': y has 1 NaN or infinite values, the first in sample 1"),
    "label too small": (good((X, np.array([-100_000, 0, 1]))), "client 'second': label -100000 is too large for a"),
    "none": ([], "no clients: give at least one (x, y)"),
    "none by id": ({}, "no clients: give at least one (x, y)"),
    "text": ("abc", "clients must be {id: (x, y)} or a sequence of (x, y), got str"),
    "array": (X, "clients must be {id: (x, y)} or a sequence of (x, y), got ndarray"),
    "equal ids": ({1: (X, Y), "1": (X, Y)}, "two client ids are equal as text: give every client a different id"),
}


@pytest.mark.parametrize("case", BAD_CLIENTS, ids=lambda case: case.replace(" ", "-"))
def test_bad_clients_are_refused_by_name(case):
    clients, words = BAD_CLIENTS[case]
    with pytest.raises(InputError) as caught:
        from_arrays(clients)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ({"a": (X, Y), "x": (X, Y)}, "test must name the same clients as the training data; 'b' is missing in test"),
        ({"a": (X, Y), "b": (X, Y), "z": (X, Y)}, "'z' is only in test"),
        ([(X, Y), (X, Y)], "test must name the same clients"),
        ({"a": (X, Y), "b": (np.where(X == 3, np.nan, X), Y)}, "client 'b' (test): x has 1 NaN"),
        ({"a": (X, Y), "b": (X[:0], Y[:0])}, "client 'b' (test) has no samples"),
        ({"a": (X[:, :1], Y), "b": (X[:, :1], Y)}, "test samples have shape (1,), training samples (2,)"),
        ({"a": (X, Y / 2), "b": (X, Y / 2)}, "must be of one kind: both integer classes or both numbers"),
    ],
)
def test_bad_test_samples_are_refused(test, words):
    with pytest.raises(InputError) as caught:
        from_arrays({"a": (X, Y), "b": (X, Y)}, test=test)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("truth", "words"),
    [
        ({"a": 0}, "truth must name the same clients as the training data; 'b' is missing in truth"),
        ({"a": 0, "b": 1, "c": 1}, "'c' is only in truth"),
        ([0], "truth has 1 groups for 2 clients: give one for each"),
    ],
)
def test_bad_truth_is_refused(truth, words):
    with pytest.raises(InputError) as caught:
        from_arrays({"a": (X, Y), "b": (X, Y)}, truth=truth)
    assert words in str(caught.value)


def test_an_input_error_is_a_value_error():
    with pytest.raises(ValueError, match="no clients"):
        from_arrays([])


@pytest.mark.parametrize("labels", [(0, 99_999), (3, 7), (-1, 1), (0, 2), (5,)])
def test_a_run_has_the_classes_that_occur_and_predicts_their_labels(labels, tmp_path):
    random = np.random.default_rng(0)
    clients = {}
    for name in "abcd":
        x = random.standard_normal((12, 2))
        clients[name] = (x, np.array(labels)[(x[:, 0] > 0).astype(int) % len(labels)])
    data = from_arrays(clients, test=clients)
    result = coterie.fit(data, "fedavg", rounds=20, lr=1.0, out=tmp_path / "run")
    assert result.profile.classes == len(labels)
    assert result.schema.classes == labels
    assert sum(part.size for part in result.models[0].values()) == 3, "one logit for two classes"
    x, y = clients["a"]
    assert np.mean(result.predict(x) == y) > 0.9
    assert result.metrics["accuracy"] > 0.9
    again = coterie.load(tmp_path / "run")
    assert again.predict(x).tolist() == result.predict(x).tolist()
    assert again.losses(x, y).tolist() == result.losses(x, y).tolist()
    with pytest.raises(InputError, match="labels holds '4', which is not a class of this run"):
        result.losses(x, np.full(len(x), 4))


def test_labels_from_zero_on_are_left_alone():
    data = from_arrays([(X, Y), (X, Y)])
    assert data.labels == ()
    assert data.compact() is data


def test_other_labels_are_other_data_and_renumbering_does_not_matter():
    one, other = (from_arrays([(X, np.array([0, top, top]))]) for top in (5, 7))
    assert one.fingerprint() == one.compact().fingerprint() != other.fingerprint()


def test_an_interrupted_run_with_gaps_in_its_labels_is_resumed(tmp_path):
    data = from_arrays([(X, np.array([0, 5, 5])), (X, np.array([5, 0, 5]))])
    whole = coterie.fit(data, "fedavg", rounds=4)

    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.fit(data, "fedavg", rounds=4, checkpoint_every=1, out=tmp_path / "run", callbacks=[stop])
    assert np.array_equal(coterie.resume(tmp_path / "run", data).models[0]["weight"], whole.models[0]["weight"])


def test_what_a_node_holds_is_not_renumbered():
    """Another node may hold the labels that are missing here."""
    data = from_arrays([(X, np.array([0, 5, 5])), (X, np.array([5, 0, 5]))])
    node = data.take([1])
    assert node.train.y.unique().tolist() == [0, 5]
    assert node.profile.classes == 6
    with pytest.raises(InputError, match="label -1 is negative, and labels cannot be renumbered"):
        _ = from_arrays([(X, np.array([-1, 0, 1]))]).profile


@pytest.mark.parametrize("truth", [5, "ab", {0, 1}, len, np.array(3), [[0], [1]], np.zeros((2, 2))])
def test_truth_of_another_type_is_refused(truth):
    with pytest.raises(InputError, match="truth must"):
        from_arrays([(X, Y), (X, Y)], truth=truth)


@pytest.mark.parametrize("values", [(0, 1), (1, 2), (-1, 1)])
def test_two_whole_numbers_as_floats_may_be_classes(values):
    """They are regressed, and a warning says how to classify them."""
    x, y = np.tile(X, (10, 1)), np.where(np.tile(Y, 10), *values).astype(float)
    with pytest.warns(ColumnWarning, match="if they are classes"):
        data = from_arrays({"north": (x, y)})
    assert data.profile.classes is None
    with pytest.warns(ColumnWarning, match="if they are classes"):
        coterie.from_rows(x, y, [30])
    from_arrays({"north": (x, y + 0.5)})
