"""False alarms, power, kind of shift and number of groups of `coterie diagnose`, over many draws of made-up data.

    python benchmarks/diagnose.py alarms kinds structure power methods --draws 200 --out diagnose.jsonl
    python benchmarks/diagnose.py --out diagnose.jsonl        (prints the tables of what is there)

Results are appended to the file, and draws that are in it are not made again, so that a run can be stopped at any time.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

import coterie
from coterie.core.dataset import FederatedDataset
from coterie.diagnosis.diagnose import diagnose, federation_of
from coterie.diagnosis.pooled import pooled_fit
from coterie.diagnosis.session import Session
from coterie.diagnosis.shift import LEVEL, ask_scores, find_shift, model_differs
from coterie.diagnosis.values import Shift
from coterie.training.result import Result

FIRST_SEED = 2_000_000
"""Seeds below were used while the settings were chosen."""
FEATURES = 5

Random = np.random.Generator


# ---- data ----------------------------------------------------------------------------------------------------


def sizes_of(name: str, random: Random) -> np.ndarray:
    """Return the numbers of samples of the clients."""
    if name == "20 clients, 1 to 10000":
        return np.r_[1, 10_000, np.exp(random.uniform(0, np.log(1e4), 18)).astype(int)]
    if name == "20 clients, 30":
        return np.full(20, 30)
    if name == "100 clients, 5 to 60":
        return random.integers(5, 61, 100)
    if name == "1000 clients, 1 to 10":
        return random.integers(1, 11, 1000)
    if name == "240 clients, 1 to 800":
        return np.exp(random.uniform(0, np.log(800), 240)).astype(int)
    if name == "61 clients, one of 3000, others 1 to 20":
        return np.r_[3000, random.integers(1, 21, 60)]
    raise ValueError(name)


NOISES: dict[str, Callable[[Random, np.ndarray], np.ndarray]] = {
    "linear": lambda random, x: random.standard_normal(len(x)),
    "linear, t3 noise": lambda random, x: random.standard_t(3, len(x)),
    "linear, unequal variances": lambda random, x: random.standard_normal(len(x)) * (0.3 + np.abs(x[:, 0])),
}


def draw(
    model: str,
    sizes: np.ndarray,
    random: Random,
    *,
    groups: int = 1,
    difference: float = 0.0,
    smooth: bool = False,
    features: float = 0.0,
    labels: float = 0.0,
    tested: int = 0,
) -> FederatedDataset:
    """Return clients with the given kinds of differences.

    Args:
        model: One of NOISES, or `logistic`, or `three classes`.
        sizes: Number of samples of each client.
        random: Generator.
        groups: Number of groups of coefficients.
        difference: Standard deviation of the coefficients between groups, or between clients if `smooth`.
        smooth: Whether every client has its own coefficients.
        features: Standard deviation of the means of the features between clients.
        labels: Strength of the differences in the frequency of the labels; samples are then drawn by label.
        tested: Number of held-out samples for each training sample.
    """
    m = len(sizes)
    truth = random.permutation(np.arange(m) % groups)
    sizes = sizes * (1 + tested)
    outputs = 3 if model == "three classes" else 1
    base = random.standard_normal((FEATURES, outputs)) / np.sqrt(FEATURES)
    centres = random.standard_normal((groups, FEATURES, outputs)) * difference
    clients = []
    for i, size in enumerate(sizes):
        own = random.standard_normal(base.shape) * difference if smooth else centres[truth[i]]
        mean = features * random.standard_normal(FEATURES)
        tilt = labels * random.standard_normal(3)
        clients.append(_client(model, int(size), base + own, mean, tilt, labels > 0, random))
    kept = [size // (1 + tested) for size in sizes]
    train = [(x[:n], y[:n]) for n, (x, y) in zip(kept, clients, strict=True)]
    test = [(x[n:], y[n:]) for n, (x, y) in zip(kept, clients, strict=True)] if tested else None
    return coterie.from_arrays(train, test=test, truth=truth.tolist())


def _client(
    model: str, size: int, weights: np.ndarray, mean: np.ndarray, tilt: np.ndarray, by_label: bool, random: Random
) -> tuple[np.ndarray, np.ndarray]:
    if not by_label:
        return _rows(model, size, weights, mean, random)[:2]
    kept_x, kept_y, count = [], [], 0
    while count < size:  # a sample is kept with a probability that depends on its label only: p(x|y) stays as it is
        x, y, label = _rows(model, 20 * size + 100, weights, mean, random)
        odds = np.clip(tilt[0] * label, -4, 4) if model in NOISES else tilt[label]
        kept = random.random(len(y)) < np.exp(odds - odds.max())
        kept_x, kept_y, count = [*kept_x, x[kept]], [*kept_y, y[kept]], count + int(kept.sum())
    return np.concatenate(kept_x)[:size], np.concatenate(kept_y)[:size]


def _rows(
    model: str, size: int, weights: np.ndarray, mean: np.ndarray, random: Random
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return features, targets, and the label or the standardised target."""
    x = random.standard_normal((size, FEATURES)) + mean
    signal = x @ weights
    if model in NOISES:
        y = 1 + signal[:, 0] + NOISES[model](random, x)
        return x, y, (y - 1) / 1.5
    if model == "logistic":
        y = (1.5 * signal[:, 0] + 0.5 + random.logistic(size=size) > 0).astype(np.int64)
    else:
        y = (2 * signal + random.gumbel(size=signal.shape)).argmax(axis=1)
    return x, y, y


