"""Random cases with a fixed seed, and the rule that all fuzz tests check.

`make test` runs the number of cases that a test gives, or its smaller number `few`; `make fuzz` multiplies it. Two
environment variables change this: COTERIE_FUZZ_SCALE (a factor, default 1) and COTERIE_FUZZ_SEED (default 0).
"""

import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import pytest

from coterie.errors import CoterieError

SCALE = float(os.environ.get("COTERIE_FUZZ_SCALE", "1"))
SEED = int(os.environ.get("COTERIE_FUZZ_SEED", "0"))
T = TypeVar("T")


def cases(name: str, count: int, few: int | None = None) -> Iterator[tuple[str, np.random.Generator]]:
    """Yield a label and a random generator for each case; the label is enough to repeat the case.

    Args:
        name: Name of the cases, which determines the random numbers.
        count: Number of cases.
        few: Number of cases in `make test`; by default `count`.
    """
    words = list(name.encode())
    wanted = few if few is not None and SCALE <= 1 else round(count * SCALE)
    for number in range(max(1, wanted)):
        yield f"{name}, seed {SEED}, case {number}", np.random.default_rng([SEED, number, *words])


def refusal(label: str, call: Callable[[], T]) -> tuple[T | None, CoterieError | None]:
    """Return the value of `call`, or the CoterieError that it raised; fail the test on any other exception.

    The error message must be one readable line: not empty, and without a traceback.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call(), None
    except CoterieError as error:
        text = str(error)
        assert text.strip(), f"{label}: refused without a message"
        assert "\n" not in text, f"{label}: the message has several lines: {text!r}"
        assert "Traceback" not in text, f"{label}: the message has a traceback"
        return None, error
    except Exception:
        pytest.fail(f"{label}: raised something other than a CoterieError\n{traceback.format_exc()}")
