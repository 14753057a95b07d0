"""A run that is fully decided: options settled, everything checked, nothing touched yet."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.core.blocks import Memory
from coterie.core.dataset import ClientDirectory, FederatedDataset, torch_dtype
from coterie.core.federation import Federation
from coterie.core.shard import ClientId
from coterie.core.validation import aside_sizes, check_hold_out
from coterie.engines.attacks import AttackedGroup, ModelAttack, attackers_of, read_attack, with_false_labels
from coterie.engines.in_process import InProcess
from coterie.engines.remote import PLACES, RemoteClients
from coterie.engines.sequential import Sequential
from coterie.engines.simulated import Simulated
from coterie.errors import ConfigError, shown
from coterie.learners import LearnerChoice, make_learner
from coterie.learners.augment import check_augmentation
from coterie.learners.base import Learner, has_features
from coterie.learners.linear import Linear
from coterie.learners.network import Network
from coterie.methods import find_method
from coterie.methods.base import Entry
from coterie.options import AUTO, PRIVATE, Options, check_all, settle
from coterie.privacy.budget import calibrated, privacy_of
from coterie.privacy.noise import SECRET, Keyed, Noise
from coterie.server.start import Model
from coterie.tiers.compatibility import check_compatibility
from coterie.tiers.method import Method
from coterie.tiers.objective import Joint
from coterie.training.result import Result
from coterie.training.runs.files import read_tensors
from coterie.training.starts import GAUSSIAN, MOMENT_DESCENT, ODCL, PRINCIPAL_ANGLES, RANDOM, STARTS, read_start
from coterie.training.stopping import Watch

DRAWN = frozenset({RANDOM, GAUSSIAN, "near-truth", "cluster-oracle"})
"""The starts that are drawn at random."""

SHOWING = frozenset({MOMENT_DESCENT, ODCL, PRINCIPAL_ANGLES})
"""The starts that show how many groups there are."""

FREE = frozenset({RANDOM, GAUSSIAN})
"""The starts that make any number of models, so that numbers of clusters can be tried."""

KEPT_AT_LEAST, KEPT_SHARE = 64 << 20, 5
"""Bytes that are kept of what is computed from samples alone: so many, or this part of the training features."""

Start = str | Sequence[Model] | Result


@dataclass(frozen=True)
class Plan:
    """A run that is fully decided and has touched nothing yet."""

    data: ClientDirectory
    entry: Entry
    options: Options
    method: Method
    learner: Learner
    federation: Federation
    groups: Tensor | None
    """(m,) the given cluster of each client, for assigned methods."""
    start: Start
    open: frozenset[str] = frozenset()
    """Options that are decided when the run begins, from the data: clusters, lr."""
    before: Mapping[ClientId, int] = field(default_factory=dict)
    """Each client's cluster in the run that this one goes on from."""

    @property
    def beginning(self) -> str:
        """The name of the start; `given` for models, a result or a run folder."""
        return beginning_of(self.start)

    @property
    def beginning_settings(self) -> dict[str, Any]:
        """What the start was told, else the method's own options for it, else its defaults; by name."""
        named = read_start(self.start) if isinstance(self.start, str) else None
        if named is None:
            return {}
        options = STARTS[named[0]].options
        # a method may have an option of the same name that means something else
        own = {o.name: self.options.own.get(o.name) if o in self.entry.options else None for o in options}
        return {o.name: o.default if own[o.name] is None else own[o.name] for o in options} | named[1]

    @property
    def config(self) -> dict[str, Any]:
        """What config.toml holds: enough to run it again. Options that are still left to the data are `auto`."""
        unsaid = self.entry.refuses | (PLACES if isinstance(self.data, RemoteClients) else frozenset())
        known = self.options.flat() | dict.fromkeys(self.open, AUTO)
        settled = {k: v for k, v in known.items() if k not in unsaid}
        return {"scenario": self.data.name, "method": self.entry.name, **self.data.options, **settled}

    @property
    def validated(self) -> Tensor | None:
        """(m,) which clients have validation samples; None where no samples are held out."""
        share = self.options.validation
        return None if share is None else torch.from_numpy(aside_sizes(self.data.sizes, share) > 0)

    @property
    def evaluated_on(self) -> str:
        """Where the final scores come from."""
        if self.data.tested is not None:
            return "held-out data"
        return "training data" if self.validated is None else "validation samples"

    @property
    def lying(self) -> Tensor:
        """(m,) which clients lie, in a simulation of that: only for scores, nothing else knows."""
        if self.options.poison is None:
            return torch.zeros(len(self.data.clients), dtype=torch.bool)
        return torch.from_numpy(
            attackers_of(read_attack(self.options.poison), self.options.seed, self.federation.hashes)
        )

    @property
    def noise(self) -> Noise:
        """What the server hides clients with: what a seed gives only where all of it is a simulation."""
        return Keyed(self.options.seed) if isinstance(self.federation, InProcess) else SECRET

    @property
    def looks(self) -> bool:
        """Whether clients may be asked for scores and losses as they are.

        Where no server is trusted they may not. A simulation has the data, and looks; epsilon does not cover that.
        """
        privacy = self.method.privacy
        return privacy is None or not privacy.local or isinstance(self.federation, InProcess)

    @property
    def tries(self) -> bool:
        """Whether trial runs have yet to choose the number of clusters."""
        return "clusters" in self.open and self.beginning in FREE

    def watch(self) -> Watch:
        """What decides whether the run may end early and which models are the best; rounds of a race do not count."""
        race = self.method.race
        first = race.rounds if race is not None and self.method.restarts > 1 else 0
        return Watch("loss" if self.validated is None else "validation_loss", self.options.patience, first)

    def settled(self, **values: Any) -> Plan:
        """The same plan with these options decided."""
        options = replace(self.options, **values)
        method = composed(self.entry, options, self.learner)
        return replace(self, options=options, method=method, open=self.open - values.keys())

    def on(self, data: ClientDirectory, **values: Any) -> Plan:
        """The same run on other data, with these options decided: a plan with clients of its own."""
        options = replace(self.options, **values)
        return _assembled(data, self.entry, options, self.learner, self.groups, self.start, self.open - values.keys())