# ---- what is measured ----------------------------------------------------------------------------------------


def shift_of(data: FederatedDataset, seed: int) -> Shift:
    """Return the tests without the rest of the diagnosis."""
    data = data.compact()
    session = Session.of(federation_of(data, seed))
    pooled = pooled_fit(session, data.profile, seed)
    return find_shift(ask_scores(session, pooled, seed), pooled, "", seed)


MODELS = (*NOISES, "logistic")
SIZES = (
    "20 clients, 1 to 10000",
    "20 clients, 30",
    "100 clients, 5 to 60",
    "61 clients, one of 3000, others 1 to 20",
    "1000 clients, 1 to 10",
)


def alarms(seed: int) -> Iterator[tuple[str, Callable[[], dict[str, object]]]]:
    """Yield scenarios without differences and the p-values of all tests."""
    for model in MODELS:
        for size in SIZES:

            def measure(model: str = model, size: str = size) -> dict[str, object]:
                random = np.random.default_rng(seed)
                shift = shift_of(draw(model, sizes_of(size, random), random), seed)
                names = ("model", "relation", "features", "labels", "conditional")
                return {name: getattr(shift, name).p_value for name in names} | {"kind": shift.kind}

            yield f"{model}; {size}", measure


KINDS: dict[str, dict[str, float]] = {
    "none": {},
    "labels": {"labels": 1.0},
    "features": {"features": 0.7},
    "relation": {"difference": 0.7, "groups": 3},
    "several": {"difference": 0.7, "groups": 3, "features": 0.7},
}


def kinds(seed: int) -> Iterator[tuple[str, Callable[[], dict[str, object]]]]:
    """Yield scenarios of every kind of shift and the kind that was found."""
    for model in ("linear", "logistic", "three classes"):
        for kind, options in KINDS.items():
            for size in ("100 clients, 5 to 60", "240 clients, 1 to 800"):

                def measure(
                    model: str = model, kind: str = kind, options: dict[str, float] = options, size: str = size
                ) -> dict[str, object]:
                    random = np.random.default_rng(seed)
                    given = {name: int(v) if name == "groups" else v for name, v in options.items()}
                    shift = shift_of(draw(model, sizes_of(size, random), random, **given), seed)  # type: ignore[arg-type]
                    return {"kind": shift.kind, "right": shift.kind == kind}

                yield f"{model}; {kind}; {size}", measure


