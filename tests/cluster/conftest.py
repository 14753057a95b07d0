"""Two worker processes, which the tests of a module share."""

import pytest

from coterie.cluster.connection import connected, disconnect
from coterie.cluster.local import LocalWorkers


@pytest.fixture(scope="module")
def local():
    """Two real worker processes and their scheduler."""
    workers = LocalWorkers.start(2)
    yield workers
    disconnect(workers.address)
    workers.end()


@pytest.fixture
def connection(local):
    return connected(local.address)
