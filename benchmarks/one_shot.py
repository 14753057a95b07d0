"""Growth of a one-shot fit with the clients: odcl on linear models, from the data to the evaluated result.

    python benchmarks/one_shot.py           # 100 to 100,000 clients
    python benchmarks/one_shot.py --quick   # to 10,000

n=50, d=20, ten groups, k-means++ with K given. Every case runs in a separate process. The unit is a plain loop:
`numpy.linalg.lstsq` for each client, then scikit-learn's KMeans with ten starts, no evaluation. Memory is what the
process held at its peak beyond what it held before the fit, over the size of the training features.
"""

import argparse
import subprocess
import sys
import time
import warnings

import numpy as np
from linear_round import forget_peak, peak_memory

SIZES = (100, 1_000, 10_000, 100_000)
SAMPLES, FEATURES, GROUPS = 50, 20, 10


def population(clients: int):
    import coterie

    random = np.random.default_rng(0)
    models = 3 * random.standard_normal((GROUPS, FEATURES))
    x = random.standard_normal((clients * SAMPLES, FEATURES))
    owner = np.repeat(np.arange(clients), SAMPLES)
    y = (x * models[owner % GROUPS]).sum(axis=1) + random.standard_normal(len(x))
    return coterie.from_rows(x, y, [SAMPLES] * clients), x, y, np.arange(clients) % GROUPS


def one(clients: int) -> None:
    """Print seconds of the fit, of its solving, of the plain loop, the memory, and the agreement with the truth."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_rand_score

    import coterie

    warnings.simplefilter("ignore")
    data, x, y, truth = population(clients)
    coterie.fit(population(20)[0], "odcl", clusters=2)  # imports
    forget_peak()
    before, clock = peak_memory(), time.perf_counter()
    result = coterie.fit(data, "odcl", clusters=GROUPS)
    seconds, held = time.perf_counter() - clock, peak_memory() - before
    clock = time.perf_counter()
    parts = (slice(i * SAMPLES, (i + 1) * SAMPLES) for i in range(clients))
    solutions = np.stack([np.linalg.lstsq(x[part], y[part], rcond=None)[0] for part in parts])
    KMeans(GROUPS, n_init=10, random_state=0).fit(solutions)
    loop = time.perf_counter() - clock
    found = result.assignments
    ari = adjusted_rand_score(truth, [found[client] for client in data.clients])
    print(f"{clients:>9} {seconds:>9.2f} {loop:>9.2f} {loop / seconds:>7.1f} {held / x.nbytes:>8.2f} {ari:>6.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="at most 10,000 clients")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        return one(chosen.one)
    print(f"{'clients':>9} {'fit, s':>9} {'loop, s':>9} {'ratio':>7} {'memory':>8} {'ARI':>6}", flush=True)
    for clients in SIZES[: 3 if chosen.quick else None]:
        subprocess.run([sys.executable, __file__, "--one", str(clients)], check=True)
    return None


if __name__ == "__main__":
    main()
