"""Wrong answers and wrong keys against real processes over TLS: one federation goes through them all."""

import pytest

from coterie.federation.flower.local.certificates import Certificates, NodeKey
from coterie.federation.flower.local.processes import Identity
from tests.faults.app.faulty.data import names, population
from tests.faults.make import assert_as_replayed, faulty, reasons, wait_until

pytestmark = pytest.mark.slow_processes

WRONG = {
    "nan": "has values in 'clusters/change/weight' that are not finite: refused",
    "shape": "has 'clusters/change/weight' as float64",
    "K": "of 'clusters', but there are 2: refused",
    "foreign": "answers for client 'somebody else', which was not asked there: refused",
    "huge": "but at most 100 is allowed: refused",
}


def test_wrong_answers_are_refused_silence_is_no_update_and_strangers_stay_outside(tmp_path):
    wrong = tuple(WRONG)
    silent = len(wrong)  # the round in which nobody answers, after one for each fault
    with faulty(tmp_path, "ifca", rounds=silent + 1, nodes=3, start=(0, 1)) as it:
        it.order(0, {**dict(enumerate(wrong)), silent: "raise"})
        it.order(1, {silent: "raise"})
        run = it.submit(nodes=2, most_change=100.0)
        federation = it.federation
        ca, stranger = federation.certificates.ca, NodeKey.at(tmp_path / "stranger").private
        other = Certificates.at(tmp_path / "others").ca
        outside = {
            "Failed to activate SuperNode": Identity(stranger, ca),
            "must be registered": Identity(None, ca),
            "CERTIFICATE_VERIFY_FAILED": Identity(federation.key(2).private, other),
        }
        refused = {why: federation.start_node(2 + i, who, wait=0) for i, (why, who) in enumerate(outside.items())}
        for why, child in refused.items():
            wait_until(f"a node ends with {why!r}", lambda child=child: child.exit_code() is not None)
            assert child.exit_code() != 0
            assert why in child.log.read_text()
        assert federation.online() == {0, 1}
        ended = it.completed(run)
    bad, good = names(0, of=3), names(1, of=3)
    *records, nobody = ended.records
    for record, name in zip(records, wrong, strict=True):
        assert WRONG[name] in reasons(record), name
        assert sorted(record["rejected"]) == sorted(bad), name
        assert (record["answered"], record["missing"]) == (len(good), []), name
    assert nobody["answered"] == 0
    assert sorted(nobody["missing"]) == sorted((*bad, *good))
    assert "this node was told to fail" in reasons(nobody)
    assert_as_replayed(ended, population(0, 1, of=3), "ifca")
