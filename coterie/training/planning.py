"""Plans of runs: method, settings and learner are built and checked before anything is asked or written."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.dataset import ClientDirectory, FederatedDataset, dtype_name, torch_dtype
from coterie.core.federation import Federation
from coterie.core.keys import hash_ids
from coterie.core.registry import UnknownMemberError
from coterie.core.shard import ClientId
from coterie.core.validation import check_validation_split, held_out_sizes
from coterie.diagnosis.diagnose import diagnose
from coterie.diagnosis.values import Diagnosis
from coterie.engines.attacks import Attack, ModelAttack, attackers_of, read_attack, with_false_labels
from coterie.engines.clients import ClientTerms
from coterie.engines.in_shards import InShards
from coterie.engines.remote import SIMULATION_OPTIONS, RemoteClients
from coterie.engines.sequential import Sequential
from coterie.engines.simulated import Simulated
from coterie.engines.simulation import Simulation
from coterie.errors import ConfigError, shown, unknown_name
from coterie.files import read_tensors
from coterie.learners import LEARNERS, LearnerChoice, make_learner
from coterie.learners.augment import check_augmentation
from coterie.learners.base import Learner, has_features
from coterie.learners.local_training import FIXED_RATE
from coterie.methods.base import Method, find_method
from coterie.methods.initializers import GivenModels
from coterie.methods.run import Initializer, Run
from coterie.methods.settings import MOST_ROUNDS, PRIVACY_OPTIONS, RUN_OPTIONS, USUAL_ROUNDS, RunSettings
from coterie.options import AUTO, check_all, from_options, options_of, plain_options, to_options, without_effect
from coterie.plugins.loading import knows, load_installed
from coterie.privacy.noise import SeededNoise
from coterie.tiers.compatibility import Mix, check_compatibility, check_shared_body
from coterie.tiers.composition import Tiers
from coterie.training.budget import calibrated, privacy_of
from coterie.training.earlier import EarlierRun, initializer_of
from coterie.training.evaluating import FIRST_ROUNDS, usual_interval

LEAST_ROUNDS = 20
"""Number of rounds, after those of a race, before the training loss may count as settled with rounds=auto."""

COMPILED_FROM = 1e10
"""Number of multiplications in a run from which compiled code pays: it saves more time than the first compilation on a
machine takes, two to four seconds. With less work, matrix products by torch are used."""

MethodChoice = str | Method
"""Name of a method, or a typed value such as `IFCA(clusters=4)`; `AUTO` leaves the choice to a diagnosis."""


def method_class(name: object) -> type[Method]:
    """Return the method class of this name, loading installed plugins if necessary.

    Raises:
        ConfigError: if there is none; the message suggests similar names.
    """
    if name == AUTO:
        raise ConfigError(
            "method=auto works only for a single run with coterie.fit or coterie run: name a method; coterie diagnose "
            "recommends one"
        )
    if isinstance(name, str):
        knows(Method, name)
    return find_method(name)


@dataclass(frozen=True)
class Plan:
    """A run with all its settings, before anything has been asked or written."""

    method: Method
    """The method with all its settings."""
    run: Run
    """The context of the method."""
    earlier: EarlierRun | None = None
    """The run whose models this one starts from."""
    diagnosis: Diagnosis | None = None
    """The diagnosis that chose the method, with method="auto"."""

    @property
    def data(self) -> ClientDirectory:
        return self.run.data

    @property
    def learner(self) -> Learner:
        return self.run.learner

    @property
    def federation(self) -> Federation:
        return self.run.federation

    @property
    def settings(self) -> RunSettings:
        return self.run.settings

    @property
    def tiers(self) -> Tiers:
        return self.run.tiers

    @property
    def rounds(self) -> int:
        """Number of rounds; 0 for methods that consist of their initialisation."""
        return self.run.rounds

    @property
    def open(self) -> frozenset[str]:
        """Options that the initialisation still has to decide: clusters, lr."""
        K, lr = {"clusters"} if self.tiers.K is None else set(), {"lr"} if self.tiers.local.lr == AUTO else set()
        return frozenset(K | lr)

    @property
    def before(self) -> Mapping[ClientId, int]:
        """Cluster of each client in the run that this one starts from."""
        return {} if self.earlier is None else self.earlier.assignments

    @property
    def config(self) -> dict[str, Any]:
        """Content of config.toml, which is enough to repeat the run; options that depend on the data are `auto`."""
        hidden = self.method.refuses | (SIMULATION_OPTIONS if isinstance(self.data, RemoteClients) else frozenset())
        options = self.method.to_options() | to_options(self.settings)
        if "clusters" in self.method.own_names():
            options["clusters"] = AUTO if self.tiers.K is None else self.tiers.K
        if isinstance(self.method.initializer, GivenModels):
            options["init"] = self.method.initializer.source
        known = {name: value for name, value in options.items() if name not in hidden}
        return {"scenario": self.data.name, "method": self.method.name, **self.data.options, **plain_options(known)}

    @property
    def validated(self) -> Tensor | None:
        """Whether each client has validation samples, (m,); None if no samples are held out."""
        share = self.settings.validation
        return None if share is None else torch.from_numpy(held_out_sizes(self.data.sizes, share) > 0)

    @property
    def evaluated_on(self) -> str:
        """Samples from which the final scores come."""
        if self.data.tested is not None:
            return "held-out data"
        return "training data" if self.validated is None else "validation samples"

    @property
    def attacking(self) -> Tensor:
        """Whether each client is a simulated attacker, (m,); used only to leave attackers out of the scores."""
        if self.settings.poison is None:
            return torch.zeros(len(self.data.clients), dtype=torch.bool)
        attack = read_attack(self.settings.poison)
        return torch.from_numpy(attackers_of(attack, self.settings.seed, self.federation.hashes))

    @property
    def may_evaluate(self) -> bool:
        """Whether clients may be asked for scores and losses without noise.

        They may not if the server is not trusted. A simulation has the data and evaluates anyway; epsilon does not
        cover this.
        """
        privacy = self.tiers.privacy
        return privacy is None or not privacy.local or isinstance(self.federation, Simulation)

    @cached_property
    def loss_of_zero(self) -> float | None:
        """Training loss of a model that always predicts 0; None for classes and for remote clients."""
        if self.learner.classes is not None or not isinstance(self.data, FederatedDataset):
            return None
        targets = self.data.train.y[None].double()
        return float(self.learner.loss(torch.zeros_like(targets), targets).mean())

    def evaluates_after(self, rounds: int) -> bool:
        """Return whether clients are evaluated after this number of rounds; they always are after the last round."""
        every = self.settings.evaluate_every
        if every == AUTO:
            return rounds <= FIRST_ROUNDS or rounds % self._usual_interval == 0 or rounds == self.rounds
        return rounds % every == 0 or rounds == self.rounds

    @cached_property
    def _usual_interval(self) -> int:
        return usual_interval(self.data, self.federation.sizes, self.tiers, self.settings)

    @property
    def tries(self) -> bool:
        """Whether trial runs still have to choose the number of clusters."""
        return "clusters" in self.open and self.method.initializer.any_count

    @property
    def seeks_rate(self) -> bool:
        """Whether the learning rate is needed and still has to be found."""
        if self.tiers.local.lr != AUTO:
            return False
        needed = self.rounds > 0 or self.settings.finetune is not None
        return needed or self.method.initializer.takes_steps(self.learner)

    @property
    def settles(self) -> bool:
        """Whether the run ends when its training loss settles."""
        return self.settings.rounds == AUTO and self.rounds == MOST_ROUNDS

    @property
    def least_rounds(self) -> int:
        """Number of rounds before the run may end because its training loss has settled."""
        return USUAL_ROUNDS if self.tiers.adapts else LEAST_ROUNDS + self.race_rounds

    @property
    def race_rounds(self) -> int:
        """Number of initial rounds in which restarts compete; they do not count for `patience`."""
        return self.method.race_rounds

    def decided(self, clusters: int | None = None, lr: float | None = None) -> Plan:
        """Return the plan with the number of clusters and the learning rate that the initialisation chose."""
        given = {name: value for name, value in (("clusters", clusters), ("lr", lr)) if value is not None}
        method = self.method.with_options(given)
        return replace(self, method=method, run=self.run.decided(clusters, lr))

    def on(self, data: ClientDirectory, clusters: int, **settings: Any) -> Plan:
        """Return the plan for other data, with this number of clusters and these settings."""
        method = self.method.with_options({"clusters": clusters})
        changed = replace(self.settings, **settings)
        return assembled(method, data, self.learner, changed, self.earlier)


def prepare(
    data: ClientDirectory, method: MethodChoice, learner: LearnerChoice | None, given: Mapping[str, Any]
) -> Plan:
    """Return the plan of a run after checking everything; an error here has written nothing.

    Args:
        data: The clients.
        method: Name of a method, or a typed value; "auto" diagnoses the clients and uses the recommended method.
        learner: Name or function that builds the learner; by default the one that the data recommends.
        given: Options of the method and of the run by name. With a typed method they replace its fields.

    Raises:
        ConfigError: if an option is unknown or does not fit.
    """
    try:
        return _prepared(data, method, learner, given)
    except UnknownMemberError:  # an installed plugin may register it
        load_installed()
        return _prepared(data, method, learner, given)


def _prepared(
    data: ClientDirectory, method: MethodChoice, learner: LearnerChoice | None, given: Mapping[str, Any]
) -> Plan:
    if not isinstance(data, ClientDirectory):
        raise ConfigError(f"data must come from from_arrays, from_table or scenario, got {type(data).__name__}")
    if method == AUTO:
        return follow(diagnosis_for(data, given, learner), data, learner, given)
    data = data.compact()
    kind = type(method) if isinstance(method, Method) else method_class(method)
    given = {name: value for name, value in given.items() if value is not None}
    init, earlier = initializer_of(given.pop("init", None), kind)
    if init is not None:
        given["init"] = init
    _check_names(kind, data, given)
    options = _layered(kind, _with_own_rate(data, learner), given, typed=isinstance(method, Method))
    built = method.with_options(options) if isinstance(method, Method) else from_options(kind, options)
    _check_effect(built, given)
    settings: RunSettings = from_options(RunSettings, options)
    if settings.engine != "dask":
        data = data.in_memory()
    choice = _learner_choice(learner, settings, data, kind)
    if isinstance(choice, str) and choice.partition(":")[0] not in LEARNERS:
        load_installed()
    chosen = make_learner(choice, data.profile, read_tensors)
    settings = replace(settings, learner=chosen.spec, dtype=settings.dtype or dtype_name(chosen.dtype))
    if settings.privacy is not None:
        built = _without_questions(built, given)
    built = built.for_learner(chosen).with_decided_init(
        chosen, len(data.clients), None if settings.rounds == AUTO else settings.rounds
    )
    _check_open(built, chosen)
    plan = assembled(built, data, chosen, settings, earlier)
    _check_trials(plan)
    _check_workers(plan)
    return plan


def _without_questions(method: Method, given: Mapping[str, Any]) -> Method:
    """Return the method of a private run, which asks clients nothing before the first round."""
    known, options = method.to_options(), dict[str, Any]()
    if known.get("lr") == AUTO and "lr" not in given:
        options["lr"] = FIXED_RATE
    if known.get("restarts") == AUTO:
        options["restarts"] = 1
    return method.with_options(options)


def diagnosis_for(data: ClientDirectory, given: Mapping[str, Any], learner: LearnerChoice | None = None) -> Diagnosis:
    """Return the diagnosis that chooses the method of a run.

    Args:
        data: The clients.
        given: Options of the run by name.
        learner: As in `prepare`.

    Raises:
        ConfigError: if the options do not allow a diagnosis.
    """
    check_before_diagnosis(given)
    finds_count = "clusters" not in given  # the method for networks finds the number of clusters itself
    network = finds_count and (learner is None or has_features(make_learner(learner, data.profile)))
    return diagnose(data, seed=int(given.get("seed") or 0), network=network)


def check_before_diagnosis(given: Mapping[str, Any]) -> None:
    """Check the options of a run as far as possible before its method is known.

    Raises:
        ConfigError: if an option is unknown, or if the run is private: the sums of a diagnosis have no noise.
    """
    known = all_names()
    for name, value in given.items():
        if name not in known:
            raise unknown_name("option", name, known)
        if name in PRIVACY_OPTIONS and value is not None:
            raise ConfigError(
                "method=auto does not support differential privacy, because the diagnosis asks clients for sums "
                "without noise: name a method"
            )


def follow(
    diagnosis: Diagnosis, data: ClientDirectory, learner: LearnerChoice | None, given: Mapping[str, Any]
) -> Plan:
    """Return the plan that a diagnosis recommends; given options override recommended ones.

    Args:
        diagnosis: The diagnosis of these clients.
        data: The clients.
        learner: As in `prepare`.
        given: Options of the run and of the recommended method by name.
    """
    method = diagnosis.recommendation.method
    given = {name: value for name, value in given.items() if value is not None}
    foreign = sorted(given.keys() - names_of(method_class(method)))
    if foreign:
        raise ConfigError(
            f"the diagnosis recommends method {method}, which has no option {foreign[0]}: leave {foreign[0]} out, or "
            f"name a method that has it. {diagnosis.recommendation.reason}"
        )
    recommended = diagnosis.recommendation.settings()
    for one, other in EXCLUSIVE:
        if one in given:
            recommended.pop(other, None)
    return replace(prepare(data, method, learner, {**recommended, **given}), diagnosis=diagnosis)


def method_of_config(config: Mapping[str, Any]) -> tuple[Method, dict[str, Any]]:
    """Return the method of a run from its complete config, and the options that do not belong to the method.

    Recommendations of the data do not apply: a config contains all settings, and those that it leaves out are not set.

    Args:
        config: Options as in `Plan.config`, without those of the scenario.
    """
    kind = method_class(config["method"])
    own = {name: value for name, value in config.items() if name in kind.own_names()}
    init = own.get("init")
    if isinstance(init, str) and not knows(Initializer, init.partition(":")[0]):
        del own["init"]  # a run folder, or models given in Python
    rest = {name: value for name, value in config.items() if name not in own and name not in ("scenario", "method")}
    return from_options(kind, own), rest


def _check_names(kind: type[Method], data: ClientDirectory, given: Mapping[str, Any]) -> None:
    """Check that this method, and a run of these clients, has all options."""
    remote = sorted(SIMULATION_OPTIONS & given.keys())
    if remote and isinstance(data, RemoteClients):
        raise ConfigError(f"{remote[0]} applies to simulated clients only, but these are remote: leave it out")
    for name in given:
        if name in kind.refuses & PRIVACY_OPTIONS:
            raise ConfigError(
                f"{kind.name} does not support differential privacy: nothing leaves a client, so nothing needs "
                "protection"
                if not kind.exchanges
                else f"{kind.name} does not support differential privacy: what its clients send carries no noise "
                "(docs/privacy.md lists the methods that support it)"
            )
        if name in kind.refuses or (name not in names_of(kind) and name in all_names()):
            raise ConfigError(f"{name} has no meaning for method {kind.name} ({kind.summary}): leave it out")


def _check_effect(method: Method, given: Mapping[str, Any]) -> None:
    """Check that all options have an effect given the others, and all settings of the initializer too."""
    init = method.initializer
    if isinstance(init, Method):
        inner = init.without_effect({})
    else:
        inner = without_effect(options_of(type(init)), to_options(init))
    for owner, found in ((method.name, method.without_effect(given)), (f"init={init.name}", inner)):
        for name, condition in found.items():
            what = condition if "=" in condition else f"{condition} is given"
            what = what.replace("|", " or ").replace(" or auto", "")
            raise ConfigError(f"{owner}: {name} has no effect unless {what}: set that, or leave {name} out")


def names_of(kind: type[Method]) -> frozenset[str]:
    """Return the names of all options of a method."""
    return _cached_names(kind)  # type: ignore[arg-type] # classes are hashable even if their instances are not


@cache
def _cached_names(kind: type[Method]) -> frozenset[str]:
    return frozenset(option.name for option in kind.options())


def all_names() -> frozenset[str]:
    """Return the names of all options of all methods and of runs."""
    return frozenset().union(*(names_of(kind) for kind in Method.members.values()))


EXCLUSIVE = (
    ("local_epochs", "local_steps"),
    ("local_steps", "local_epochs"),
    ("schedule", "lr_decay"),
    ("lr_decay", "schedule"),
)
"""Pairs of options that set the same thing in two ways."""


def _layered(kind: type[Method], data: ClientDirectory, given: Mapping[str, Any], typed: bool) -> dict[str, Any]:
    """Return the checked options: the user's, else those the method insists on, else those the data recommends.

    Recommendations for a method's own settings do not apply to a typed method, whose fields set them.
    """
    checked = check_all(given, kind.options(), f"method {kind.name}")
    if "local_steps" in checked and "local_epochs" in checked:
        raise ConfigError("local_steps and local_epochs both set the length of training: set only one of them")
    usable = {option.name for option in RUN_OPTIONS} if typed else names_of(kind)
    recommended = {name: value for name, value in data.recommended.items() if name in usable - kind.refuses}
    insisted = {} if typed else dict(kind.preferred(checked))
    values: dict[str, Any] = {}
    for layer in (recommended, insisted, checked):
        values = _overruled(values, layer) | layer
    values = _with_private_defaults(kind, _with_single_gradient(values, checked), checked, typed)
    if "restarts" not in checked and (values.get("privacy") is not None or not _may_restart(kind, values)):
        values.pop("restarts", None)  # restarts of equal models would be equal, and private losses are not sent
    return values


def _with_own_rate(data: ClientDirectory, learner: LearnerChoice | None) -> ClientDirectory:
    """Return the data without its recommended learning rate if the user's learner is of another family."""
    usual = str(data.recommended.get("learner", ""))
    same = not usual or not learner or (isinstance(learner, str) and _family(learner) == _family(usual))
    kept = {name: value for name, value in data.recommended.items() if same or name != "lr"}
    return replace(data, recommended=kept)


