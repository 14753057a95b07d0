"""Property tests draw the same examples in every run of `make test`; `make fuzz` draws others each time."""

import signal

from hypothesis import settings

from tests.fuzz.cases import SCALE

settings.register_profile("coterie", derandomize=SCALE == 1, deadline=None)
settings.load_profile("coterie")

# A shell that starts pytest in the background makes it ignore Ctrl-C, and so would all programs that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
