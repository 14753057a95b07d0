# %% [markdown]
# # Compare methods on my torch model
#
# Any function that returns a `torch.nn.Module` is a learner. This tutorial compares four methods on a small network, over
# several seeds, and asks whether the differences are more than chance.

# %% [markdown]
# ## The clients
#
# Twenty-four clients with images of digits; all images of a client are rotated by 0, 90, 180 or 270 degrees. Load your own
# data with `coterie.from_arrays`, `from_torch` or `from_hf`.

# %%
import coterie

data = coterie.scenario("rotated-digits", clients=24, seed=0)
print(data)

# %% [markdown]
# ## The model
#
# An ordinary module. Its outputs are the logits of ten classes; the loss is chosen by the kind of target.

# %%
import torch


def network():
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(64, 32),
        torch.nn.ReLU(),
        torch.nn.Linear(32, 10),
    )


# %% [markdown]
# ## The comparison
#
# Methods are names or typed values. A mapping gives each variant a label. Options of `compare` go to every
# method that has them.

# %%
from coterie.methods import IFCA, FedAvg, Local, Oracle, RandomInit

methods = {
    "local": Local(),
    "fedavg": FedAvg(),
    "ifca": IFCA(clusters=4, init=RandomInit(restarts=3)),
    "oracle": Oracle(),
}
comparison = coterie.compare(
    data, methods, seeds=3, learner=network, rounds=15, local_steps=10, lr=0.3, out="comparison"
)
print(comparison.to_frame()[["method", "seeds", "accuracy", "accuracy sd", "clusters"]].round(3).to_string())

# %% [markdown]
# ## Are the differences more than chance?
#
# Differences are paired: both methods ran on the same seeds.

# %%
columns = ["method", "mean", "low", "high", "t_p_value", "better"]
print(comparison.differences(against="fedavg").to_frame()[columns].round(3).to_string())

# %% [markdown]
# ## Export the results
#
# The folder holds every run and a report. `to_csv` and `to_latex` write the table; `figure` draws it (extra `plots`).

# %%
print(comparison.to_latex())

# %% [markdown]
# The same in the terminal, for a scenario, with runs in parallel processes:
#
# ```sh
# coterie compare rotated-digits --methods local,fedavg,ifca,oracle --seeds 3 --learner mlp:hidden=32
# ```
#
# One more question before you trust a comparison: were the options of each method chosen fairly?
# `coterie.sweep` tries combinations and ranks them by held-out training samples.
