"""Private runs: clipping, noise and accounting of replies, which otherwise do not depend on the data."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import coterie
from coterie import fit, from_arrays
from coterie.core.clusters import Clusters
from coterie.core.keys import hash_ids
from coterie.core.messages import Broadcast, Reply, Slotted
from coterie.errors import ConfigError
from coterie.methods import CFL, Method
from coterie.privacy.accountant import Answer, choice_for, epsilon, noise_for
from coterie.privacy.client import clipped, made_private, randomised_choice
from coterie.privacy.mechanism import Privacy, response_probability
from coterie.privacy.noise import SeededNoise, SystemNoise
from coterie.privacy.server import denominators, with_noise
from coterie.testing.checks import CHECKS, Case
from coterie.training.budget import Spending
from coterie.training.planning import prepare

pytest.importorskip("dp_accounting", reason="private runs need coterie[privacy]")

NAMES = hash_ids([f"c{i}" for i in range(30_000)])


@dataclass(frozen=True)
class Silent:
    """Source without noise and with honest choices, for tests of the sensitivity."""

    def uniforms(self, round_, hashes):
        return np.zeros(len(hashes))

    def normals(self, round_, hashes, width):
        return np.zeros((len(hashes), width))


# ---- the client's part -------------------------------------------------------------------------------------------


def test_a_change_is_clipped_with_all_parameters_together():
    # |(3, 4)| = 5 is cut to 2: times 0.4. |(0.3, 0.4)| = 0.5 stays. What is not finite, or 0, is no change
    rows = torch.tensor([[3, 4], [0.3, 0.4], [math.nan, 1], [math.inf, 1], [1e200, 0], [0, 0]], dtype=torch.float64)
    expected = torch.tensor([[1.2, 1.6], [0.3, 0.4], [0, 0], [0, 0], [2, 0], [0, 0]], dtype=torch.float64)
    assert torch.allclose(clipped(rows, 2.0), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("noise", [SeededNoise(3), SystemNoise()], ids=["keyed", "system"])
def test_the_noise_has_the_declared_standard_deviation(noise):
    drawn = noise.normals(0, NAMES[:800], 50)
    sent = made_private(torch.zeros(800, 50, dtype=torch.float64), Privacy("local", 0.5, 3.0), drawn)
    # of 40 000 numbers the deviation has a standard error of 0.35 %, the mean one of 0.5 % of 1.5
    assert float(sent.std()) == pytest.approx(1.5, rel=0.02)
    assert abs(float(sent.mean())) < 0.05
    assert len(torch.unique(sent)) == sent.numel()


def test_noise_by_key_repeats_and_other_noise_does_not():
    some = NAMES[:4]
    one, again = SeededNoise(3).normals(5, some, 3), SeededNoise(3).normals(5, some[::-1], 3)[::-1]
    assert np.array_equal(one, again)
    for other in (
        SeededNoise(4).normals(5, some, 3),
        SeededNoise(3).normals(6, some, 3),
        SystemNoise().normals(5, some, 3),
    ):
        assert not np.isclose(one, other).any()
    assert not np.array_equal(SystemNoise().uniforms(5, some), SystemNoise().uniforms(5, some))


def test_a_cluster_is_reported_with_the_probability_of_its_epsilon():
    K, eps = 3, 1.0
    keep = math.e / (math.e + 2)  # 0.576
    chosen = torch.tensor([0, 1, 2]).repeat(10_000)
    reported = randomised_choice(chosen, K, eps, SeededNoise(0).uniforms(1, NAMES))
    share = np.array([[float((reported[chosen == c] == k).double().mean()) for k in range(K)] for c in range(K)])
    assert response_probability(eps, K) == pytest.approx(keep)
    # a share of 10 000 has a standard error of at most 0.5 %
    assert share == pytest.approx(np.where(np.eye(K) == 1, keep, (1 - keep) / 2), abs=0.025)


# ---- the accountant ----------------------------------------------------------------------------------------------


def phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def gaussian_delta(ratio: float, eps: float) -> float:
    """Balle and Wang 2018, theorem 8, for any sign of epsilon."""
    return phi(0.5 / ratio - eps * ratio) - math.exp(eps) * phi(-0.5 / ratio - eps * ratio)


def mixed_delta(answer: Answer, count: int, eps: float) -> float:
    """Return the exact delta by summation over the number of honest choices, whose losses are +- epsilon."""
    assert answer.choice is not None
    p = 1 / (1 + math.exp(-answer.choice))
    ratio = answer.ratio / math.sqrt(count)
    shares = [math.comb(count, j) * p**j * (1 - p) ** (count - j) for j in range(count + 1)]
    losses = [(2 * j - count) * answer.choice for j in range(count + 1)]
    return sum(s * gaussian_delta(ratio, eps - loss) for s, loss in zip(shares, losses, strict=True))


@pytest.mark.parametrize(("ratio", "count"), [(0.5, 1), (1.0, 1), (4.0, 1), (4.0, 16), (30.0, 100)])
def test_epsilon_of_gaussian_noise_is_the_closed_form(ratio, count):
    eps = epsilon(Answer(ratio), count, 1e-5)
    assert gaussian_delta(ratio / math.sqrt(count), eps) == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize(("ratio", "choice", "count"), [(1.0, 0.5, 1), (2.0, 0.3, 4), (4.0, 0.2, 30), (1e6, 0.5, 20)])
def test_epsilon_of_choices_and_noise_is_the_exact_sum(ratio, choice, count):
    answer = Answer(ratio, choice)
    eps = epsilon(answer, count, 1e-5)
    assert mixed_delta(answer, count, eps) <= 1e-5 * (1 + 1e-6)  # never too little
    assert mixed_delta(answer, count, 0.98 * eps) > 1e-5  # and within two percent


def test_the_noise_for_a_budget_is_the_smallest_that_keeps_it():
    for choice in (None, choice_for(8.0, 1e-5, 10)):
        ratio = noise_for(8.0, 1e-5, 10, choice)
        assert 7.99 < epsilon(Answer(ratio, choice), 10, 1e-5) <= 8.0
    assert epsilon(Answer(1.0), 0, 1e-5) == 0.0
    with pytest.raises(ConfigError, match="privacy_choice=5 in 10 rounds for any noise"):
        noise_for(8.0, 1e-5, 10, choice=5.0)


def test_a_missing_accountant_is_named_in_the_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.delitem(sys.modules, "dp_accounting.gaussian_mechanism", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'coterie\[privacy\]'"):
        epsilon(Answer(1.234), 1, 1e-5)


# ---- sensitivity, which the accountant assumes --------------------------------------------------------------------

METHODS_WITH = {
    ("fedavg", "local"): {},
    ("fedprox", "local"): {},
    ("ifca", "local"): {"clusters": 3, "privacy_choice": 1.0},
    ("ifca-momentum", "local"): {"clusters": 3, "privacy_choice": 1.0},
    ("oracle", "local"): {},
    ("cfl", "local"): {"warmup": 0},
    ("icfl", "local"): {"max_clusters": 3},
    ("fedavg", "central"): {},
    ("fedprox", "central"): {},
    ("ifca", "central"): {"clusters": 3},
    ("ifca-momentum", "central"): {"clusters": 3},
    ("oracle", "central"): {},
}
CLIP = 0.7
VARIANTS = ({}, {"local_epochs": 2, "batch_size": 2}, {"exchange": "gradient"})


def worst_data(count: int, scale: float) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(int(scale))
    return random.normal(size=(6, 3)) * scale, random.normal(size=6) * scale * (-1) ** count


def private_plan(method: str, where: str, options: dict, data: tuple[np.ndarray, np.ndarray]):
    """Return the plan of a federation in which one client has this data."""
    other = worst_data(0, 1.0)
    people = from_arrays({"me": data, "you": other, "they": other}, truth={"me": "a", "you": "a", "they": "b"})
    given = {"rounds": 3, "privacy": where, "privacy_clip": CLIP, "privacy_noise": 1.0, "dtype": "float64"}
    return prepare(people, method, "linear", given | METHODS_WITH[method, where] | options)


def answer_of(plan, seed: int = 0) -> tuple[Reply, Clusters]:
    """Return the reply of the first client in a round without noise, for models far from each other."""
    K = plan.tiers.K
    clusters = Clusters({"weight": torch.from_numpy(np.random.default_rng(seed).normal(size=(K, 3)))}, K)
    side = replace(plan.federation.group, noise=Silent()).take(np.array([0]), remember=False)
    reported = None if not plan.tiers.assignment.assigned else torch.zeros(1, 1, dtype=torch.int64)
    broadcast = Broadcast(0, clusters, only=reported, scalars={"lr": plan.tiers.local.rate(0, plan.rounds)})
    with torch.no_grad():
        return plan.tiers.task(0, plan.rounds).run(side, broadcast), clusters


def contribution(reply: Reply, clusters: Clusters) -> np.ndarray:
    """Return the contribution of a client to the sums of all slots and, scaled by the clip, to their counts."""
    if "change" in reply.rows:
        return np.append(reply.rows["change"].numpy().ravel(), CLIP)
    slots = torch.zeros(clusters.K, 4, dtype=torch.float64)
    part = reply.slotted["clusters"]
    slots[part.slots] = torch.cat([part.arrays["change/weight"], CLIP * part.counts[:, None]], dim=1)
    return slots.numpy().ravel()


@pytest.mark.parametrize(("method", "where"), METHODS_WITH)
def test_no_data_changes_a_reply_by_more_than_the_sensitivity(method, where):
    found = []
    for options in VARIANTS:
        if method in ("fedprox", "cfl", "icfl") and "exchange" in options:
            continue
        each = [private_plan(method, where, options, worst_data(*which)) for which in enumerate((1e-3, 1, 5, 1e8, 5))]
        weighed = [contribution(*answer_of(plan)) / (6 if plan_weighs(plan) else 1) for plan in each]
        found += [np.linalg.norm(a - b) for i, a in enumerate(weighed) for b in weighed[:i]]
    assert max(found) <= 2 * CLIP * (1 + 1e-12)
    assert max(found) > 1.2 * CLIP  # the data are bad enough for the bound to be of use


def plan_weighs(plan) -> bool:
    """Return whether changes have the weight n_i = 6; n_i is public, and local noise has the same weight."""
    return plan.tiers.averaging.client_weight == "samples" and not plan.tiers.sends_each_change


@pytest.mark.parametrize(("method", "where"), [key for key in METHODS_WITH if key[1] == "local"])
def test_nothing_else_in_a_reply_depends_on_the_data(method, where):
    """Replies of clients of equal size with different data differ only in noisy or randomised values."""
    mine, yours = (private_plan(method, where, {}, worst_data(i, s)) for i, s in enumerate((1.0, 1e200)))
    one, other = answer_of(mine)[0], answer_of(yours)[0]
    for name in ("clients", "rejected", "paths", "nbytes"):
        assert getattr(one, name) == getattr(other, name), name
    assert set(one.sums) == {"samples"}
    assert one.sums["samples"] == other.sums["samples"]
    assert set(one.rows) - {"change"} == {"cluster"}
    for reply in (one, other):
        for part in reply.slotted.values():
            assert set(part.arrays) == {"change/weight", "mass"}
            assert part.counts.tolist() == [1]
            assert part.arrays["mass"].tolist() in ([1.0], [6.0])
    if not mine.tiers.sends_choice:
        assert torch.equal(one.rows["cluster"], other.rows["cluster"])


def test_clients_refuse_a_round_that_cannot_be_private():
    plan = private_plan("ifca", "local", {}, worst_data(0, 1.0))
    soft = prepare(plan.data, "fedem", "linear", {"rounds": 3, "clusters": 2, "init": "random", "lr": 0.1})
    nosy = replace(soft.tiers, privacy=plan.tiers.privacy)
    honest = replace(plan.tiers, privacy=replace(plan.tiers.privacy, choice=None))
    for tiers, why in ((nosy, "em-mixture"), (honest, "the cluster they chose without randomisation")):
        with pytest.raises(ConfigError, match=why):
            answer_of(replace(plan, run=replace(plan.run, tiers=tiers)))


# ---- a round by a plain loop -------------------------------------------------------------------------------------


def test_a_round_equals_a_plain_loop():
    random = np.random.default_rng(1)
    data = {f"site-{i}": (random.normal(size=(n, 3)), random.normal(size=n)) for i, n in enumerate((4, 7, 4, 9, 1))}
    options = {"clusters": 2, "rounds": 1, "local_steps": 3, "lr": 0.1, "seed": 2, "client_weight": "uniform"}
    secret = {"privacy": "local", "privacy_clip": 0.3, "privacy_noise": 2.0, "privacy_choice": 0.5}
    plan = prepare(from_arrays(data), "ifca", "linear", options | secret | {"init": "random"})
    models = plan.learner.start([0, 1], torch.float64)["weight"].numpy()
    start = [{"weight": models[k]} for k in range(2)]
    ours = fit(from_arrays(data), "ifca", learner="linear", init=start, **options, **secret)
    changes: dict[int, list[np.ndarray]] = {0: [], 1: []}
    for name, (x, y) in data.items():
        hashes, noise = hash_ids([name]), SeededNoise(2)
        losses = [((x @ model - y) ** 2).mean() / 2 for model in models]
        u = noise.uniforms(0, hashes)[0]
        k = int(np.argmin(losses)) if u < math.exp(0.5) / (math.exp(0.5) + 1) else 1 - int(np.argmin(losses))
        w = models[k].copy()
        for _ in range(3):
            w -= 0.1 * x.T @ (x @ w - y) / len(x)
        change = w - models[k]
        change *= min(1.0, 0.3 / np.linalg.norm(change))
        changes[k].append(change + 0.3 * 2.0 * noise.normals(0, hashes, 3)[0])
    for k, members in changes.items():
        expected = models[k] + (np.mean(members, axis=0) if members else 0)
        assert ours.models[k]["weight"] == pytest.approx(expected, rel=1e-9)
    assert ours.records[0]["sizes"] == [len(changes[0]), len(changes[1])]
    assert ours.records[0]["loss"] is None


@pytest.mark.parametrize(
    ("method", "where", "name"),
    [
        *(("ifca", "local", name) for name in ("seed", "client_order", "shards", "engines", "replies", "resume")),
        *(("ifca", "central", name) for name in ("seed", "engines", "config", "resume")),
        ("cfl", "local", "shards"),
    ],
)
def test_the_check_suite_holds_for_private_runs(method, where, name):
    own = {"privacy_choice": 1.0} if (method, where) == ("ifca", "local") else {}
    CHECKS[name](Case(method, "linear", {"privacy": where, "privacy_noise": 2.0, "init": "random", **own}))


# ---- the server's part -------------------------------------------------------------------------------------------


class Fixed(Silent):
    """Source of the numbers 1, 2, 3, ... instead of normal random numbers."""

    def normals(self, round_, hashes, width):
        return np.arange(1.0, width + 1)[None]


def test_every_cluster_gets_noise_even_if_it_is_empty():
    clusters = Clusters({"w": torch.zeros(3, 2, dtype=torch.float64)}, 3)
    change = torch.tensor([[10.0, 20.0]], dtype=torch.float64)
    filled = Slotted(torch.tensor([1]), {"change/w": change, "mass": torch.tensor([40.0]).double()}, torch.tensor([40]))
    found = with_noise(filled, clusters, Privacy("central", 0.5, 2.0), Fixed(), 0, chosen=True)
    # sd 0.5 * 2 = 1 times rows (1 2 3), (4 5 6), (7 8 9): two for the change, the third times 2 for the count
    assert found.arrays["change/w"].tolist() == [[1, 2], [14, 25], [7, 8]]
    assert found.arrays["mass"].tolist() == [6, 52, 18]  # 0 + 2*3, 40 + 2*6, 0 + 2*9
    known = with_noise(filled, clusters, Privacy("central", 0.5, 2.0), Fixed(), 0, chosen=False)
    assert known.arrays["mass"].tolist() == [0, 40, 0]


def test_a_cluster_that_may_be_empty_keeps_its_model():
    assert denominators(torch.tensor([-3.0, 3.9, 4.0, 50.0]), sd=2.0).tolist() == [0, 0, 4, 50]
    assert denominators(torch.tensor([0.9, 1.0]), sd=0.1).tolist() == pytest.approx([0, 1])


# ---- options, budget, report -------------------------------------------------------------------------------------


def people(count: int = 6):
    random = np.random.default_rng(0)
    return from_arrays({f"site-{i}": (random.normal(size=(5, 2)), random.normal(size=5)) for i in range(count)})


def test_the_noise_is_for_the_client_with_the_most_rounds():
    plan = prepare(
        people(), "fedavg", None, {"rounds": 12, "participation": 0.5, "privacy": "local", "privacy_epsilon": 4.0}
    )
    spending = Spending.of(plan, range(12))
    assert 6 <= spending.visits.max() < 12
    assert 3.99 < spending.epsilon <= 4.0
    assert plan.settings.privacy_noise == pytest.approx(2 * noise_for(4.0, 1e-5, int(spending.visits.max())))


def test_a_run_stops_before_it_exceeds_its_budget(tmp_path):
    options = {"rounds": 9, "privacy": "central", "privacy_noise": 8.0, "privacy_epsilon": 2.5}
    found = fit(people(), "fedavg", out=tmp_path / "run", **options)
    spent = [epsilon(Answer(4.0), count, 1e-5) for count in range(1, 10)]
    allowed = sum(value <= 2.5 for value in spent)
    assert 1 <= allowed < 9
    assert [record["epsilon"] for record in found.records] == spent[:allowed]
    assert found.metrics["stopped"] == "privacy"
    assert found.metrics["epsilon"] == spent[allowed - 1]
    page = coterie.write_report(found, tmp_path / "page.html").read_text()
    assert "Differential privacy, central: the models hide" in page
    assert "stay with the server" in page


def test_the_report_describes_the_privacy_of_a_run(tmp_path):
    options = {"clusters": 2, "rounds": 2, "privacy": "local", "privacy_noise": 4.0, "privacy_choice": 1.0}
    page = coterie.write_report(fit(people(), "ifca", **options), tmp_path / "page.html").read_text()
    assert "cut to length 1.00, with noise of standard deviation 4.00 on every parameter; no loss is sent" in page
    assert "in 73 % of the times the one it chose" in page


REFUSED = [
    ("fedem", {}, "em-mixture"),
    ("fesem", {"clusters": 2}, "a cluster that depends on the model they trained"),
    ("fedsoft", {}, "personal models"),
    ("stocfl", {}, "anchor-cosine"),
    ("odcl", {}, "what its clients send carries no noise"),
    ("local", {}, "nothing leaves a client"),
    ("pacfl", {"clusters": 2}, "init=pacfl would ask"),
    ("cfl", {"privacy": "central"}, "which would reveal them"),
    (CFL(), {}, "tests on halves of the clients' samples send updates and losses without noise"),
    ("fedavg", {"privacy": "central", "client_weight": "samples"}, "client_weight=uniform"),
    ("ifca", {"restarts": 2}, "leave restarts at 1"),
    ("ifca", {"privacy": "central", "combine": "median"}, "noise protects a client in a sum, but not in a median"),
    ("ifca", {"lr": "auto"}, "lr=auto would ask"),
    ("ifca", {"clusters": "auto"}, "clusters=auto would ask"),
    ("ifca", {"init": "odcl"}, "init=odcl would ask"),
    ("ifca", {"patience": 2}, "patience stops by losses"),
    ("ifca", {"privacy_epsilon": None}, "needs a budget"),
    ("ifca", {"privacy_epsilon": None, "privacy_noise": 1.0}, "or privacy_choice itself"),
    ("fedavg", {"privacy_choice": 1.0}, "privacy_choice has no meaning for fedavg"),
    ("fedavg", {"privacy": None}, "privacy_epsilon applies to private runs"),
    ("fedavg", {"privacy_noise": 0.1}, "one round would spend epsilon"),
]


@pytest.mark.parametrize(("method", "options", "why"), REFUSED)
def test_runs_that_cannot_be_private_are_refused_in_a_sentence(method, options, why):
    given = {"privacy": "local", "privacy_epsilon": 8.0, **options}
    with pytest.raises(ConfigError, match=why):
        prepare(people(), method, None, {k: v for k, v in given.items() if v is not None})


def test_every_method_declares_its_private_forms():
    from coterie.cli.about import private_forms

    having = {name for name, method in Method.members.items() if private_forms(method).startswith("privacy=")}
    assert having == {method for method, _ in METHODS_WITH}
