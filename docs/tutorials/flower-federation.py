# %% [markdown]
# # From simulation to a real federation with Flower
#
# A method that runs in simulation runs unchanged on clients on other machines, through
# [Flower](https://flower.ai). This tutorial first simulates, then creates a Flower app, and runs it as a complete
# federation on this machine: a server, two nodes with their own processes, TLS, and a key for every node.
# It needs `pip install 'coterie[flower]'`.

# %% [markdown]
# ## In simulation
#
# Sixteen clients with images of digits, rotated by 0, 90, 180 or 270 degrees. The method finds the groups in one exchange
# and then trains a model for each.

# %%
import coterie

data = coterie.scenario("rotated-digits", clients=16)
simulated = coterie.fit(data, "one-shot", clusters=4, lr=0.5, learner="mlp:hidden=64", rounds=2, local_steps=10)
print(simulated)

# %% [markdown]
# ## The app
#
# `coterie flower init` writes a small app of three files. Only `client_app.py` needs to be edited: its function `load`
# returns the data of the clients of a node. As written, it distributes the digits.

# %%
!coterie flower init myfed

# %%
from pathlib import Path

print(Path("myfed/client_app.py").read_text())

# %% [markdown]
# ## The federation
#
# `coterie flower up` checks every setting first, then starts everything on this machine, shows the rounds, and ends
# all processes that it started. The settings of the run are in `pyproject.toml`; they are those of the simulation above, except for the
# number of rounds, which `--set` changes here.

# %%
!coterie flower up myfed --nodes 2 --set rounds=2 --set evaluate-every=2 --out federated

# %% [markdown]
# ## The same result
#
# The run folder of the federation is that of a simulation: report, resume and predictions work alike. The clients are in
# the same groups, and the models agree up to rounding.

# %%
import numpy as np

federated = coterie.load("federated")
print("same groups:", federated.assignments == simulated.assignments)
differences = [
    np.abs(model[name] - other[name]).max()
    for model, other in zip(federated.models, simulated.models, strict=True)
    for name in model
]
print(f"largest difference of a parameter: {max(differences):.1e}")

# %% [markdown]
# Next: [Flower across machines](../flower-deployment.md) has the commands for several machines, with a warning that
# you should read first; [Tested faults](../flower-faults.md) shows what happens when processes fail.