def prepare(
    data: ClientDirectory, method: str, learner: LearnerChoice | None, start: Start | None, given: Mapping[str, Any]
) -> Plan:
    """Check and settle everything; an error here has written nothing. Without `start` the method's own is taken."""
    if not isinstance(data, ClientDirectory):
        raise ConfigError(f"expected the result of from_arrays or scenario, got {type(data).__name__}")
    _check_places(data, given)
    data = data.compact()
    entry = find_method(method)
    _check_start(start)
    if isinstance(start, str) and start == "random" and "start" in entry.refuses:
        start = None  # it begins in its own way, which nobody has to say
    if start is not None:
        given = {**given, "start": start if isinstance(start, str) else "given"}
    said = check_all(_refused(entry, given), entry.accepts, f"method {entry.name}")
    accepted = {option.name for option in entry.accepts}
    recommended = {k: v for k, v in data.recommended.items() if k in accepted} | dict(entry.prefers(said))
    values = settle(
        said, recommended, {o.name: o.default for o in entry.options} | dict(entry.defaults({**recommended, **said}))
    )
    start = values["start"] if start is None else start
    if values["privacy"] == "central" and "client_weight" not in said:
        values["client_weight"] = "uniform"  # noise for one client hides no other weight
    if values["privacy"] is not None and "restarts" not in said:
        values["restarts"] = 1  # nobody tells the losses by which one would win
    if not _draws(start) and "restarts" not in said:
        values["restarts"] = 1  # several starts of the same models would be one
    groups, K = _groups(entry, data, values)
    chosen = values["learner"] if learner is None else learner
    if chosen is None or (isinstance(chosen, str) and not chosen):
        chosen = "linear" if data.profile.classes is None else "logistic"
    built = make_learner(chosen, data.profile, read_tensors)
    dtype = values["dtype"] or str(built.dtype).removeprefix("torch.")
    if values["lr"] == AUTO and "lr" not in said and not isinstance(built, Linear):
        values["lr"] = data.recommended.get("lr", 0.1)
    undecided = _undecided(entry, values, built, start)
    values |= {"clusters": K, "learner": built.spec, "dtype": dtype, "lr": 1.0 if "lr" in undecided else values["lr"]}
    own = {option.name for option in entry.options}
    options = Options(
        **{name: value for name, value in values.items() if name not in own},
        own={name: values.get(name) for name in own},
    )
    _check_memory(built, options.clusters * options.restarts, dtype)
    _check_device(options.device)
    _check_rates(options)
    check_augmentation(options.augment, data.profile)
    _check_private_beginning(options, undecided, start)
    options = calibrated(options, composed(entry, replace(options, privacy=None), built), data.clients)
    plan = _assembled(data, entry, options, built, groups, start, undecided)
    _check_trials(plan)
    return plan


def _check_start(start: object) -> None:
    if start is not None and not isinstance(start, str | Sequence | Result):
        raise ConfigError(
            f"start must be a name, a run folder, a result or a list of models, got {type(start).__name__}"
        )


def _check_places(data: ClientDirectory, given: Mapping[str, Any]) -> None:
    said = sorted(PLACES & {name for name, value in given.items() if value is not None})
    if said and isinstance(data, RemoteClients):
        raise ConfigError(f"{said[0]} is for simulated clients, but these live elsewhere: leave it out")