def _family(learner: str) -> str:
    return learner.partition(":")[0]


def _overruled(values: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values without those that a layer above sets by their exclusive counterpart."""
    dropped = {other for one, other in EXCLUSIVE if layer.get(one) is not None and layer.get(other) is None}
    return {name: value for name, value in values.items() if name not in dropped}


def _with_single_gradient(values: Mapping[str, Any], checked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with one local step for exchange=gradient, unless the user sets the length of training."""
    if values.get("exchange") != "gradient" or {"local_steps", "local_epochs"} & checked.keys():
        return dict(values)
    return {name: value for name, value in values.items() if name != "local_epochs"} | {"local_steps": 1}


def _with_private_defaults(
    kind: type[Method], values: Mapping[str, Any], checked: Mapping[str, Any], typed: bool
) -> dict[str, Any]:
    """Return the options with the defaults of private runs, unless the user sets them."""
    found = dict(values)
    if found.get("privacy") == "central" and "client_weight" not in checked and "client_weight" in names_of(kind):
        found["client_weight"] = "uniform"  # noise for one client hides no other weight
    if found.get("privacy") is not None and not kind.private_options.keys() & checked.keys() and not typed:
        found |= kind.private_options
    return found


def _may_restart(kind: type[Method], values: Mapping[str, Any]) -> bool:
    """Return whether the first models are random and several of them can be trained side by side."""
    if not _is_random(kind, values):
        return False
    try:
        tiers = from_options(kind, {name: value for name, value in values.items() if name != "restarts"}).tiers()
    except ConfigError:
        return True  # the checks that follow say what is wrong
    one_body = tiers.assignment.trains_heads and bool(tiers.shared)
    return not (tiers.assignment.personal or tiers.adapts or one_body)


def _is_random(kind: type[Method], values: Mapping[str, Any]) -> bool:
    """Return whether the first models are random."""
    init = values.get("init")
    return (init if isinstance(init, Initializer) else kind().initializer).random


def _learner_choice(
    learner: LearnerChoice | None, settings: RunSettings, data: ClientDirectory, method: type[Method]
) -> LearnerChoice:
    """Return the user's learner, or the usual one of the method."""
    chosen = settings.learner if learner is None else learner
    if chosen is None or (isinstance(chosen, str) and not chosen):
        return method.usual_learner(data.profile)
    return chosen


def _check_open(method: Method, learner: Learner) -> None:
    """Check that values which depend on the data can be found.

    Raises:
        ConfigError: if the number of clusters cannot be found.
    """
    init = method.initializer
    init.check(learner)
    open_count = method.groups.found and method.tiers().K is None
    if not open_count or init.finds_count or (init.any_count and method.tries_counts):
        return
    finders = "init=odcl, or for linear regression init=moment-descent, which find the number of clusters"
    if method.tries_counts:
        raise ConfigError(
            f"clusters=auto does not work with init={init.name}: use init=random, with which trial runs decide, or "
            f"{finders}"
        )
    raise ConfigError(f"clusters=auto needs {finders}; without them {method.name} needs a number")


def assembled(
    method: Method,
    data: ClientDirectory,
    learner: Learner,
    settings: RunSettings,
    earlier: EarlierRun | None,
) -> Plan:
    """Return the plan with the composition of tiers and the clients."""
    rounds = most_rounds(method, settings) if method.trains else 0
    tiers = with_shared_body(replace(method.tiers(), K=method.groups.count(data, method.tiers().K)), learner)
    tiers = replace(tiers, objective=tiers.objective.server_with_seed(settings.seed))
    tiers.check(method.name)
    _check_memory(learner, (tiers.K or 1) * tiers.restarts, str(settings.dtype))
    _check_device(settings.device)
    _check_rates(tiers, settings)
    check_augmentation(tiers.local.augment, data.profile)
    settings = calibrated(settings, method, tiers, rounds, data.clients)
    tiers = replace(tiers, privacy=privacy_of(settings))
    check_compatibility(Mix(method.name, tiers, learner, settings.participation))
    if settings.validation is not None:
        check_validation_split(data)
    settings = _with_shards(data, settings)
    federation = _federation(data, learner, settings, tiers, rounds)
    _check_resampling(tiers, rounds, federation)
    noise = {"noise": SeededNoise(settings.seed)} if isinstance(federation, Simulation) else {}
    run = Run(
        data,
        learner,
        federation,
        settings,
        tiers,
        rounds,
        known_groups=method.groups.labels(data),
        exchanges=method.exchanges,
        **noise,
    )
    return Plan(method, run, earlier)


def most_rounds(method: Method, settings: RunSettings) -> int:
    """Return the number of rounds of a run, or the largest one if it ends when the training loss settles."""
    if settings.rounds != AUTO:
        return settings.rounds
    tiers = method.tiers()
    known = settings.privacy is not None or tiers.resample or tiers.local.schedule.needs_rounds
    return USUAL_ROUNDS if known else MOST_ROUNDS


BODY = "body"
"""Value of `shared` that stands for everything but the head, which is the last layer."""


def with_shared_body(tiers: Tiers, learner: Learner) -> Tiers:
    """Return the composition with the names of the parameters of a shared body."""
    if tiers.shared != (BODY,):
        return tiers
    check_shared_body(tiers, learner)
    names = learner.start([0], learner.dtype)
    assert has_features(learner), "checked"
    body = tuple(name for name in names if not name.startswith(f"{learner.head}."))
    if not body:
        raise ConfigError(
            f"a shared body needs trainable layers below the head, but the learner {learner.spec} has frozen them all: "
            "unfreeze some"
        )
    return replace(tiers, shared=body)


def _check_device(name: str) -> None:
    try:
        torch.zeros(1, device=name).tolist()  # fails on the device `meta`, which holds no data
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0][:LONGEST_REASON]
        raise ConfigError(
            f"device {shown(name)} cannot be used here ({reason}): use cpu, or leave device out"
        ) from None


