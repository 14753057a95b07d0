"""hcfl+ with hard clients and with personal heads, against plain loops; settings that backbones refuse."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

import coterie
from coterie.client.kept import KEPT_CLUSTER, kept_clusters
from coterie.core.client_state import ClientStates
from coterie.core.clusters import Clusters
from coterie.core.keys import hash_ids
from coterie.core.messages import Broadcast, Reply
from coterie.core.sampling import choose
from coterie.errors import ConfigError
from coterie.methods import find_method
from coterie.server.aggregate import RoundReplies
from coterie.testing.checks import small_federation
from coterie.tiers.assignment import NearestParameters
from coterie.training.planning import prepare
from tests.methods.test_hcfl import LR, STEPS, Model, clients_of, cosine, run, softmax, two_parts

HEAD, BODY = ("layer1.weight", "layer1.bias"), ("layer0.weight", "layer0.bias")


def features(body: Model, x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ body["layer0.weight"].T + body["layer0.bias"], 0)


def said(head: Model, z: np.ndarray) -> np.ndarray:
    return softmax(z @ head["layer1.weight"].T + head["layer1.bias"])


def loss(head: Model, z: np.ndarray, y: np.ndarray) -> float:
    out = z @ head["layer1.weight"].T + head["layer1.bias"]
    return float((np.logaddexp.reduce(out, axis=1) - out[np.arange(len(y)), y]).mean())


def head_steps(
    head: Model, z: np.ndarray, y: np.ndarray, lr: float, lam: float = 0.0, centre: Model | None = None
) -> Model:
    """Full-batch steps on the mean loss + lam/2 |head - centre|^2 with fixed features."""
    head = {n: v.copy() for n, v in head.items()}
    for _ in range(STEPS):
        error = (said(head, z) - np.eye(3)[y]) / len(y)
        slope = {"layer1.weight": error.T @ z, "layer1.bias": error.sum(axis=0)}
        pull = {n: lam * (v - centre[n]) if centre else 0.0 for n, v in head.items()}
        head = {n: v - lr * (slope[n] + pull[n]) for n, v in head.items()}
    return head


def body_steps(body: Model, head: Model, x: np.ndarray, y: np.ndarray, lr: float) -> Model:
    """Full-batch steps on the body with a fixed head."""
    body = {n: v.copy() for n, v in body.items()}
    for _ in range(STEPS):
        z = features(body, x)
        back = (said(head, z) - np.eye(3)[y]) / len(y) @ head["layer1.weight"] * (z > 0)
        body["layer0.weight"] -= lr * back.T @ x
        body["layer0.bias"] -= lr * back.sum(axis=0)
    return body


def mean(models: Sequence[Model], mass: Sequence[float]) -> Model:
    return {n: sum(w * m[n] for w, m in zip(mass, models, strict=True)) / sum(mass) for n in models[0]}


def apart(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> float:
    """Return the ASCP distances of clients, given as (features, labels)."""
    both = set(one[1]) & set(other[1])
    by_class = [1 - cosine(one[0][one[1] == c].mean(axis=0), other[0][other[1] == c].mean(axis=0)) for c in both]
    return max(0.0, *by_class, 1 - cosine(one[0].mean(axis=0), other[0].mean(axis=0)))


class Plain:
    """The server's side of a plain loop over rounds, except for the update of the heads."""

    def __init__(self, data, first: list[Model], share: float, rho: float, most: int) -> None:
        self.clients, self.hashes = clients_of(data), hash_ids(data.clients)
        self.body = {n: first[0][n] for n in BODY}
        self.heads = [{n: m[n] for n in HEAD} for m in first]
        self.sizes = np.array([len(y) for _, y in self.clients], dtype=float)
        self.main = np.full(len(self.clients), -1)
        self.share, self.rho, self.most, self.kinds = share, rho, most, []

    def asked(self, t: int) -> list[int]:
        return [int(i) for i in choose(self.hashes, self.share, 1, t)]

    def widest(self, asked: list[int], z: dict[int, np.ndarray], weight) -> tuple[int, list[int], list[int]] | None:
        """Return the cluster to split and its two parts, by distances times weights."""
        found = []
        for k in range(len(self.heads)):
            members = sorted((i for i in asked if self.main[i] == k), key=lambda i: self.hashes[i])
            table = np.zeros((len(members), len(members)))
            for a, i in enumerate(members):
                for b, j in enumerate(members):
                    if a != b:
                        pair = [(z[c], self.clients[c][1]) for c in (i, j)]
                        table[a, b] = apart(*pair) * weight(i, k) * weight(j, k)
            found.append((members, np.clip(table, 0, 2)))
        k = max(range(len(found)), key=lambda k: found[k][1].max() if len(found[k][0]) > 1 else -1)
        members, table = found[k]
        if len(self.heads) >= self.most or len(members) < 2 or table.max() - table.mean() < self.rho:
            return None
        self.kinds.append("split")
        first, second = two_parts(table)
        return k, [members[a] for a in first], [members[b] for b in second]

    def claimed(self) -> list[int]:
        """Return the clusters that have a client."""
        return [k for k in range(len(self.heads)) if (self.main == k).any()]

    def keep(self, alive: list[int]) -> None:
        """Remove all other clusters."""
        if len(alive) < len(self.heads):
            self.kinds.append("remove")
            self.main = np.array([alive.index(k) if k in alive else -1 for k in self.main])
            self.heads = [self.heads[k] for k in alive]

    def agrees_with(self, result, grown: list[int]) -> None:
        assert [record["K"] for record in result.records] == grown
        events = [event["kind"] for record in result.records for event in record.get("events", ())]
        assert events == self.kinds
        assert {"split", "remove"} <= set(events), "there must be both to see"
        for model, head in zip(result.models, self.heads, strict=True):
            for name, value in (self.body | head).items():
                assert model[name] == pytest.approx(value, rel=1e-9, abs=1e-11)