def _assembled(
    data: ClientDirectory,
    entry: Entry,
    options: Options,
    learner: Learner,
    groups: Tensor | None,
    start: Start,
    undecided: frozenset[str],
) -> Plan:
    """The plan with its method and its clients."""
    method = composed(entry, options, learner)
    check_compatibility(method, learner)
    _check_embedding(method, learner)
    if options.validation is not None:
        check_hold_out(data)
    federation = _federation(data, learner, options, method)
    _check_resampling(method, federation)
    return Plan(data, entry, options, method, learner, federation, groups, start, undecided)


BODY = "body"
"""In `shared`: everything but the head, the last layer."""


def composed(entry: Entry, options: Options, learner: Learner) -> Method:
    """The method, with the parameters named that a shared body has, and what hides its clients."""
    method = replace(entry.compose(options), privacy=privacy_of(options))
    if method.shared != (BODY,):
        return method
    if not has_features(learner):
        raise ConfigError(
            "a shared body needs a network whose outputs come from one fully connected layer with a bias, all of it "
            f"trained, such as mlp or cnn or a module that ends in nn.Linear, but the learner is {learner.spec}"
        )
    if method.weights.trains_heads and isinstance(learner, Network) and learner.l2 > 0:
        raise ConfigError(
            f"heads on a shared body are trained without a penalty, but the learner is {learner.spec}: leave l2 at 0"
        )
    names = learner.start([0], learner.dtype)
    body = tuple(name for name in names if not name.startswith(f"{learner.head}."))
    if not body:
        raise ConfigError(
            f"a shared body needs layers below the head that are trained, but the learner {learner.spec} has frozen "
            "them all: let some ask for a gradient"
        )
    return replace(method, shared=body)


def beginning_of(start: Start) -> str:
    """The name of the start; `given` for models, a result or a run folder."""
    named = read_start(start) if isinstance(start, str) else None
    return "given" if named is None else named[0]


def _draws(start: Start) -> bool:
    """Whether another key gives other models, so that restarts make sense."""
    return beginning_of(start) in DRAWN


def _undecided(entry: Entry, values: Mapping[str, Any], learner: Learner, start: Start) -> frozenset[str]:
    """Which options are left to the data; refused where it cannot tell."""
    auto = frozenset(name for name in ("clusters", "lr") if values[name] == AUTO)
    begins = beginning_of(start)
    what = ["lr=auto"] * ("lr" in auto) + ["start=moment-descent"] * (begins == MOMENT_DESCENT)
    if what and not isinstance(learner, Linear):
        raise ConfigError(
            f"{' and '.join(what)}: for learner linear only, but this run has {learner.spec}; give values, and "
            "start=random"
        )
    if "clusters" in auto and begins not in SHOWING | (FREE if entry.tries else frozenset()):
        raise ConfigError(_why_not_auto(entry, begins))
    return auto


def _why_not_auto(entry: Entry, begins: str) -> str:
    shown = "start=odcl, or for linear regression start=moment-descent, which show how many groups there are"
    if entry.tries:
        return f"clusters=auto cannot go with start={begins}: take start=random, where trial runs decide, or {shown}"
    return f"clusters=auto needs {shown}; without them {entry.name} needs a number"


def _refused(entry: Entry, given: Mapping[str, Any]) -> Mapping[str, Any]:
    for name, value in given.items():
        if name in entry.refuses & PRIVATE and value is not None:
            raise ConfigError(
                f"{entry.name} has no private form: nothing leaves a client, so nothing needs hiding"
                if entry.groups == "self"
                else f"{entry.name} has no private form: there is no noise here for what its clients send "
                "(docs/privacy.md lists the methods that have one)"
            )
        if name in entry.refuses and value is not None:
            raise ConfigError(f"{name} means nothing to method {entry.name} ({entry.summary}): leave it out")
    return {name: value for name, value in given.items() if value is not None}


def _groups(entry: Entry, data: ClientDirectory, values: Mapping[str, Any]) -> tuple[Tensor | None, int]:
    """The given clusters, if any, and their number."""
    m = len(data.clients)
    if entry.groups == "self":
        return torch.arange(m), m
    if entry.groups == "one":
        return None, 1
    if entry.groups == "truth":
        if data.truth is None:
            raise ConfigError(
                "oracle needs the true groups: pass truth= to from_arrays, or use a method that finds them"
            )
        return torch.from_numpy(data.truth), int(data.truth.max()) + 1
    if values["clusters"] == AUTO:
        return None, 1  # decided when the run begins
    K = int(values["clusters"])
    if m < K:
        raise ConfigError(f"clusters={K} but there are only {m} clients: choose at most {m}")
    return None, K


