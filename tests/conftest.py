"""Property tests draw the same examples in every run of `make test`; `make fuzz` draws others each time."""

from hypothesis import settings

from tests.fuzz.cases import SCALE

settings.register_profile("coterie", derandomize=SCALE == 1, deadline=None)
settings.load_profile("coterie")
