"""FedEM: every client is its own mixture of K models. (Marfoq, Neglia, Bellet, Kameni, Vidal 2021)

paper             here
theta_m           clusters.params, K = M          pi_t  the client's weights, kept by the client
q_t^k(z = m)      gamma, the responsibilities of a client's samples, once a round, in log space
eta, J            lr, local_steps or local_epochs  n_t / n  averaging=all, client_weight=samples

A client trains every model, with gamma on each sample's loss, so a model that explains little of its data moves
little. averaging=responsibility weighs its models by pi, so that a cluster's pace does not shrink with its mass.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from coterie.errors import ConfigError
from coterie.methods.base import CHOICE_OPTIONS, Entry, parts
from coterie.options import Option, Options
from coterie.tiers.assignment import EMMixture
from coterie.tiers.method import Method
from coterie.tiers.objective import Conditional, Objective
from coterie.tiers.procedure import Fixed


def fedem(options: Options) -> Method:
    """gamma_jk ~ pi_k p_k(y_j|x_j); pi_k = mean of gamma_jk; theta_k <- sum_i (n_i / n) theta_ik."""
    return soft("fedem", Conditional(), options)


def soft(name: str, objective: Objective, options: Options) -> Method:
    """Mixtures by EM under an objective."""
    common: dict[str, Any] = parts(options)
    if options.shared not in (None, "body"):
        raise ConfigError(f"{name} can share a network's body and nothing else: shared=body, not {options.shared}")
    if options.shared and options.restarts > 1:
        raise ConfigError(f"{name}: a shared body has one start, but restarts={options.restarts}: leave it at 1")
    common["work"] = replace(common["work"], order=options.own.get("order", "together"))
    if options.averaging == "responsibility":
        common["averaging"] = replace(common["averaging"], over="responsibility")
    return Method(name, objective, EMMixture(), Fixed(options.clusters), **common)


ORDER = Option(
    "order",
    str,
    "with shared=body: steps on all heads while features stay as they are and then on the body, or on both together",
    "together",
    ("heads-first", "together"),
)

ENTRY = Entry(
    name="fedem",
    summary="every client is its own mixture of the clusters' models",
    paper="Marfoq, Neglia, Bellet, Kameni, Vidal: Federated Multi-Task Learning under a Mixture of Distributions, 2021",
    compose=fedem,
    refuses=frozenset({"combine", "exchange"}),
    options=(*CHOICE_OPTIONS, ORDER),
    defaults=lambda given: {"clusters": 3, "client_weight": "samples", "averaging": "all"},
    twin="fedavg",
    reveals={"cluster": "which cluster weighs most for it"},
    newcomers="mixture",
)