def _check_device(name: str) -> None:
    try:
        torch.zeros(1, device=name).tolist()  # which the device `meta`, without any data, cannot do
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0][:LONGEST_REASON]
        raise ConfigError(f"device {shown(name)} cannot be used here ({reason}): take cpu, or leave it out") from None


LONGEST_REASON = 200
"""Letters of a foreign message that are shown."""


def _check_memory(learner: Learner, models: int, dtype: str) -> None:
    """Refuse more models than the machine's memory holds; a few are not worth the look."""
    if models <= FEW_MODELS:
        return
    one = sum(array.nbytes for array in learner.start([0], torch_dtype(dtype)).values())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if models * one > memory:
        raise ConfigError(
            f"{models:,} models (clusters times restarts) of {one:,} bytes do not fit into the memory of this machine, "
            f"{memory / 1e9:.1f} GB: use fewer restarts"
        )


FEW_MODELS = 1000
"""Up to this many models are planned without asking for the machine's memory."""


def _check_rates(options: Options) -> None:
    """Step sizes are numbers of the training's own type, of which float32 holds the smaller ones only."""
    most = torch.finfo(torch_dtype(options.dtype)).max
    for name in ("lr", "server_lr"):
        value = getattr(options, name)
        if isinstance(value, float) and value > most:
            raise ConfigError(f"{name} must be at most {most:.3g} with dtype {options.dtype}, got {value:g}: lower it")


def _check_private_beginning(options: Options, undecided: frozenset[str], start: Start) -> None:
    """Nothing is asked before the first round of a private run."""
    if options.privacy is None:
        return
    if undecided:
        raise ConfigError(
            f"privacy={options.privacy}: {' and '.join(f'{name}=auto' for name in sorted(undecided))} would ask "
            "clients for facts that are not noised: give values"
        )
    if beginning_of(start) not in FREE and (isinstance(start, str | Result)):
        named = beginning_of(start) if isinstance(start, str) else "an earlier result"
        raise ConfigError(
            f"privacy={options.privacy}: start={named} would ask clients for facts that are not noised: take "
            "start=random or gaussian, or give the models themselves"
        )


def _check_embedding(method: Method, learner: Learner) -> None:
    objective = method.objective
    if isinstance(objective, Joint) and objective.embedding == "start" and not has_features(learner):
        raise ConfigError(
            f"embedding=start needs a network that ends in one layer, such as mlp or cnn, but the learner is "
            f"{learner.spec}: use embedding=inputs or random"
        )


def _federation(data: ClientDirectory, learner: Learner, options: Options, method: Method) -> Federation:
    """The clients as they can be asked, wherever they live."""
    if isinstance(data, RemoteClients):
        return data.reach(options, method.weights.keeps)
    assert isinstance(data, FederatedDataset)
    group = _client_group(data, learner, options, method)
    return Sequential(group) if options.engine == "sequential" else Simulated(group)


def _client_group(data: FederatedDataset, learner: Learner, options: Options, method: Method) -> ClientGroup:
    dtype, device = torch_dtype(options.dtype), torch.device(options.device)
    attack = None if options.poison is None else read_attack(options.poison)
    if attack is not None and attack.in_data:
        data = with_false_labels(data, attackers_of(attack, options.seed, data.train.hashes))
    group = ClientGroup.of(data, learner, dtype, device, options.validation, options.seed, method.weights.keeps)
    memory = Memory(max(KEPT_AT_LEAST, group.train.x.nbytes // KEPT_SHARE))
    group = replace(group, noise=Keyed(options.seed), memory=memory)
    if not isinstance(attack, ModelAttack):
        return group
    if method.weights.personal:
        raise ConfigError(
            f"poison={attack.name} falsifies changes of the clusters' models, but with weights {method.weights.name} "
            "clients send models of their own: use poison=label-flip"
        )
    return AttackedGroup.among(group, attack, options.seed)


def _check_trials(plan: Plan) -> None:
    """Trial runs are judged by held-out samples."""
    if plan.tries and plan.federation.sizes.max() < 2:
        raise ConfigError(
            "clusters=auto holds out some of each client's samples, but all clients have one: give a number of clusters"
        )


def _check_resampling(method: Method, federation: Federation) -> None:
    """Every client must have a sample for each of the 2T subsets."""
    sizes = federation.sizes
    if method.resample is not None and sizes.min() < 2 * method.resample:
        raise ConfigError(
            f"resample cuts each client's samples into 2 x rounds = {2 * method.resample} subsets, but client "
            f"{federation.clients[int(np.argmin(sizes))]!r} has {sizes.min()}: use fewer rounds or leave resample out"
        )