LONGEST_REASON = 200
"""Largest number of characters of another library's message that are shown."""


def _check_memory(learner: Learner, models: int, dtype: str) -> None:
    """Check that the models fit into the machine's memory."""
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
"""Number of models up to which the memory is not checked."""


def _check_rates(tiers: Tiers, settings: RunSettings) -> None:
    """Check that learning rates can be represented in the floating type of the training."""
    most = torch.finfo(torch_dtype(str(settings.dtype))).max
    for name, value in (("lr", tiers.local.lr), ("server_lr", tiers.server.lr)):
        if isinstance(value, float) and value > most:
            raise ConfigError(f"{name} must be at most {most:.3g} with dtype {settings.dtype}, got {value:g}: lower it")


def _with_shards(data: ClientDirectory, settings: RunSettings) -> RunSettings:
    """Return the settings with the number of shards, on which the rounding of results depends."""
    shards, clients = settings.shards, len(data.clients)
    if shards is not None and shards > clients:
        raise ConfigError(f"shards must be at most the number of clients, {clients}, got {shards}: use fewer")
    if shards is not None and settings.engine == "sequential":
        raise ConfigError("shards has no effect with engine=sequential, which asks one client at a time: leave it out")
    if settings.engine != "dask" or settings.workers is None or shards is not None:
        return settings
    from coterie.cluster.engine import shard_count  # needs an extra

    return replace(settings, shards=shard_count(data, settings))


