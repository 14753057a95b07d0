"""Appendix B: lines by hand, verdicts that can fail, one cell from end to end."""

import numpy as np
import pytest

from papers.hcfl.appendix_b import (
    DRIFT,
    FEW,
    NOISE,
    RATIOS,
    SETTINGS,
    Trial,
    claims,
    line_through,
    tables,
)


def test_a_line_by_hand():
    """From 1 by a factor 10^-0.1 a round, 10 digits in 100 rounds; only distances between 0.3 and 1e-9 count."""
    found = line_through(10 ** (-0.1 * np.arange(200)))
    assert found == {"digits": pytest.approx(10), "straight": pytest.approx(1)}
    assert line_through(np.full(50, 0.5)) == {}


GOOD = {
    **{s.title: {0: {"digits": 9.0 - at, "straight": 0.995, "last": 1e-7}} for at, s in enumerate(RATIOS)},
    **{s.title: {0: {"last": 0.1 * (at + 1)}} for at, s in enumerate(NOISE)},
    **{s.title: {0: {"last": 0.1 * (at + 1)}} for at, s in enumerate(DRIFT)},
}


def verdicts(found) -> list:
    return [claim.holds for claim in claims(found, False)]


def test_verdicts_by_hand():
    assert verdicts(GOOD) == [True] * 5
    assert verdicts({}) == [None] * 5


@pytest.mark.parametrize(
    ("at", "setting", "figures"),
    [
        (0, RATIOS[0], {"digits": 9.0, "straight": 0.98, "last": 1e-7}),
        (1, RATIOS[0], {"digits": 9.0, "straight": 0.995, "last": 1e-5}),
        (2, RATIOS[2], {"digits": 8.5, "straight": 0.995, "last": 1e-7}),
        (3, NOISE[1], {"last": 0.05}),
        (4, DRIFT[2], {"last": 0.15}),
    ],
)
def test_every_claim_can_fail(at, setting, figures):
    assert verdicts({**GOOD, setting.title: {0: figures}}) == [index != at for index in range(5)]


def test_a_cell_from_end_to_end(tmp_path):
    figures = Trial(RATIOS[0], 0, 25).measure(tmp_path)
    assert set(figures) == {"after 25", "last", "expected"}  # still searching: no linear part yet
    first, second = tables({RATIOS[0].title: {0: figures}}, True)
    assert first.rows[0][1] == f"{figures['last']:.1e}"
    assert (len(first.rows), len(second.rows)) == (len(SETTINGS), len(RATIOS) + len(FEW))
