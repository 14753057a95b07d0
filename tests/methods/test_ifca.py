"""IFCA against a plain slow loop, its documented properties, and the figures it has to reach."""

import numpy as np
import pytest

import coterie
from coterie.core.keys import Purpose, hash_ids, keys_for_clients, permutations
from coterie.core.sampling import choose
from coterie.errors import ConfigError


def population(sizes=(3, 8, 20, 5, 11, 30, 2, 9), noise=0.1, seed=0, dimension=4):
    """Linear clients of two groups with unequal sizes."""
    random = np.random.default_rng(seed)
    models = np.array([np.ones(dimension), -np.ones(dimension)])
    clients, truth = {}, {}
    for index, size in enumerate(sizes):
        x = random.standard_normal((size, dimension))
        clients[f"c{index}"] = (x, x @ models[index % 2] + noise * random.standard_normal(size))
        truth[f"c{index}"] = index % 2
    return coterie.from_arrays(clients, truth=truth)


def arrays_of(data):
    x, y = data.train.x.numpy(), data.train.y.numpy()
    return [(x[a:b], y[a:b]) for a, b in zip(data.train.starts, data.train.stops, strict=True)]


def plain_subset(data, i, number, rounds, seed):
    """Return subset `number` of 2T of client i, as indices of its samples: n // 2T of them, in an order drawn once."""
    n = int(data.train.sizes[i])
    key = keys_for_clients(seed, Purpose.RESAMPLE, 0, hash_ids([data.clients[i]]))
    size = n // (2 * rounds)
    return permutations(key, np.array([n]), n, 0)[0][number * size : (number + 1) * size]


def plain_ifca(data, start, *, rounds, lr, steps, gradient, over, weight, divide_by, share=1.0, seed=0, resample=False):
    """The paper's algorithm, client by client. loss = (1/2n) |X theta - y|^2."""
    clients = arrays_of(data)
    models = [np.array(m["weight"]) for m in start]
    sizes = np.array([len(y) for _, y in clients])
    mass_of = {"uniform": np.ones(len(sizes)), "samples": sizes.astype(float)}[weight]
    for t in range(rounds):
        asked = choose(hash_ids(data.clients), share, seed, t)
        sums = [np.zeros_like(m) for m in models]
        mass = np.zeros(len(models))
        for i in asked:
            x, y = clients[i]
            if resample:  # one fresh subset for the cluster, another for the gradient
                rows = plain_subset(data, i, 2 * t, rounds, seed)
                x, y = x[rows], y[rows]
            best = int(np.argmin([np.mean((x @ m - y) ** 2) for m in models]))
            if resample:
                rows = plain_subset(data, i, 2 * t + 1, rounds, seed)
                x, y = clients[i][0][rows], clients[i][1][rows]
            theta = models[best].copy()
            if gradient:
                change = -lr * x.T @ (x @ theta - y) / len(y)
            else:
                for _ in range(steps):
                    theta = theta - lr * x.T @ (x @ theta - y) / len(y)
                change = theta - models[best]
            sums[best] += mass_of[i] * change
            mass[best] += mass_of[i]
        all_clients = mass_of[asked].sum() if divide_by == "answered" else mass_of.sum()
        for k in range(len(models)):
            if mass[k] > 0:
                models[k] = models[k] + sums[k] / (mass[k] if over == "members" else all_clients)
    return np.array(models)