def _work(data: ClientDirectory, tiers: Tiers, rounds: int) -> float:
    """Return the approximate number of multiplications in a run on linear models.

    It depends on the settings only, so that a run that is repeated or resumed uses the same code.
    """
    trained = tiers.restarts * 2 * (tiers.local.full_batch_steps or 1)
    models = (tiers.K or 1) * tiers.restarts + trained
    return float(rounds) * float(data.sizes.sum()) * math.prod(data.profile.features) * models


def _federation(
    data: ClientDirectory, learner: Learner, settings: RunSettings, tiers: Tiers, rounds: int
) -> Federation:
    """Return the clients, local or remote, ready to be asked."""
    if isinstance(data, RemoteClients):
        return data.connect(settings, tiers)
    attack = None if settings.poison is None else read_attack(settings.poison)
    _check_attack(attack, tiers)
    attacking = None if attack is None else attackers_of(attack, settings.seed, hash_ids(data.clients))
    if attack is not None and attacking is not None and attack.in_data:
        if not isinstance(data, FederatedDataset):
            raise ConfigError(f"poison={attack.name} changes samples, but these are in files: use another attack")
        data, attacking = with_false_labels(data, attacking), None
    terms = ClientTerms(
        str(learner.spec),
        data.profile.features,
        data.profile.classes,
        str(settings.dtype),
        settings.device,
        settings.validation,
        settings.seed,
        tiers.assignment.keeps,
        None if attacking is None else settings.poison,
        () if attacking is None else tuple(compress(data.clients, attacking)),
        compiles=_work(data, tiers, rounds) >= COMPILED_FROM,
    )
    if settings.engine == "dask":
        from coterie.cluster.engine import connect  # needs an extra

        return connect(data, learner, terms, settings)
    assert isinstance(data, FederatedDataset), "only workers leave samples in files"
    clients = terms.clients(data, learner)
    if settings.shards is not None:
        return InShards(clients, shards=settings.shards)
    return Sequential(clients) if settings.engine == "sequential" else Simulated(clients)


