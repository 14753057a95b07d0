"""Flower starts a process at a node for every message, so a node imports only the modules that the message needs."""

import json
import subprocess
import sys

SERVES_A_ROUND = """
import json, sys
import torch
from coterie import from_arrays
from coterie.core.clusters import Clusters
from coterie.core.messages import Broadcast
from coterie.flower.exchange import Exchange
from coterie.flower.in_process import InProcessGrid
from coterie.flower.node import make_client_app
from coterie.flower.terms import Terms
from coterie.flower.wire import Request, read_answer, request_content
from coterie.learners.local_training import FullBatch
from coterie.client.tasks import LocalRound
from coterie.tiers.objective import Conditional
from coterie.tiers.assignment import LowestLoss

x, y = torch.eye(2, dtype=torch.float64), torch.tensor([3.0, 5.0], dtype=torch.float64)
app = make_client_app(lambda context: from_arrays({"a": (x.numpy(), y.numpy())}))
task = LocalRound(Conditional(), FullBatch(steps=1), "uniform", 0, assignment=LowestLoss())
broadcast = Broadcast(0, Clusters({"weight": torch.zeros(1, 2, dtype=torch.float64)}, 1), scalars={"lr": 1.0})
learner = "linear:bias=false,degree=1,half=true,scale=1.0,start=normal"
terms = Terms("r", learner, (2,), None, "float64", None, 0, False)
request = Request(terms, task, broadcast, ("a",), (-1,))
received = Exchange(InProcessGrid({1: app})).send({1: request_content(request)})
change = read_answer(received.contents[1], "local-round").reply.slotted["clusters"].arrays["change/weight"]
print(json.dumps([change.tolist(), sorted(sys.modules)]))
"""
HEAVY = (
    "scipy", "sklearn", "numba", "jinja2", "tomllib", "torch._dynamo", "coterie.cli", "coterie.data.loaders",
    "coterie.evaluate", "coterie.training.fitting", "coterie.methods", "coterie.training.planning", "coterie.report",
    "papers", "coterie.data.registry", "coterie.data.table", "coterie.server.clustering", "coterie.training.loop",
)  # fmt: skip


def test_a_node_imports_only_what_a_round_needs():
    done = subprocess.run([sys.executable, "-c", SERVES_A_ROUND], capture_output=True, text=True, check=True)
    change, modules = json.loads(done.stdout)
    assert change == [[1.5, 2.5]]  # one step of size 1 down the mean of (w_j - y_j)^2 / 2 over the two samples
    assert not {name for name in modules if name.startswith(tuple(f"{heavy}." for heavy in HEAVY))}
    assert not set(modules) & set(HEAVY)
