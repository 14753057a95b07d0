"""Property tests draw the same examples in every run of `make test`; `make fuzz` draws others each time."""

import gc
import os
import signal

from hypothesis import settings

from tests.fuzz.cases import SCALE

settings.register_profile("coterie", derandomize=SCALE == 1, deadline=None)
settings.load_profile("coterie")

# A shell that starts pytest in the background makes it ignore Ctrl-C, and so would all programs that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Thousands of small files are written, and a disk takes milliseconds to confirm each of them. Tests kill processes but
# never the machine, so that what the system has accepted is as good as on the disk. Descriptors are still checked.
os.fsync = lambda descriptor: os.fstat(descriptor) and None


# Collecting thousands of tests and importing torch makes millions of objects that stay until the end. Searching them
# for garbage again and again would take a sixth of the time of the tests: they are set aside once all are there.
gc.disable()


def pytest_collection_finish(session):
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()