START = [{"weight": np.array([0.5, 0.2, -0.1, 0.3])}, {"weight": np.array([-0.2, -0.4, 0.1, -0.6])}]


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize(
    ("exchange", "over", "weight", "divide_by"),
    [
        ("gradient", "all", "uniform", "federation"),  # option I as printed: gamma / m
        ("gradient", "all", "uniform", "answered"),
        ("model", "members", "uniform", "answered"),  # option II as printed: the plain mean of the members
        ("model", "members", "samples", "answered"),
        ("model", "all", "samples", "answered"),  # FedX-clustering: n_i / N over all
        ("model", "all", "samples", "federation"),
    ],
)
def test_every_averaging_equals_the_plain_loop_with_unequal_sizes(exchange, over, weight, divide_by, share):
    data = population()
    steps = 1 if exchange == "gradient" else 4
    result = coterie.fit(
        data, "ifca", learner="linear", init=START, clusters=2, rounds=5, lr=0.1, local_steps=steps, exchange=exchange,
        averaging=over, client_weight=weight, divide_by=divide_by, participation=share, seed=9,
    )  # fmt: skip
    expected = plain_ifca(
        data, START, rounds=5, lr=0.1, steps=steps, gradient=exchange == "gradient", over=over, weight=weight,
        divide_by=divide_by, share=share, seed=9,
    )  # fmt: skip
    found = np.array([m["weight"] for m in result.models])
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize(
    ("exchange", "over", "weight", "divide_by"),
    [
        ("gradient", "all", "uniform", "federation"),  # as the paper analyses it
        ("model", "members", "samples", "answered"),
        ("gradient", "all", "samples", "federation"),  # a client counts by all of its samples, not by the subset's
    ],
)
def test_resampling_equals_the_plain_loop_over_fresh_subsets(exchange, over, weight, divide_by, share):
    data = population(sizes=(13, 8, 20, 9, 11, 30, 8, 26), noise=0.5)
    steps = 1 if exchange == "gradient" else 3
    common = {"rounds": 4, "lr": 0.2, "seed": 9}
    result = coterie.fit(
        data, "ifca", learner="linear", init=START, clusters=2, local_steps=steps, exchange=exchange, averaging=over,
        client_weight=weight, divide_by=divide_by, participation=share, resample=True, **common,
    )  # fmt: skip
    settings = {"steps": steps, "gradient": exchange == "gradient", "over": over, "weight": weight}
    expected, otherwise = (
        plain_ifca(data, START, divide_by=divide_by, share=share, resample=resample, **settings, **common)
        for resample in (True, False)
    )
    found = np.array([m["weight"] for m in result.models])
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    assert not np.allclose(found, otherwise, rtol=1e-3)


def test_the_loss_of_a_resampled_round_is_that_of_the_choosing_samples():
    data = population(sizes=(13, 8, 20, 9), noise=0.5)
    result = coterie.fit(data, "ifca", learner="linear", init=START, clusters=2, rounds=2, resample=True, seed=1)
    total = count = 0
    for i, (x, y) in enumerate(arrays_of(data)):
        rows = plain_subset(data, i, 0, 2, 1)
        total += min(np.sum((x[rows] @ m["weight"] - y[rows]) ** 2) for m in START) / 2
        count += len(rows)
    assert result.records[0]["loss"] == pytest.approx(total / count, rel=1e-12)


def test_resampling_needs_a_sample_for_each_subset():
    data = population(sizes=(13, 8, 20, 9))
    assert coterie.fit(data, "ifca", learner="linear", clusters=2, rounds=4, resample=True).metrics["rounds"] == 4
    with pytest.raises(ConfigError, match=r"into 2 x rounds = 10 subsets, but client 'c1' has 8: use fewer rounds"):
        coterie.fit(data, "ifca", learner="linear", clusters=2, rounds=5, resample=True)


def test_the_papers_options_are_the_defaults():
    data = population()
    first = coterie.fit(data, "ifca", learner="linear", clusters=2, rounds=1, exchange="gradient").config
    assert (first["averaging"], first["client_weight"], first["divide_by"]) == ("all", "uniform", "federation")
    second = coterie.fit(data, "ifca", learner="linear", clusters=2, rounds=1).config
    assert (second["averaging"], second["client_weight"]) == ("members", "uniform")


