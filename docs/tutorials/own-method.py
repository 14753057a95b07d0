# %% [markdown]
# # Write your own method
#
# A method is one class in your own file: a frozen dataclass whose fields are its settings. You need not edit
# Coterie. The fields become keywords of `fit`, flags of the command line and keys of TOML files.

# %% [markdown]
# ## From existing parts
#
# Most clustered methods are four choices ([tiers](../tiers.md)). This one gives every client a soft weight for each
# cluster, by how well its model fits. The cell writes the file, as you would in an editor.

# %%
from pathlib import Path

text = '''
from dataclasses import dataclass
from typing import ClassVar

import coterie
from coterie.extend import option
from coterie.methods import TieredMethod, Tiers
from coterie.tiers import SoftmaxLoss


@coterie.register("soft-choice")
@dataclass(frozen=True, kw_only=True)
class SoftChoice(TieredMethod):
    """Every client trains all models, weighted by how well each fits it."""

    clusters: int = option(2, "number of clusters (K)", low=1)
    temperature: float = option(0.3, "temperature of the weights: small gives one cluster", above=0)

    summary: ClassVar[str] = "soft clusters by a softmax of losses"
    citation: ClassVar[str] = "an example"
    twin: ClassVar[str | None] = "fedavg"  # the method that it equals with one cluster
    refuses: ClassVar[frozenset[str]] = frozenset({"exchange", "shared"})

    def tiers(self) -> Tiers:
        return self.compose(assignment=SoftmaxLoss(self.temperature))
'''
Path("soft_choice.py").write_text(text.lstrip())
print("wrote soft_choice.py")

# %% [markdown]
# ## Use it
#
# `load_plugin` registers the methods of a file. The typed value and the name with keywords are the same method.

# %%
import coterie

coterie.load_plugin("soft_choice.py")
data = coterie.scenario("rotated-digits", clients=16, seed=0)
result = coterie.fit(data, "soft-choice", clusters=4, temperature=0.1, learner="logistic", rounds=10, lr=0.5)
print(result)
print(result.weights[0].round(3))  # the first client's weight for each cluster

# %% [markdown]
# The command line takes the same options, with the same checks and help:

# %%
!coterie run rotated-digits --clients 16 --method soft-choice --plugin soft_choice.py --clusters 4 --temperature 0.1 --learner logistic --rounds 5 --lr 0.5 --out run

# %% [markdown]
# ## Your own round
#
# To change a round, override `step`. It receives the run (federation, learner, settings) and
# the state, and returns a `Step`. Here fewer clients take part in the first rounds.

# %%
from dataclasses import dataclass, replace
from typing import ClassVar

from coterie.extend import ServerState, option
from coterie.methods import IFCA, Run, Step


@coterie.register("gentle-start")
@dataclass(frozen=True, kw_only=True)
class GentleStart(IFCA):
    """IFCA in which a share of the clients takes part in the first rounds."""

    slow_rounds: int = option(3, "number of first rounds with few clients", low=0)
    slow_share: float = option(0.5, "share of clients that take part in these rounds", above=0, high=1)

    summary: ClassVar[str] = "IFCA with few clients in the first rounds"
    citation: ClassVar[str] = "an example"
    no_twin: ClassVar[str] = "with slow_rounds=0"

    def step(self, run: Run, state: ServerState) -> Step:
        if state.round < self.slow_rounds:
            run = replace(run, settings=replace(run.settings, participation=self.slow_share))
        return super().step(run, state)


result = coterie.fit(data, GentleStart(clusters=4), learner="logistic", rounds=5)
print([record["answered"] for record in result.records])  # clients that answered in each round

# %% [markdown]
# ## Check it
#
# Every method must pass one suite: the same seed gives the same result, the order of clients and the engine do not
# matter, a run that is killed resumes with bit-identical results, and nothing with one entry for each sample leaves a
# client. If a check fails, `check_method` raises an `AssertionError` that names the check and the option.

# %%
coterie.testing.check_method("soft-choice", learners=["linear"])

# %% [markdown]
# Next: [Extending Coterie](../extending.md) has an example of every other part (tasks, tier members, optimizers,
# callbacks, scenarios, learners), and the parts of a package.