def structure(seed: int) -> Iterator[tuple[str, Callable[[], dict[str, object]]]]:
    """Yield scenarios with groups and with a smooth spread, and the structure that was found."""
    for model in ("linear", "linear, t3 noise", "logistic"):
        for size in ("100 clients, 5 to 60", "240 clients, 1 to 800"):
            for groups, smooth in ((1, False), (2, False), (3, False), (4, False), (1, True)):

                def measure(
                    model: str = model, size: str = size, groups: int = groups, smooth: bool = smooth
                ) -> dict[str, object]:
                    random = np.random.default_rng(seed)
                    strength = 0.0 if groups == 1 and not smooth else 0.7
                    data = draw(
                        model, sizes_of(size, random), random, groups=groups, difference=strength, smooth=smooth
                    )
                    found = diagnose(data, seed=seed)
                    wanted = ("continuum", None) if smooth else ("groups", groups) if groups > 1 else ("one", None)
                    sure = [i for i, client in enumerate(found.clients) if client.can_be_placed]
                    known = np.array([found.clients[i].group for i in sure])
                    return {
                        "kind": found.structure.kind,
                        "clusters": found.structure.clusters,
                        "right": (found.structure.kind, found.structure.clusters) == wanted,
                        "sure": len(sure),
                        "sure_right": _agreeing(known, data.truth[sure]) if sure and data.truth is not None else 0,
                        "seconds": found.cost.seconds,
                    }

                what = "smooth" if smooth else f"{groups} groups" if groups > 1 else "one model"
                yield f"{model}; {what}; {size}", measure


def _agreeing(found: np.ndarray, truth: np.ndarray) -> int:
    """Return the number of clients in the right group under the best matching of the groups."""
    from scipy.optimize import linear_sum_assignment

    table = np.zeros((int(found.max()) + 1, int(truth.max()) + 1))
    np.add.at(table, (found, truth), 1)
    rows, columns = linear_sum_assignment(-table)
    return int(table[rows, columns].sum())


def power(seed: int) -> Iterator[tuple[str, Callable[[], dict[str, object]]]]:
    """Yield draws with groups of any distance, the p-value, and the agreement of ifca with the true groups."""
    for model in ("linear", "logistic"):
        for groups in (2, 3):

            def measure(model: str = model, groups: int = groups) -> dict[str, object]:
                random = np.random.default_rng(seed)
                sizes = random.integers(10, 101, 40)
                difference = float(np.exp(random.uniform(np.log(0.1), np.log(1.0))))
                data = draw(model, sizes, random, groups=groups, difference=difference)
                shift = shift_of(data, seed)
                found = {"ifca": agreement_of(data, "ifca", groups, model, seed, restarts=5)}
                if model == "linear":
                    found["two-phase"] = agreement_of(data, "two-phase", groups, model, seed)
                tests = {"p": shift.model.p_value, "slopes": shift.relation.p_value, "differs": model_differs(shift)}
                return {**tests, "difference": difference, "agreement": max(found.values()), **found}

            yield f"{model}; {groups} groups", measure


GAINS: dict[str, dict[str, float | bool]] = {
    "none": {},
    "2 groups": {"groups": 2, "difference": 0.7},
    "2 close groups": {"groups": 2, "difference": 0.3},
    "3 groups": {"groups": 3, "difference": 0.7},
    "4 groups": {"groups": 4, "difference": 0.5},
    "smooth": {"smooth": True, "difference": 0.7},
    "narrow smooth": {"smooth": True, "difference": 0.3},
}
GAIN_SIZES = ("20 clients, 30", "100 clients, 5 to 60")
TESTED = 20


