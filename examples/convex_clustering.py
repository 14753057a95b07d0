"""Points in an unknown number of groups: a clusterpath, its proof and its picture.

python examples/convex_clustering.py
"""

from pathlib import Path

import numpy as np

from coterie.clustering import ConvexClustering, path_picture, recovery_interval

# Sixty sensors with five readings each. There are four kinds; neither the kinds nor their number is known.
random = np.random.default_rng(0)
kinds = random.uniform(-5, 5, (4, 5))
kind = random.permutation(np.repeat(np.arange(4), 15))
readings = kinds[kind] + 0.4 * random.standard_normal((60, 5))

path = ConvexClustering().fit(readings)
print(f"{path.n_clusters_} clusters of sizes {np.bincount(path.labels_)} at lambda = {path.lam_:.4f}")
print(f"proved: {path.certified_}, relative gap {path.relative_gap_:.1e}")
print("clusters along the path:", path.n_clusters_path_.tolist())
print("the kinds are found:", len({(a, b) for a, b in zip(path.labels_, kind, strict=True)}) == 4)

lower, upper = recovery_interval(readings, path.labels_)
holds = f"holds for lambda from {lower:.4f} to {upper:.4f}" if lower < upper else "holds for no lambda"
print(f"condition (13) {holds}")

one = ConvexClustering(lam=path.lam_ / 3).fit(readings)
print(f"at a third of that lambda: {one.n_clusters_} clusters, proved: {one.certified_}")

picture = Path("clusterpath.svg")
picture.write_text(path_picture(path), encoding="utf-8")
print("picture:", picture)
