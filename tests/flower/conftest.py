"""These tests use no network, and are skipped without flwr (`tests/flower/test_flower_extra.py`)."""

import os
from importlib.util import find_spec

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"

collect_ignore_glob = [] if find_spec("flwr") else ["test_*.py"]