def gains(seed: int) -> Iterator[tuple[str, Callable[[], dict[str, object]]]]:
    """Yield draws, the expected gain of groups, and the gain of ifca with their number on held-out samples."""
    for model in ("linear", "logistic"):
        for kind, options in GAINS.items():
            for size in GAIN_SIZES:

                def measure(
                    model: str = model, options: dict[str, float | bool] = options, size: str = size
                ) -> dict[str, object]:
                    random = np.random.default_rng(seed)
                    data = draw(model, sizes_of(size, random), random, tested=TESTED, **options)  # type: ignore[arg-type]
                    found = diagnose(data, seed=seed)
                    gain = found.gain
                    row: dict[str, object] = {"clusters": gain.clusters, "method": found.recommendation.method}
                    if gain.clusters is None:
                        return row
                    one, groups = (
                        held_out_loss(data, name, model, seed, **given)
                        for name, given in (("fedavg", {}), ("ifca", {"clusters": gain.clusters, "restarts": 10}))
                    )
                    expected = {"low": gain.over_one.low, "value": gain.over_one.value, "high": gain.over_one.high}
                    return row | expected | {"measured": one - groups, "one": one}

                yield f"{model}; {kind}; {size}", measure


def held_out_loss(data: FederatedDataset, method: str, model: str, seed: int, **options: object) -> float:
    """Return the mean squared error or the log loss of a method on all held-out samples."""
    result = trained(data, method, model, seed, rounds=40, **options)
    total, test = 0.0, data.test
    assert test is not None
    rows = np.split(np.arange(len(test.y)), np.cumsum(test.sizes)[:-1])
    for client, own in zip(data.clients, rows, strict=True):
        x, y = test.x[own].numpy(), test.y[own].numpy()
        if model in NOISES:
            total += float(((result.predict(x, client=client) - y) ** 2).sum())
        else:
            p = result.predict_proba(x, client=client)
            total -= float(np.log(np.maximum(p[np.arange(len(y)), y], 1e-12)).sum())
    return total / len(test.y)


def trained(data: FederatedDataset, method: str, model: str, seed: int, **options: object) -> Result:
    """Return a run of a method with the learner that suits the model."""
    learner = "linear:bias=true" if model in NOISES else "logistic:l2=0.001"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # methods warn of small clients
        return coterie.fit(data, method, learner=learner, seed=seed, **options)


METHODS: dict[str, tuple[str, dict[str, object]]] = {
    "ifca, 10 restarts": ("ifca", {"restarts": 10}),
    "ifca, 1 start": ("ifca", {}),
    "ifca, init odcl": ("ifca", {"init": "odcl"}),
    "one-shot": ("one-shot", {}),
}


def methods(seed: int) -> Iterator[tuple[str, Callable[[], dict[str, object]]]]:
    """Yield draws with three groups and the agreement of methods that are given their number with the true groups."""
    for model in ("linear", "logistic"):
        for size in ("100 clients, 5 to 60", "240 clients, 1 to 800"):
            for name, (method, options) in METHODS.items():

                def measure(
                    model: str = model, size: str = size, method: str = method, options: dict[str, object] = options
                ) -> dict[str, object]:
                    random = np.random.default_rng(seed)
                    data = draw(model, sizes_of(size, random), random, groups=3, difference=0.7)
                    return {"agreement": agreement_of(data, method, 3, model, seed, **options)}

                yield f"{model}; {size}; {name}", measure


def agreement_of(data: FederatedDataset, method: str, clusters: int, model: str, seed: int, **options: object) -> float:
    """Return the adjusted Rand index of the clusters that a method finds."""
    from sklearn.metrics import adjusted_rand_score

    result = trained(data, method, model, seed, clusters=clusters, rounds=20, **options)
    return float(adjusted_rand_score(data.truth, [result.assignments[client] for client in data.clients]))


PARTS = {"alarms": alarms, "kinds": kinds, "structure": structure, "power": power, "methods": methods, "gains": gains}


# ---- running and reading -------------------------------------------------------------------------------------


def run(parts: list[str], first: int, draws: int, only: str, out: Path) -> None:
    """Append the results of all draws of scenarios whose name contains `only` that are not in the file yet."""
    known = {(row["part"], row["scenario"], row["seed"]) for row in read(out)}
    with out.open("a") as file:
        for seed in range(first, first + draws):
            for part in parts:
                for scenario, measure in PARTS[part](seed):
                    if (part, scenario, seed) in known or only not in scenario:
                        continue
                    began = time.perf_counter()
                    row = {"part": part, "scenario": scenario, "seed": seed, **measure()}
                    file.write(json.dumps(row | {"took": round(time.perf_counter() - began, 3)}) + "\n")
                    file.flush()


