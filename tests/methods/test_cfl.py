"""CFL's tree of splits: newcomers descend it as in a plain loop, also after the run was resumed and loaded."""

from __future__ import annotations

import numpy as np
import pytest

import coterie
from coterie.core.dataset import FederatedDataset
from coterie.data.arrays import from_arrays

LR, STEPS, GROUPS = 0.3, 3, 3
SETTINGS = {"lr": LR, "local_steps": STEPS, "rounds": 6, "warmup": 1, "thresholds": "relative", "eps1": 0.9}
SETTINGS |= {"eps2": 0.0, "least": 5, "seed": 1, "dtype": "float64", "learner": "logistic", "newcomers": "tree"}


def rule(group: int) -> np.ndarray:
    return np.random.default_rng(10 + group).standard_normal((5, 3))


def samples(group: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((40, 5))
    return x, (x @ rule(group)).argmax(axis=1)


def population() -> FederatedDataset:
    return from_arrays({f"c{i}": samples(i % GROUPS, 100 + i) for i in range(12)})


def update(model: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the updates of bias (3,) and weight (3, 5) by full-batch steps of softmax regression, concatenated."""
    theta, rows = model.copy(), np.hstack([np.ones((len(x), 1)), x])
    for _ in range(STEPS):
        weights = np.hstack([theta[:3, None], theta[3:].reshape(3, 5)])
        said = np.exp(rows @ weights.T)
        said /= said.sum(axis=1, keepdims=True)
        said[np.arange(len(y)), y] -= 1
        gradient = said.T @ rows / len(y)
        theta = theta - LR * np.concatenate([gradient[:, 0], gradient[:, 1:].ravel()])
    return theta - model


def test_a_newcomer_goes_down_the_tree_as_in_a_plain_loop(tmp_path):
    result = coterie.fit(population(), "cfl", out=tmp_path / "run", **SETTINGS)
    splits = {name.removeprefix("splits/"): rows.numpy() for name, rows in result.extra_arrays.items()}
    assert len(result.models) == 1 + len(splits["cluster"]) >= 3, "several splits, or there is no way to go"
    ends, loaded = set(), coterie.load(tmp_path / "run")
    for group in range(GROUPS):
        x, y = samples(group, 7 + group)
        own = 0
        for k, second, model, parts in zip(
            *(splits[n] for n in ("cluster", "second", "model", "updates")), strict=True
        ):
            if k == own:
                moved = update(model, x, y)
                cosines = [moved @ part / np.linalg.norm(moved) / np.linalg.norm(part) for part in parts]
                own = second if cosines[1] > cosines[0] else own
        ends.add(int(own))
        assert result.weigh(x, y).tolist() == np.eye(len(result.models))[own].tolist()
        assert loaded.weigh(x, y).tolist() == result.weigh(x, y).tolist()
    assert len(ends) > 1


def test_the_tree_contains_the_split_model_and_the_updates_of_its_parts():
    """After its first split, the models of a run are the split model plus the parts' mean updates."""
    result = coterie.fit(population(), "cfl", **SETTINGS | {"rounds": 2})
    assert result.extra_arrays["splits/cluster"].tolist() == [0]
    vectors = [np.concatenate([m["bias"], m["weight"].ravel()]) for m in result.models]
    model, updates = (result.extra_arrays[f"splits/{name}"].numpy()[0] for name in ("model", "updates"))
    assert np.stack(vectors) == pytest.approx(model + updates, rel=1e-9, abs=1e-12)
    members = [[i for i in range(12) if result.assignments[f"c{i}"] == k] for k in range(2)]
    for part, expected in zip(members, updates, strict=True):
        found = np.mean([update(model, *samples(i % GROUPS, 100 + i)) for i in part], axis=0)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_without_newcomers_tree_no_tree_is_kept_and_models_are_equal():
    kept, plain = (coterie.fit(population(), "cfl", **SETTINGS | {"newcomers": how}) for how in ("tree", "loss"))
    assert not plain.extra_arrays
    for one, other in zip(kept.models, plain.models, strict=True):
        assert all((one[name] == other[name]).all() for name in one)


def test_a_resumed_run_has_the_whole_tree(tmp_path):
    whole = coterie.fit(population(), "cfl", **SETTINGS)
    coterie.fit(population(), "cfl", out=tmp_path / "run", **SETTINGS)
    folder = tmp_path / "run"
    for name in ("result.json", "models.safetensors", "extra.safetensors", "checkpoints/round-000006.json"):
        (folder / name).unlink()
    resumed = coterie.resume(folder, data=population())
    assert resumed.extra_arrays.keys() == whole.extra_arrays.keys()
    assert all((resumed.extra_arrays[name] == rows).all() for name, rows in whole.extra_arrays.items())
