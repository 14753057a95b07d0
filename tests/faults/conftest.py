"""These tests use no network, are skipped without flwr, and let the SuperExec poll often."""

import os
from importlib.util import find_spec

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.2"

collect_ignore_glob = [] if find_spec("flwr") else ["test_*.py"]