@pytest.mark.filterwarnings("ignore::coterie.errors.DivergenceWarning")  # the steps are deliberately too long
@pytest.mark.parametrize("share", [1.0, 0.6])
def test_hard_clients_against_a_plain_loop(share: float):
    """With long steps, since after short ones every model is nearest to the one it started from."""
    data, lr = small_federation("mlp"), 8.0
    options = {
        "backbone": "fesem",
        "clusters": 4,
        "rho": 0.1,
        "max_clusters": 7,
        "participation": share,
        "lr": lr,
        "grace": 0,
        "rounds": 5,  # a later one ends the run, since the training diverges
    }
    first, result = run(data, "hcfl+", "mlp:hidden=6", order="heads-first", **options)
    plain, grown = Plain(data, first, share, 0.1, 7), []
    may_be: list[set[int]] = [set() for _ in plain.clients]  # cluster that each client keeps
    for t in range(5):
        asked, K = plain.asked(t), len(plain.heads)
        z, trained, bodies = {}, {}, []
        for i in asked:
            x, y = plain.clients[i]
            z[i] = features(plain.body, x)
            losses = {k: loss(plain.heads[k], z[i], y) for k in range(K)}
            begin = min(may_be[i] or losses, key=lambda k: (losses[k], k))
            trained[i] = head_steps(plain.heads[begin], z[i], y, lr)
            bodies.append(body_steps(plain.body, trained[i], x, y, lr))
            far = [sum(((trained[i][n] - head[n]) ** 2).sum() for n in HEAD) for head in plain.heads]
            plain.main[i] = int(np.argmin(far))
            may_be[i] = {int(plain.main[i])}
        plain.body = mean(bodies, plain.sizes[asked])

        def made(members: list[int]) -> Model:
            return mean([trained[i] for i in members], [plain.sizes[i] for i in members])  # noqa: B023

        inside = [[i for i in asked if plain.main[i] == k] for k in range(K)]
        plain.heads = [made(m) if m else plain.heads[k] for k, m in enumerate(inside)]
        alive = plain.claimed()
        if (cut := plain.widest(asked, z, lambda i, k: 1.0)) is not None:
            k, one, other = cut
            plain.heads[k] = made(one)
            plain.heads.append(made(other))
            new = len(plain.heads) - 1
            may_be = [some | {new} if k in some and i not in one else some for i, some in enumerate(may_be)]
            alive.append(new)
            for i in other:
                plain.main[i], may_be[i] = new, {new}
        plain.keep(alive)
        may_be = [{alive.index(k) for k in some if k in alive} for some in may_be]
        grown.append(len(plain.heads))
    plain.agrees_with(result, grown)
    assert [result.assignments[c] for c in data.clients] == plain.main.tolist()
    assert sum(record["moved"] for record in result.records) > 3


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_personal_heads_against_a_plain_loop(share: float):
    data = small_federation("mlp")
    lam, rho = 0.4, 0.1
    options = {"backbone": "fedsoft", "lam": lam, "rho": rho, "max_clusters": 4, "participation": share, "grace": 0}
    first, result = run(data, "hcfl+", "mlp:hidden=6", order="heads-first", **options)
    plain, grown = Plain(data, first, share, rho, 4), []
    wt = [np.ones(1) for _ in plain.clients]
    own: dict[int, Model] = {}
    for t in range(6):
        asked, K, z, bodies = plain.asked(t), len(plain.heads), {}, []
        for i in asked:
            x, y = plain.clients[i]
            z[i] = features(plain.body, x)
            likely = np.stack([said(head, z[i])[np.arange(len(y)), y] for head in plain.heads], axis=1)
            wt[i] = wt[i] if i in own else np.full(K, 1 / K)
            wt[i] = (wt[i] * likely / (wt[i] * likely).sum(axis=1, keepdims=True)).mean(axis=0)
            centre = mean(plain.heads, wt[i])
            own[i] = head_steps(own.get(i, centre), z[i], y, LR, lam, centre)
            bodies.append(body_steps(plain.body, own[i], x, y, LR))
            plain.main[i] = wt[i].argmax()
        plain.body = mean(bodies, plain.sizes[asked])

        def made(k: int, members: list[int]) -> Model:
            return mean([own[i] for i in members], [before[i][k] * plain.sizes[i] for i in members])  # noqa: B023

        before = list(wt)
        plain.heads = [made(k, asked) for k in range(K)]
        alive = plain.claimed()
        if (cut := plain.widest(asked, z, lambda i, k: wt[i][k])) is not None:  # noqa: B023
            k, one, other = cut
            plain.heads[k] = made(k, one)
            plain.heads.append(made(k, other))
            alive.append(K)
            wt = [np.append(w, w[k] / 2) * np.where(np.arange(len(w) + 1) == k, 0.5, 1) for w in wt]
        plain.keep(alive)
        wt = [w[alive] / w[alive].sum() for w in wt]
        grown.append(len(plain.heads))
    plain.agrees_with(result, grown)
    assert result.weights == pytest.approx(np.array(wt), rel=1e-9, abs=1e-12)
    for i, client in enumerate(data.clients):  # a client that trained predicts with its own head
        x = data.test.x[data.test.starts[i] : data.test.stops[i]].numpy()
        z = features(plain.body, x.reshape(len(x), -1))
        assert result.predict(x, client=client).tolist() == said(own[i], z).argmax(axis=1).tolist()