def read(out: Path) -> list[dict[str, object]]:
    """Return all results of a file; a last line that was cut off is left out."""
    if not out.exists():
        return []
    lines = out.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def tables(rows: list[dict[str, object]]) -> Iterator[str]:
    """Yield the tables of all parts as lines of text."""
    by: dict[tuple[str, str], list[dict[str, object]]] = defaultdict(list)
    for row in rows:
        by[str(row["part"]), str(row["scenario"])].append(row)
    for part in PARTS:
        chosen = {scenario: found for (name, scenario), found in by.items() if name == part}
        if chosen:
            yield f"\n{part}"
        for scenario, found in chosen.items():
            yield f"  {scenario:62s} {len(found):4d} draws  {_summary(part, found)}"


def _summary(part: str, found: list[dict[str, object]]) -> str:
    def mean(name: str) -> float:
        return float(np.mean([float(row[name]) for row in found]))  # type: ignore[arg-type]

    if part == "alarms":
        names = ("model", "relation", "features", "labels", "conditional")
        rates = [np.mean([float(row[name]) <= 0.05 for row in found]) for name in names]  # type: ignore[arg-type]
        text = "  ".join(f"{name} {100 * rate:4.1f} %" for name, rate in zip(names, rates, strict=True))
        return f"{text}  kind none {100 * np.mean([row['kind'] == 'none' for row in found]):.0f} %"
    if part == "kinds":
        return f"right {100 * mean('right'):.1f} %"
    if part == "structure":
        sure, right = mean("sure"), mean("sure_right")
        share = f"  of clients that are sure {100 * right / sure:.1f} % are right" if sure else ""
        return f"right {100 * mean('right'):.1f} %{share}  {mean('seconds'):.1f} s"
    if part == "methods":
        return f"agreement {mean('agreement'):.2f}"
    if part == "gains":
        return _gain_summary(found)
    reached = [row for row in found if float(row["agreement"]) >= 0.9]  # type: ignore[arg-type]
    if not reached:
        return "no method reaches 0.9"
    p, slopes = (np.array([float(row[name]) for row in reached]) for name in ("p", "slopes"))  # type: ignore[arg-type]
    every = np.mean([float(row["p"]) <= LEVEL for row in found])  # type: ignore[arg-type]
    return (
        f"a method reaches 0.9 in {len(reached)}, of which the tests find: model {100 * np.mean(p <= LEVEL):.1f} %, "
        f"slopes {100 * np.mean(slopes <= LEVEL):.1f} %, slopes at a quarter of the level "
        f"{100 * np.mean(slopes <= LEVEL / 4):.1f} %; of all draws: model {100 * every:.1f} %"
    )


def _gain_summary(found: list[dict[str, object]]) -> str:
    """Return how often groups were tried, and how often the measured gain is inside, below and above the interval."""
    tried = [row for row in found if row["clusters"] is not None]
    if not tried:
        return "no groups tried"
    low, value, high, measured, one = (
        np.array([float(row[name]) for row in tried])  # type: ignore[arg-type]
        for name in ("low", "value", "high", "measured", "one")
    )
    return (
        f"tried in {len(tried)}  inside {100 * np.mean((low <= measured) & (measured <= high)):.0f} %  "
        f"below {100 * np.mean(measured < low):.0f} %  above {100 * np.mean(measured > high):.0f} %  "
        f"expected {100 * np.mean(value / one):.1f} % of the loss  measured {100 * np.mean(measured / one):.1f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="what to measure; none: only print")
    parser.add_argument("--draws", type=int, default=200, help="draws of every scenario")
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="seed of the first draw")
    parser.add_argument("--only", default="", help="text that the name of a scenario must contain")
    parser.add_argument("--out", type=Path, default=Path("diagnose.jsonl"), help="file of the results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.parts:
        run(given.parts, given.first, given.draws, given.only, given.out)
    print("\n".join(tables(read(given.out))))


if __name__ == "__main__":
    main()
