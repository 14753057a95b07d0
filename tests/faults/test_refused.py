"""Wrong answers and wrong keys with real processes over TLS, all of them in one federation.

tests/flower/test_attacks.py runs all attacks through the same checks in one process.
"""

import pytest

from coterie.flower.local.certificates import Certificates, NodeKey
from coterie.flower.local.processes import Identity
from tests.faults.app.faulty.data import names, population
from tests.faults.make import assert_equals_replay, faulty, reasons, wait_until
from tests.flower.attacks import ATTACKS

pytestmark = pytest.mark.slow_processes

NODES = 5
BAD, GOOD, HOSTILE = 0, 1, {2: "sizes of 10^30", 3: "a surrogate in an id", 4: "classes 10^10"}
"""A node with wrong answers, an honest node, and nodes that are hostile at their first onboarding."""
WRONG = {
    "nan": "has values in 'clusters/change/weight' that are not finite: refused",
    "shape": "has 'clusters/change/weight' as float64",
    "K": "of 'clusters', but there are 2: refused",
    "foreign": "answers for client 'somebody else', which was not asked at this node: refused",
    "huge": "but at most 100 is allowed: refused",
}
ROUNDS = (
    "npz",
    "a shape of 10^13",
    "a damaged header",
    "deep JSON",
    "nothing",
    "a mass of all samples",
    "an infinite loss",
    "negative counts",
)
"""Attacks in the rounds after those of WRONG."""


def test_wrong_answers_and_unknown_nodes_are_refused_and_silence_changes_nothing(tmp_path):
    assert {*ROUNDS, *HOSTILE.values()} <= ATTACKS.keys()
    wrong = (*WRONG, *ROUNDS)
    silent = len(wrong)  # the round without answers, after one round for each fault
    with faulty(tmp_path, "ifca", rounds=silent + 1, nodes=NODES) as it:
        it.order(BAD, {**dict(enumerate(wrong)), silent: "raise", "evaluate": "NaN everywhere"})
        it.order(GOOD, {silent: "raise"})
        for node, attack in HOSTILE.items():
            it.order(node, {"list-clients": attack})
        run = it.submit(nodes=2, most_change=100.0)
        federation = it.federation
        ca, unknown = federation.certificates.ca, NodeKey.at(tmp_path / "unknown").private
        other = Certificates.at(tmp_path / "others").ca
        outside = {
            "Failed to activate SuperNode": Identity(unknown, ca),
            "must be registered": Identity(None, ca),
            "CERTIFICATE_VERIFY_FAILED": Identity(federation.key(GOOD).private, other),
        }
        refused = {why: federation.start_node(NODES + i, who, wait=0) for i, (why, who) in enumerate(outside.items())}
        for why, child in refused.items():
            wait_until(f"a node ends with {why!r}", lambda child=child: child.exit_code() is not None)
            assert child.exit_code() != 0
            assert why in child.log.read_text()
        assert federation.online() == set(range(NODES))
        ended = it.completed(run)
        assert "NaN" not in (it.out / "result.json").read_text(), "scores are not checked like answers to rounds"
        ids = federation.node_ids
    bad, good = names(BAD, of=NODES), names(GOOD, of=NODES)
    assert sorted(ended.assignments) == sorted((*bad, *good)), "a hostile node has registered clients"
    for node in HOSTILE:
        assert f"node {ids[node]} " in reasons(ended.records[0])
    *records, silent = ended.records
    for record, name in zip(records, wrong, strict=True):
        assert WRONG.get(name, f"node {ids[BAD]} ") in reasons(record), name
        assert ": refused" in reasons(record)
        assert sorted(record["rejected"]) == sorted(bad), name
        assert (record["answered"], record["missing"]) == (len(good), []), name
    assert silent["answered"] == 0
    assert sorted(silent["missing"]) == sorted((*bad, *good))
    assert "this node was ordered to fail" in reasons(silent)
    assert_equals_replay(ended, population(BAD, GOOD, of=NODES), "ifca")
