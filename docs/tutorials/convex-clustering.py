# %% [markdown]
# # Convex clustering by itself
#
# `ConvexClustering` clusters points without a given number of clusters, and proves its answer. It is a scikit-learn
# estimator and needs no federation.

# %% [markdown]
# ## Points
#
# Sixty sensors with five readings each, of four kinds. The estimator knows neither the kinds nor their number.

# %%
import numpy as np

random = np.random.default_rng(0)
kinds = random.uniform(-5, 5, (4, 5))
kind = random.permutation(np.repeat(np.arange(4), 15))
readings = kinds[kind] + 0.15 * random.standard_normal((60, 5))

# %% [markdown]
# ## The path
#
# Convex clustering minimises 1/2 sum |u_i - a_i|^2 + lambda sum |u_i - u_j|: every point a_i has a u_i near it, and
# lambda pulls the u together. Points with the same u are a cluster. With lambda = 0 every point is a cluster; for a large
# lambda all points are one cluster. `fit` follows the path between the two and chooses one of its clusterings.

# %%
from coterie.clustering import ConvexClustering

path = ConvexClustering().fit(readings)
print(path.n_clusters_, "clusters of sizes", np.bincount(path.labels_))
print("clusters along the path:", path.n_clusters_path_.tolist())
print("the kinds are found:", len(set(zip(path.labels_, kind, strict=True))) == 4)

# %%
from base64 import b64encode

from coterie.clustering import path_picture


class Drawing:
    """An SVG picture that notebooks show."""

    def __init__(self, svg):
        self.svg = svg

    def __repr__(self):
        return "a drawing of the path"

    def _repr_html_(self):
        return f'<img src="data:image/svg+xml;base64,{b64encode(self.svg.encode()).decode()}" alt="{self}">'


Drawing(path_picture(path))

# %% [markdown]
# ## The proof
#
# Usual solvers stop near the optimum, and a tolerance decides whether two nearly equal u are one cluster. Here every pair
# is proved to be fused or to be distinct.

# %%
print("proved:", path.certified_, "at lambda =", round(path.proved_lam_, 4))
print("relative gap to the optimum:", f"{path.relative_gap_:.1e}")

# %% [markdown]
# ## Another lambda, and when clusters can be recovered
#
# A fixed lambda gives one clustering. `recovery_interval` gives the lambdas for which a known sufficient condition for
# recovering a partition holds; it is empty if the clusters are too close to each other for their width.

# %%
from coterie.clustering import recovery_interval

one = ConvexClustering(lam=float(path.lambdas_[3])).fit(readings)
print("at a smaller lambda:", one.n_clusters_, "clusters, proved:", one.certified_)
lower, upper = recovery_interval(readings, path.labels_)
print(f"condition holds for lambda from {lower:.4f} to {upper:.4f}" if lower < upper else "condition holds nowhere")

# %% [markdown]
# ## In a federation
#
# The method [`odcl`](../methods/odcl.md) clusters the clients' own solutions in this way: one round, no number of clusters,
# and a proof of the partition.
#
# ```sh
# coterie run odcl-linear --method odcl --clustering convex
# ```
#
# Next: [Convex clustering](../clustering.md) has the options, speed and limits.
