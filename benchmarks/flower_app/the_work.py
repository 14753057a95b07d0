"""Common parts of both kinds of exchange: samples, network, settings. Imports nothing but torch and numpy."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch.nn import functional

NODES, CLUSTERS = 3, 2
SAMPLES, FEATURES, CLASSES = 32, 784, 10
LR = 0.1
Params = dict[str, torch.Tensor]


def samples(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return features (n, d) and labels (n,) of the client with this number; every class occurs."""
    random = np.random.default_rng(number)
    return random.standard_normal((SAMPLES, FEATURES), dtype=np.float32), np.arange(SAMPLES) % CLASSES


def loss_of(theta: Params, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = functional.linear(x, theta["layer0.weight"], theta["layer0.bias"])
    return functional.cross_entropy(functional.linear(z.relu(), theta["layer1.weight"], theta["layer1.bias"]), y)


def local_round(models: Params, number: int) -> tuple[int, float, Params]:
    """IFCA's local round in plain torch: the best of the models {name: (K, ...)}, its loss, and one step's change."""
    x, y = map(torch.from_numpy, samples(number))
    with torch.no_grad():
        losses = [loss_of({n: p[k] for n, p in models.items()}, x, y) for k in range(CLUSTERS)]
    best = int(torch.stack(losses).argmin())
    theta = {name: p[best].clone().requires_grad_() for name, p in models.items()}
    loss = loss_of(theta, x, y)
    steps = torch.autograd.grad(loss, list(theta.values()))
    return best, loss.item(), {name: -LR * step for name, step in zip(theta, steps, strict=True)}


@contextmanager
def noted(kind: str, folder: str) -> Iterator[None]:
    """Log the processor seconds of this process before and after the work on a message."""
    started = time.process_time()
    yield
    with open(f"{folder}/{kind}-{os.getpid()}.json", "w") as file:
        json.dump([kind, started, time.process_time()], file)