def _check_attack(attack: Attack | None, tiers: Tiers) -> None:
    """Check that the method sends what the attack falsifies."""
    if not isinstance(attack, ModelAttack):
        return
    if tiers.assignment.personal:
        raise ConfigError(
            f"poison={attack.name} changes the updates of the clusters' models, but with assignment "
            f"{tiers.assignment.name} clients send personal models: use poison=label-flip"
        )
    if tiers.refit:
        raise ConfigError(
            f"poison={attack.name} changes the updates of the rounds, but not the sums that refit asks for at the end: "
            "use poison=label-flip, or leave refit out"
        )


def _check_trials(plan: Plan) -> None:
    """Check that clients have enough samples for trial runs, which hold some out."""
    if plan.tries and plan.federation.sizes.max() < 2:
        raise ConfigError(
            "clusters=auto holds out some of each client's samples, but every client has only one: set a number of "
            "clusters"
        )


def _check_workers(plan: Plan) -> None:
    """Check that named workers have something to do."""
    if plan.settings.workers is not None and plan.settings.engine != "dask" and not plan.tries:
        raise ConfigError(
            "workers have no work in this run: set engine=dask, which spreads the clients over them, or leave workers "
            "out"
        )


def _check_resampling(tiers: Tiers, rounds: int, federation: Federation) -> None:
    """Check that every client has a sample for each of the 2T subsets."""
    sizes = federation.sizes
    if tiers.resample and sizes.min() < 2 * rounds:
        raise ConfigError(
            f"resample cuts each client's samples into 2 x rounds = {2 * rounds} subsets, but client "
            f"{federation.clients[int(np.argmin(sizes))]!r} has {sizes.min()}: use fewer rounds or leave resample out"
        )
