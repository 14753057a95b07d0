"""A skipped test shows that the tests in `flower/` could not run."""

import pytest


def test_the_tests_of_flower_can_run():
    pytest.importorskip("flwr", reason="the tests in tests/flower need coterie[flower]")
