"""ODCL with inexact solutions (theorem 2), and the verdicts on it."""

import pytest

from papers.odcl.inexact import STEPS, InexactTrial, claims


def test_more_steps_are_nearer_to_exact_solutions():
    few, many = (InexactTrial(T, 0).measure(None) for T in (300, 3000))
    assert few["oracle"] == many["oracle"]
    assert many["epsilon"] < few["epsilon"] / 10
    assert many["exact"] == 1.0


@pytest.mark.parametrize(("power", "holds"), [(1.5, True), (0.5, False)])
def test_the_rate_is_that_of_a_power_of_the_steps(power, holds):
    found = {f"T={T}": {0: {"epsilon": T**-power, "odcl": 1 + 1 / T, "oracle": 1.0, "exact": 1.0}} for T in STEPS}
    rate, falls, near, exact = claims(found, False)
    assert rate.holds is holds
    assert f"{-power:.2f}" in rate.evidence
    assert falls.holds
    assert near.holds
    assert exact.holds
    assert all(claim.holds is None for claim in claims({}, False))