@pytest.mark.parametrize("averaging", ["members", "all"])
@pytest.mark.parametrize("weight", ["uniform", "samples"])
def test_gradient_and_model_averaging_agree_for_one_step(averaging, weight):
    data = population()
    common = {
        "learner": "linear", "clusters": 2, "rounds": 5, "lr": 0.1, "local_steps": 1, "averaging": averaging,
        "client_weight": weight, "divide_by": "answered", "seed": 2,
    }  # fmt: skip
    one = coterie.fit(data, "ifca", exchange="gradient", **common)
    two = coterie.fit(data, "ifca", exchange="model", **common)
    for a, b in zip(one.models, two.models, strict=True):
        np.testing.assert_allclose(a["weight"], b["weight"], rtol=1e-12)


def test_responsibility_is_members_by_samples_for_hard_groups():
    data = population()
    common = {"learner": "linear", "clusters": 2, "rounds": 4, "seed": 2}
    one = coterie.fit(data, "ifca", averaging="responsibility", **common)
    two = coterie.fit(data, "ifca", averaging="members", client_weight="samples", **common)
    assert np.array_equal(one.models[0]["weight"], two.models[0]["weight"])


def test_each_of_several_restarts_equals_a_separate_run():
    """Restart 0 of three has the same initial models as a single run; the winner has the lowest training loss."""
    data = population(noise=0.5)
    common = {"learner": "mlp:hidden=5", "clusters": 2, "rounds": 4, "lr": 0.1, "seed": 6, "dtype": "float64"}
    single = coterie.fit(data, "ifca", **common)
    several = coterie.fit(data, "ifca", restarts=3, **common)
    losses = several.metrics["restart_losses"]
    assert losses[0] == pytest.approx(single.metrics["loss"], rel=1e-9)
    assert len(set(np.round(losses, 12))) == 3
    assert several.metrics["loss"] == min(losses)
    assert several.metrics["restart"] == int(np.argmin(losses))
    assert several.metrics["bytes_up"] > 2.9 * single.metrics["bytes_up"]


def test_a_race_keeps_and_trains_the_leading_restart():
    """Two rounds of three restarts on half of the clients, then the leader alone: as many rounds, far fewer bytes."""
    data = population(noise=0.5)
    common = {"learner": "mlp:hidden=5", "clusters": 2, "rounds": 6, "lr": 0.1, "seed": 6, "restarts": 3}
    raced = coterie.fit(data, "ifca", race=2, race_share=0.5, **common)
    assert [record["answered"] for record in raced.records] == [4, 4, 8, 8, 8, 8]
    assert ["restart_losses" in record for record in raced.records] == [True, True, False, False, False, False]
    losses = raced.records[1]["restart_losses"]
    assert [record["restart"] for record in raced.records[1:]] == [int(np.argmin(losses))] * 5
    assert raced.metrics["restart"] == int(np.argmin(losses))
    whole = coterie.fit(data, "ifca", **common)
    one_start = whole.records[0]["bytes_up"] / 8 / 3
    assert raced.metrics["bytes_up"] == pytest.approx((2 * 4 * 3 + 4 * 8) * one_start, rel=0.05)


def test_a_race_that_lasts_the_whole_run_is_decided_by_all_clients():
    data = population(noise=0.5)
    common = {"learner": "linear", "clusters": 2, "rounds": 3, "seed": 1, "restarts": 3}
    raced, whole = coterie.fit(data, "ifca", race=3, race_share=1.0, **common), coterie.fit(data, "ifca", **common)
    assert raced.metrics["restart_losses"] == whole.metrics["restart_losses"]
    assert np.array_equal(raced.models[0]["weight"], whole.models[0]["weight"])


def test_an_empty_cluster_keeps_its_model():
    far = {"weight": np.full(4, 1e6)}
    result = coterie.fit(population(), "ifca", learner="linear", init=[START[0], far], clusters=2, rounds=3)
    assert np.array_equal(result.models[1]["weight"], far["weight"])
    assert result.metrics["clusters"] == 1
    assert result.records[-1]["sizes"] == [8, 0]