def test_an_absent_client_follows_the_changes_of_its_cluster():
    """Kept clusters 0, 1, 1, 2 and none; 0 became 0 and 3, 1 stayed, the third client went to 3, 2 was removed."""
    states = ClientStates.of(5)
    states.write(np.arange(4), 7, {KEPT_CLUSTER: torch.tensor([[0], [1], [1], [2]])})
    common = torch.tensor([[0.5, 0, 0, 0.5], [0, 1.0, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)
    flow = torch.stack([common, common, torch.eye(4, dtype=torch.float64)[[3, 3, 3]], common, common])
    sent = {"accepted": torch.tensor([7, 7, 7, 7, -1]), "flow": flow}
    losses = torch.tensor([[0.3, 0.1, 0.0, 0.2]], dtype=torch.float64).expand(5, 1, 4)
    broadcast = Broadcast(9, Clusters({}, K=4), each=sent)
    found = kept_clusters(states, np.arange(5), broadcast, losses, NearestParameters().client_first)
    assert found.flatten().tolist() == [3, 1, 3, 2, 2]


@pytest.mark.parametrize("backbone", ["fesem", "fedsoft"])
def test_order_together_is_one_descent_of_head_and_body(backbone: str):
    """One step: both gradients are taken at the old head and body, so the order matters only for the body."""
    data = small_federation("mlp")
    common = {"backbone": backbone, "rounds": 1, "local_steps": 1, "max_clusters": 1}
    first, result = run(data, "hcfl+", "mlp:hidden=6", order="together", **common)
    head, body = {n: first[0][n] for n in HEAD}, {n: first[0][n] for n in BODY}
    heads, bodies, sizes = [], [], []
    for x, y in clients_of(data):
        z = features(body, x)
        error = (said(head, z) - np.eye(3)[y]) / len(y)
        heads.append({"layer1.weight": head["layer1.weight"] - LR * error.T @ z})
        back = error @ head["layer1.weight"] * (z > 0)
        bodies.append({"layer0.weight": body["layer0.weight"] - LR * back.T @ x})
        sizes.append(len(y))
    for name, value in (mean(heads, sizes) | mean(bodies, sizes)).items():
        assert result.models[0][name] == pytest.approx(value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("hcfl+", {"backbone": "fesem", "mu": 0.4}, "which backbone fesem does not have: leave mu out"),
        ("hcfl+", {"backbone": "fedsoft", "mu": 0.0}, "which backbone fedsoft does not have: leave mu out"),
        ("hcfl+", {"backbone": "fesem", "split": "soft"}, "every client has one cluster: leave split out"),
        ("hcfl+", {"lam": 0.1}, "backbone fedem has none: leave lam out"),
        ("hcfl", {"backbone": "fesem", "lam": 0.1}, "backbone fesem has none"),
        ("hcfl-split", {"backbone": "fedsoft", "averaging": "all"}, "but averaging=all: leave averaging out"),
    ],
)
def test_settings_that_a_backbone_lacks_are_refused(method: str, options: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        coterie.fit(small_federation("mlp"), method, learner="mlp:hidden=6", rounds=1, **options)


def test_rows_and_newcomers_follow_the_backbone():
    plus = find_method("hcfl+")
    assert {"cluster", "change"} < set(plus(backbone="fesem").reveals())
    assert not {"weights", "model", "labels"} & set(plus(backbone="fesem").reveals())
    assert "change" not in plus(backbone="fedsoft", rho=0.3).reveals()
    assert "half of its samples" in plus(backbone="fedsoft").reveals()["change"], "which tests need"
    assert [plus(backbone=b).placing for b in ("fesem", "fedsoft")] == ["least-loss", "mixture"]
    assert find_method("hcfl")(backbone="fedsoft").placing == "least-loss"


@pytest.mark.parametrize(
    ("backbone", "floats_up", "numbers_up"),
    [
        # body 6 x 16 + 6, K = 2 heads of 3 x 6 + 3, K weights, K C class counts, C + 1 means of d = 6, C counts
        ("fedrc", 102 + 2 * 21 + 2 + 2 * 3 + 4 * 6 + 3, 6),  # plus the penalty of eq. 2, since mu is 0.4
        ("fedem", 102 + 2 * 21 + 2 + 4 * 6 + 3, 5),
        # one head each; no weights where a client has one cluster
        ("fesem", 102 + 21 + 4 * 6 + 3, 4),
        ("fedsoft", 102 + 21 + 2 + 4 * 6 + 3, 4),
    ],
)
def test_a_round_costs_one_body_and_the_heads(backbone: str, floats_up: int, numbers_up: int):
    """Each also sends its loss, samples, cluster and the body's index, and mixtures their likelihood; it receives one
    body, K heads, the flow of its weights and 3 numbers; mixtures the loss before, those of fedrc K C shares."""
    options = {"backbone": backbone, "clusters": 2, "rho": 1e9, "remove": False, "rounds": 2}
    _, result = run(small_federation("mlp"), "hcfl+", "mlp:hidden=6", **options)
    last = result.records[-1]
    assert last["bytes_up"] == 9 * 8 * (floats_up + numbers_up)
    common = {"fedrc": 1 + 2 * 3, "fedem": 1}.get(backbone, 0)
    assert last["bytes_down"] == 9 * 8 * (102 + 2 * 21 + 2 * 2 + 3 + common)


NEVER_SPLIT = {"hcfl+": {"rho": 1e9, "remove": False}, "hcfl": {"warmup": 99}}


@pytest.mark.parametrize(
    ("method", "backbone", "other", "options"),
    [
        ("hcfl", "fesem", "fesem", {"init": "random"}),
        ("hcfl", "fedsoft", "fedsoft", {}),
        ("hcfl+", "fesem", "tiered", {"assignment": "nearest-parameters", "shared": "body"}),
        ("hcfl+", "fedsoft", "tiered", {"assignment": "personal-em", "shared": "body"}),
    ],
)
def test_a_method_without_splits_equals_its_backbone(
    method: str, backbone: str, other: str, options: dict[str, object]
):
    """Updates as one row per client, or summed by the clients, give the same result."""
    data, common = small_federation("mlp"), {"clusters": 2, "rounds": 3, "batch_size": 4}
    _, one = run(data, method, "mlp:hidden=6", backbone=backbone, **common, **NEVER_SPLIT[method])
    _, two = run(data, other, "mlp:hidden=6", **common, **options)
    for a, b in zip(one.models, two.models, strict=True):
        for name, value in b.items():
            assert a[name] == pytest.approx(value, rel=1e-9, abs=1e-12)
    assert one.assignments == two.assignments


def test_a_personal_model_counts_as_an_update_of_every_cluster():
    """Models 1 and 4, of 1 and 3 samples; weights (1, 0) and (1/4, 3/4); clusters at 0 and 2."""
    tiers = prepare(small_federation("mlp"), "fedsoft", "mlp:hidden=6", {"clusters": 2}).tiers
    clusters = Clusters({"w": torch.tensor([[0.0], [2.0]], dtype=torch.float64)}, K=2)
    weights = torch.tensor([[[1.0, 0.0]], [[0.25, 0.75]]], dtype=torch.float64)
    rows = {"model": torch.tensor([[[1.0]], [[4.0]]], dtype=torch.float64), "weights": weights}
    reply = Reply(("a", "b"), rows=rows)
    replies = RoundReplies(clusters, reply, np.array([1, 3]), np.arange(2), tiers.averaging)
    found = tiers.assignment.server_changes(replies)
    assert found.vectors[..., 0].tolist() == [[1, -1], [4, 2]]
    # (1 1 + 3/4 4) / (1 + 3/4), and the second client's model alone
    assert found.mean(0, ("a", "b"))["w"].item() == pytest.approx(4 / 1.75)
    assert found.mean(1, ("b",))["w"].item() == pytest.approx(4)
