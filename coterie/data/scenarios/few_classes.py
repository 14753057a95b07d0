"""Clients with few classes each; labels mean the same for all clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, generator, key_for
from coterie.data.scenarios.diverse_shift import recommended_for
from coterie.data.scenarios.shifts.concepts import Ints, label_swap
from coterie.data.scenarios.shifts.federate import clients_of, federate, finished, newcomers, settle_sizes
from coterie.data.scenarios.shifts.labels import classes_per_client, deal_classes, most_of_classes
from coterie.data.scenarios.shifts.pictures import pictures, view_of


def few_classes(
    *,
    dataset: str = "digits",
    clients: int | None = None,
    samples: int | None = None,
    test_samples: int | None = None,
    classes_each: int = 2,
    pool: int = 1,
    seed: int = 0,
) -> FederatedDataset:
    """A client has equally many images of each of its `classes_each` classes.

    With two classes each, the classes are cut into disjoint random pairs, and the pairs are the true groups; else a
    client's classes are drawn so that all are used equally often, and there are no groups. A client's held-out samples
    are of its classes; the newcomer holds all classes equally often.
    """
    random = generator(key_for(seed, Purpose.SCENARIO))
    source = pictures(dataset, random)
    view = view_of(source, pool)
    m = clients_of(dataset, clients)
    chosen = classes_per_client(source.classes, classes_each, m, random)
    sizes = settle_sizes(dataset, m * most_of_classes(source.y_train, chosen), m, samples, test_samples)
    rows = deal_classes(source.y_train, chosen, sizes.each, random)
    one = label_swap(source.classes, 1, 0.0)
    built = federate(
        source, view, rows, one, np.zeros_like(rows), test_samples=sizes.test, corruptions=False, seed=seed
    )
    sets, truth = np.unique(chosen, axis=0, return_inverse=True)
    apart = sets.size == len(np.unique(chosen))  # no class in two sets
    built = replace(
        built,
        truth=truth.reshape(-1) if apart else None,
        group_names=tuple(_named(own) for own in sets) if apart else (),
        client_notes=tuple(_named(own) for own in chosen),
        newcomers=newcomers(source, view, one, random),
    )
    options = {"dataset": dataset, **sizes.options, "classes_each": classes_each, "pool": pool}
    recommended = recommended_for(dataset) | ({"clusters": len(sets)} if apart else {})
    return finished(built, "few-classes", options, recommended)


def _named(classes: Ints) -> str:
    return "classes " + ", ".join(map(str, classes))
