"""Clients whose samples follow several concepts: no single model fits all samples of a client."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, generator, key_for
from coterie.data.scenarios.diverse_shift import recommended_for, shares_of
from coterie.data.scenarios.shifts.concepts import Ints, label_swap
from coterie.data.scenarios.shifts.federate import clients_of, federate, finished, newcomers, settle_sizes
from coterie.data.scenarios.shifts.labels import deal
from coterie.data.scenarios.shifts.pictures import View, pictures


def mixed_clients(
    *,
    dataset: str = "digits",
    clients: int | None = None,
    samples: int | None = None,
    test_samples: int | None = None,
    concepts: int = 3,
    beta: float = 0.4,
    mixing: float = 0.4,
    label_shift: str = "none",
    alpha: float = 1.0,
    corruptions: bool = False,
    seed: int = 0,
) -> FederatedDataset:
    """The concepts of a client's samples are drawn from shares ~ Dir(mixing, ..., mixing), for held-out samples too.

    A small `mixing` gives clients of nearly one concept, a large one clients with all concepts alike. The truth of a
    training sample is its concept, that of a client the concept of most of its training samples. Newcomers are of one
    concept each.
    """
    random = generator(key_for(seed, Purpose.SCENARIO))
    source, view = pictures(dataset, random), View()
    sizes = settle_sizes(dataset, len(source.y_train), clients_of(dataset, clients), samples, test_samples)
    maps = label_swap(source.classes, concepts, beta)
    rows = deal(source.y_train, sizes.clients, sizes.each, shares_of(label_shift, alpha), random)
    shares = random.dirichlet(np.full(concepts, mixing), sizes.clients)
    own = np.stack([random.choice(concepts, sizes.each, p=share) for share in shares])
    built = federate(source, view, rows, maps, own, test_samples=sizes.test, corruptions=corruptions, seed=seed)
    options = {
        "dataset": dataset,
        **sizes.options,
        "concepts": concepts,
        "beta": beta,
        "mixing": mixing,
        "label_shift": label_shift,
        "alpha": alpha,
        "corruptions": corruptions,
    }
    built = replace(
        built,
        newcomers=newcomers(source, view, maps, random),
        sample_truth=own[:, : sizes.train].reshape(-1),
        client_notes=tuple(
            f"{_shared(row, concepts)}; {look}"
            for row, look in zip(own[:, : sizes.train], built.client_notes, strict=True)
        ),
    )
    return finished(built, "mixed-clients", options, {"clusters": concepts, **recommended_for(dataset)})


def _shared(concepts_of_samples: Ints, concepts: int) -> str:
    """Return the number of training samples of a client that follow each concept."""
    return "/".join(map(str, np.bincount(concepts_of_samples, minlength=concepts))) + " by concept"
