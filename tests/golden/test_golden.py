"""Every method still gives the models and records in `golden.json`."""

import json

import numpy as np
import pytest

from coterie.methods import Method
from tests.golden.run import FILE, RENAMED, run

GOLDEN = json.loads(FILE.read_text())
TOLERANCE = 1e-12


def label(entry):
    chosen = {k: v for k, v in entry["settings"].items() if k not in ("rounds", "dtype", "seed", "start")}
    return "-".join([entry["method"], entry["learner"], *(f"{k}={v}" for k, v in chosen.items())])


def assert_equal(found, expected, where):
    """Compare JSON values; numbers to a relative tolerance."""
    assert type(found) is type(expected), f"{where}: {found!r} instead of {expected!r}"
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for name, value in expected.items():
            assert_equal(found[name], value, f"{where}.{name}")
    elif isinstance(expected, list) and expected and isinstance(expected[0], float):
        np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE * np.abs(expected).max())
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for place, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_equal(one, other, f"{where}[{place}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=TOLERANCE, abs=TOLERANCE), where
    else:
        assert found == expected, where


def test_every_method_is_in_the_file():
    assert {RENAMED.get(entry["method"], entry["method"]) for entry in GOLDEN} <= set(Method.members)


@pytest.mark.parametrize("entry", GOLDEN, ids=label)
def test_numbers_have_not_changed(entry):
    found = run(entry["method"], entry["learner"], entry["settings"])
    assert_equal(found, {name: entry[name] for name in found}, label(entry))