def test_a_client_with_a_stable_cluster_receives_only_its_own_model():
    """d=4 float64: a model is 32 bytes. A client gets round, lr (16 bytes) and either two models (64) or one and its
    index (40). stable_after=2: rounds 0 and 1 all; round 2 is a multiple of 2, all again; round 3 own only (all clients
    has kept its cluster for two visits by then); round 4 all."""
    data = population(noise=0.0)
    common = {
        "learner": "linear",
        "init": [{"weight": np.ones(4)}, {"weight": -np.ones(4)}],
        "clusters": 2,
        "rounds": 5,
    }
    plain = coterie.fit(data, "ifca", **common)
    saving = coterie.fit(data, "ifca", stable_after=2, **common)
    assert [r["bytes_down"] for r in plain.records] == [8 * 80] * 5
    assert [r["bytes_down"] for r in saving.records] == [8 * 80, 8 * 80, 8 * 80, 8 * 56, 8 * 80]
    for a, b in zip(plain.models, saving.models, strict=True):
        np.testing.assert_allclose(a["weight"], b["weight"], rtol=1e-12)
    assert saving.assignments == plain.assignments


def test_bytes_up_are_one_model_its_mass_its_index_and_the_scalars():
    """Each of 8 clients sends a change of 4 float64 (32), its mass (8), its slot (8), loss and samples (16), and its
    cluster (8)."""
    result = coterie.fit(population(), "ifca", learner="linear", clusters=2, rounds=1, lr=0.1)
    assert result.metrics["bytes_up"] == 8 * (32 + 8 + 8 + 16 + 8)


def test_weight_sharing_keeps_one_body_and_sends_it_once():
    data = coterie.scenario("rotated-digits", clients=8)
    common = {"learner": "mlp:hidden=16", "clusters": 4, "rounds": 3, "restarts": 1}
    whole, shared = coterie.fit(data, "ifca", **common), coterie.fit(data, "ifca", shared="layer0", **common)
    for model in shared.models[1:]:
        assert np.array_equal(model["layer0.weight"], shared.models[0]["layer0.weight"])
        assert not np.array_equal(model["layer1.weight"], shared.models[0]["layer1.weight"])
    body, head = 4 * (64 * 16 + 16), 4 * (16 * 10 + 10)
    assert whole.records[0]["bytes_down"] == 8 * (16 + 4 * (body + head))
    assert shared.records[0]["bytes_down"] == 8 * (16 + body + 4 * head)


def test_a_new_client_is_assigned_by_its_loss():
    data = population(noise=0.05)
    result = coterie.fit(data, "ifca", learner="linear", clusters=2, rounds=40, restarts=3)
    x = np.random.default_rng(5).standard_normal((6, 4))
    assert result.assign(x, x @ np.ones(4)) == result.assignments["c0"]
    assert result.assign(x, -x @ np.ones(4)) == result.assignments["c1"]
    assert result.assignments["c0"] != result.assignments["c1"]


def test_the_error_of_the_true_models_is_close_to_the_oracle_s():
    """If the groups are recovered, the error of the true models equals the oracle's up to 1 %, over three seeds."""
    recovered = 0
    for seed in range(3):
        data = coterie.scenario("mixed-regression", clients=60, seed=seed)
        found = coterie.fit(data, "ifca", seed=seed, rounds=60, evaluate_every=60)
        oracle = coterie.fit(data, "oracle", seed=seed, rounds=60, evaluate_every=60)
        if found.metrics["ari"] == 1.0:
            recovered += 1
            ratio = found.metrics["parameter_error"] / oracle.metrics["parameter_error"]
            assert ratio == pytest.approx(1, abs=0.01)
    assert recovered == 3


def test_rotated_digits_are_separated_and_beat_global_and_local_models():
    """Five restarts: ARI 1, within a point of the oracle, at least five points above global and local models."""
    data = coterie.scenario("rotated-digits")
    done = {name: coterie.fit(data, name, evaluate_every=40).metrics for name in ("ifca", "oracle", "fedavg", "local")}
    accuracy = {name: metrics["accuracy"] for name, metrics in done.items()}
    assert done["ifca"]["ari"] == 1.0
    assert accuracy["ifca"] >= accuracy["oracle"] - 0.01
    assert accuracy["ifca"] >= max(accuracy["fedavg"], accuracy["local"]) + 0.05
