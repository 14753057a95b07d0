"""Wrong training labels under label shift and feature shift; all clients share one concept and are one true group.

Table of label noise in Guo, Tang, Lin: Enhancing Clustered Federated Learning, 2023.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, generator, key_for
from coterie.data.scenarios.diverse_shift import recommended_for, shares_of
from coterie.data.scenarios.shifts.concepts import label_swap
from coterie.data.scenarios.shifts.federate import clients_of, federate, finished, newcomers, settle_sizes
from coterie.data.scenarios.shifts.labels import deal
from coterie.data.scenarios.shifts.noise import pair_flips, symmetric_flips
from coterie.data.scenarios.shifts.pictures import pictures, view_of

FLIPS = {"pair": pair_flips, "symmetric": symmetric_flips}


def noisy_labels(
    *,
    dataset: str = "digits",
    clients: int | None = None,
    samples: int | None = None,
    test_samples: int | None = None,
    noise_kind: str = "pair",
    noise: float = 0.2,
    label_shift: str = "dirichlet_prior",
    alpha: float = 1.0,
    corruptions: bool = True,
    pool: int = 1,
    seed: int = 0,
) -> FederatedDataset:
    """Each training label is wrong with probability `noise`: the next class (pair), or any other (symmetric).

    Held-out labels and those of the newcomer are correct. Images and clients are those of diverse-shift with one
    concept and do not depend on the noise.
    """
    random = generator(key_for(seed, Purpose.SCENARIO))
    source = pictures(dataset, random)
    view = view_of(source, pool)
    sizes = settle_sizes(dataset, len(source.y_train), clients_of(dataset, clients), samples, test_samples)
    rows = deal(source.y_train, sizes.clients, sizes.each, shares_of(label_shift, alpha), random)
    one = label_swap(source.classes, 1, 0.0)
    built = federate(
        source,
        view,
        rows,
        one,
        np.zeros_like(rows),
        test_samples=sizes.test,
        corruptions=corruptions,
        seed=seed,
        transition=FLIPS[noise_kind](source.classes, noise),
    )
    options = {
        "dataset": dataset,
        **sizes.options,
        "noise_kind": noise_kind,
        "noise": noise,
        "label_shift": label_shift,
        "alpha": alpha,
        "corruptions": corruptions,
        "pool": pool,
    }
    built = replace(built, newcomers=newcomers(source, view, one, random))
    return finished(built, "noisy-labels", options, recommended_for(dataset))
