"""The diagnosis in words: the numbers of the values are in the sentences, rounded as a reader expects."""

from dataclasses import replace

import pytest

from coterie.diagnosis.answers import (
    answers,
    as_text,
    in_step,
    number,
    p_text,
    python_call,
    subject,
    verdict,
    with_interval,
)
from coterie.diagnosis.values import Estimate, ShiftTest
from tests.diagnosis.made import alike, grouped


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (12.345, "12.3"), (1234.5, "1,234"), (0.01234, "0.0123"), (-0.5, "-0.500"), (1.2e-7, "1.20e-07")],
)
def test_numbers_have_three_significant_digits(value, text):
    assert number(value) == text


def test_decimals_follow_the_length_of_the_interval():
    # length 1.1: floor(log10) = 0, so 1 decimal; length 0.1: floor(log10) = -1, so 2; length 40: none
    assert with_interval(Estimate(1.5, 0.9, 2.0)) == "1.5 (95 % interval 0.9 to 2.0)"
    assert in_step(Estimate(0.04, -0.01, 0.09)) == ("0.04", "-0.01", "0.09")
    assert in_step(Estimate(1234.4, 1210, 1250)) == ("1,234", "1,210", "1,250")
    assert in_step(Estimate(-0.001, -0.3, 0.3)) == ("0.00", "-0.30", "0.30")  # no minus before nothing


def test_an_interval_of_length_zero_is_written_like_any_number():
    assert in_step(Estimate(2.0, 2.0, 2.0)) == ("2.00", "2.00", "2.00")


def test_small_p_values_are_bounds():
    assert [p_text(p) for p in (0.0, 0.005, 0.01, 0.0432, 1.0)] == [
        "p ≤ 0.005",  # 199 draws show no smaller one
        "p ≤ 0.005",
        "p = 0.01",
        "p = 0.043",
        "p = 1",
    ]


def test_five_questions_are_answered_with_their_numbers():
    differ, what, form, known, do = answers(grouped())
    assert differ.sentence == "Yes. One model does not fit all clients (p ≤ 0.005)."
    assert "in log-odds, is 1.5 (95 % interval 0.9 to 2.0)." in differ.evidence[0]
    assert [line.split(":")[0] for line in what.evidence] == ["Relation", "Features", "Labels"]
    assert "no difference found (p = 0.42" in what.evidence[1]
    # candidates: 400/k + 60 |k - 3|, least at k = 3: 133.3; a smooth spread has 320, so 186.7 more
    assert form.evidence == ("The criterion prefers 3 groups to a smooth spread by 187; 10 is decisive.",)
    assert known.sentence.startswith("4 of 6 clients can be placed in a group with a probability of at least 95 %")
    assert "about 66 samples" in known.sentence
    assert "0.110" in known.evidence[0] or "0.11" in known.evidence[0]
    assert known.evidence[2].endswith("shrunken to the others: 0.090 (95 % interval 0.050 to 0.130).")
    assert do.sentence == "Use the method ifca with clusters = 3 and restarts = 2."


def test_without_differences_the_answer_bounds_them():
    differ, _, _, known, do = answers(alike())
    assert differ.sentence == "No difference was found: one model fits all clients (p = 0.42)."
    assert "in log-odds, is at most 0.300 with 95 % confidence" in differ.evidence[0]
    assert known.sentence == "There are no groups in which clients could be placed."
    assert "more than 0.00400 over one model" in known.evidence[0]
    assert do.sentence == "Do not cluster: use the method fedavg."


def test_a_bound_above_the_whole_loss_is_no_bound():
    made = alike()
    found = answers(replace(made, gain=replace(made.gain, most_over_one=0.7)))
    assert found[3].evidence == ("The gain of personalisation over one model has no useful upper bound.",)


def test_an_unclear_structure_places_no_client():
    made = alike()
    found = answers(replace(made, structure=replace(made.structure, kind="unclear", clusters=None)))
    assert found[3].sentence.startswith("Groups cannot be distinguished from a smooth spread")


def test_a_smooth_spread_that_fits_better_is_named_first():
    made = grouped()
    found = answers(replace(made, structure=replace(made.structure, continuum=100.0)))
    assert "prefers a smooth spread to 3 groups by 33.3" in found[2].evidence[0]


def test_the_text_ends_with_the_call_that_follows_it():
    assert python_call(grouped().recommendation) == 'coterie.fit(data, "ifca", clusters=3, restarts=2)'
    text = as_text(replace(grouped(), warnings=("One client did not answer.",)))
    assert text.startswith(subject(grouped()))
    assert 'coterie.fit(data, "ifca", clusters=3, restarts=2)' in text
    assert text.endswith("Note: One client did not answer.")
    assert str(grouped()) == as_text(grouped())


def test_an_aspect_is_different_at_its_share_of_the_level_only():
    estimate = Estimate(0.1, 0.0, 0.2)
    tests = [ShiftTest(1.0, p, p <= 0.05, estimate, "y") for p in (0.0125 - 1e-9, 0.03, 0.06)]
    assert [verdict(test, 0.05) for test in tests] == ["different", "unclear", "no difference found"]


def test_a_difference_of_no_single_aspect_is_no_contradiction():
    found = alike()
    unclear = ShiftTest(1.0, 0.04, True, Estimate(0.1, 0.0, 0.2), "y")
    shift = replace(found.shift, kind="none", model=unclear, sentence="No difference between the clients was found.")
    sentence = answers(replace(found, shift=shift))[1].sentence
    assert sentence == "It is unclear in what the clients differ: no aspect alone shows a clear difference."
