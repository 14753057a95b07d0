"""Custom methods: members reproduce published methods, texts and tables are read, mistakes are refused."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from torch import nn

import coterie
from coterie.core.plain import from_plain, from_text, settings_of, to_plain, to_text
from coterie.core.registry import Registered
from coterie.core.regroup import Regroup
from coterie.errors import ConfigError
from coterie.methods import ODCL, AutoInit, Averaging, Tiered
from coterie.options import options_of
from coterie.testing.checks import small_federation
from coterie.tiers import (
    AnchorCosine,
    Assigned,
    AssignmentRule,
    CountShares,
    Distance,
    EMMixture,
    Joint,
    LowestLoss,
    MergeAbove,
    NearestParameters,
    Objective,
    ProcedureStep,
    Prototypes,
    Ratio,
    RemoveUnclaimed,
    SoftmaxLoss,
    SplitByGap,
    SplitByNorm,
    SplitBySpectrum,
    UpdateCosine,
)
from coterie.tiers.view import View

COMMON = {"rounds": 4, "local_steps": 2, "lr": 0.05, "dtype": "float64", "seed": 3}
HEADS: dict[str, Any] = {"shared": "body", "order": "heads-first"}
CUT = {"warmup": 1, "eps1": 10.0, "eps2": 0.0}
BY_NORM = Tiered(assignment=Assigned(), procedure=(SplitByNorm(10.0, 0.0, warmup=1),), distance=UpdateCosine())


@pytest.mark.parametrize(
    ("method", "options", "mine", "learner"),
    [
        ("fedem", {"clusters": 2}, Tiered(assignment=EMMixture(), clusters=2, init=AutoInit()), "logistic"),
        ("fedrc", {"clusters": 2}, Tiered(objective=Ratio(), clusters=2, init=AutoInit()), "logistic"),
        (
            "fedgmm",
            {"clusters": 2, "gaussians": 3},
            Tiered(
                objective=Joint(gaussians=3), clusters=2, averaging=Averaging(over="responsibility"), init=AutoInit()
            ),
            "logistic",
        ),
        ("fesem", {"clusters": 2}, Tiered(assignment=NearestParameters(), clusters=2, init=AutoInit()), "logistic"),
        ("fedsoft", {"clusters": 2}, Tiered(assignment=CountShares(), clusters=2), "logistic"),
        (
            "ifca",
            {"clusters": 2},
            Tiered(assignment=LowestLoss(), clusters=2, averaging=Averaging(client_weight="uniform")),
            "logistic",
        ),
        (
            "two-phase",
            {"clusters": 2, "init": "random", "soft": 0.5},
            Tiered(assignment=SoftmaxLoss(0.5), clusters=2, averaging=Averaging(over="all")),
            "logistic",
        ),
        ("one-shot", {"clusters": 2}, Tiered(assignment=Assigned(), init=ODCL(), clusters=2), "logistic"),
        ("cfl", CUT, BY_NORM, "logistic"),
        (
            "icfl",
            {"alpha0": 0.3, "warmup": 1},
            Tiered(assignment=Assigned(), procedure=(SplitBySpectrum(0.3, warmup=1),), distance=UpdateCosine()),
            "logistic",
        ),
        (
            "stocfl",
            {"tau": 0.3, "lam": 0.2},
            Tiered(assignment=Assigned(), procedure=(MergeAbove(0.3),), distance=AnchorCosine(), pull=0.2),
            "logistic",
        ),
        (
            "hcfl+",
            {"backbone": "fedrc", "rho": 0.05, "clusters": 1, "order": "heads-first"},
            Tiered(
                objective=Ratio(),
                assignment=EMMixture(mu=0.4),
                procedure=(RemoveUnclaimed(), SplitByGap(rho=0.05)),
                distance=Prototypes("cscp"),
                **HEADS,
            ),
            "mlp:hidden=6",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.filterwarnings("ignore:one-shot")  # nine small clients rarely show their groups
def test_members_of_a_published_method_reproduce_it(method, options, mine, learner):
    data = small_federation("logistic", sizes=(12,) * 9)
    published = coterie.fit(data, method, learner=learner, **COMMON, **options)
    tiered = coterie.fit(data, mine, learner=learner, **COMMON)
    assert published.assignments == tiered.assignments
    assert len(published.models) == len(tiered.models)
    for a, b in zip(published.models, tiered.models, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
    if method in ("cfl", "icfl", "stocfl", "hcfl+"):
        assert any("events" in record for record in tiered.records), "nothing was split: the test shows little"


def test_new_clusters_of_a_soft_split_are_not_removed_in_the_same_round():
    """Both parts have half of every client's weight, so no client prefers one of them."""
    data = small_federation("mlp", sizes=(20,) * 9)
    mine = Tiered(
        procedure=(SplitByGap(rho=0.01), RemoveUnclaimed()), distance=Prototypes("ascp"), max_clusters=3, **HEADS
    )
    first = coterie.fit(data, mine, learner="mlp:hidden=6", **COMMON).records[0]
    assert [event["kind"] for event in first["events"]] == ["split"]
    assert first["K"] == 2


MIX = Tiered(
    objective=Ratio(),
    assignment=EMMixture(mu=0.4),
    procedure=(SplitByGap(rho=0.3), RemoveUnclaimed()),
    distance=Prototypes("ascp", weighted=False),
    clusters=2,
)
TABLES = """
objective = "ratio"
assignment = { name = "em-mixture", mu = 0.4 }
distance = { name = "prototypes", principle = "ascp", weighted = false }
clusters = 2

[[procedure]]
name = "split-by-gap"
rho = 0.3

[[procedure]]
name = "remove-unclaimed"
"""


def test_texts_and_tables_mean_the_same_as_typed_values():
    texts = {
        "objective": "ratio",
        "assignment": "em-mixture:mu=0.4",
        "procedure": "split-by-gap:rho=0.3 + remove-unclaimed",
        "distance": "prototypes:principle=ascp,weighted=false",
        "clusters": 2,
    }
    for written in (texts, tomllib.loads(TABLES)):
        assert Tiered().with_options(written) == MIX
    assert Tiered().with_options(MIX.to_options()).tiers() == MIX.tiers()


def test_a_run_of_a_custom_method_is_resumed_and_loaded_from_its_folder(tmp_path):
    data = small_federation("logistic")
    whole = coterie.fit(data, BY_NORM, learner="logistic", **COMMON)

    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    more: dict[str, Any] = {"out": tmp_path / "cut", "callbacks": [stop], "checkpoint_every": 2}
    with pytest.raises(KeyboardInterrupt):
        coterie.fit(data, BY_NORM, learner="logistic", **more, **COMMON)
    cut = coterie.resume(tmp_path / "cut", data)
    assert cut.assignments == whole.assignments
    assert [r.get("events") for r in cut.records] == [r.get("events") for r in whole.records]
    assert coterie.load(tmp_path / "cut").assignments == whole.assignments
    assert cut.config == whole.config | {"checkpoint_every": 2}


# ---- texts ---------------------------------------------------------------------------------------------------

TIERS: dict[str, type[Registered]] = {
    "objective": Objective,
    "assignment": AssignmentRule,
    "procedure": ProcedureStep,
    "distance": Distance,
}
EXAMPLES: dict[str, dict[str, float]] = {
    "split-by-spectrum": {"alpha0": 0.5},
    "merge-above": {"tau": -0.5},
    "softmax-loss": {"temperature": 0.5},
    "split-by-gap": {"rho": 1e20},
    "split-by-norm": {"eps1": 1.0, "eps2": 2.0},
}


@pytest.mark.parametrize(("tier", "name"), [(tier, name) for tier, kind in TIERS.items() for name in kind.members])
def test_every_member_survives_its_text_and_its_plain_form(tier, name):
    built = TIERS[tier].members[name](**EXAMPLES.get(name, {}))
    assert from_text(TIERS[tier], to_text(built)) == built
    assert from_plain(TIERS[tier], to_plain(built)) == built


def test_the_options_of_tiered_are_the_families_of_the_tiers():
    kinds = {option.name: option.kind for option in options_of(Tiered)}
    for tier, family in TIERS.items():
        assert issubclass(kinds[tier], Registered)
        assert kinds[tier].members is not Registered.members
        assert set(family.members) <= set(kinds[tier].members)


def test_settings_of_every_kind_are_read():
    text = "split-by-norm: eps1=0.5, eps2=0, relative=true, warmup=3, gate=none"
    assert from_text(ProcedureStep, text) == SplitByNorm(0.5, 0.0, relative=True, warmup=3, gate=None)
    assert from_text(Objective, "joint:gaussians=3") == Joint(gaussians=3)
    assert {field.name for field in settings_of(SplitByNorm)} >= {"eps1", "eps2", "relative", "warmup", "gate"}


def test_steps_are_distinguished_from_exponents():
    steps = Tiered().with_options({"procedure": "split-by-gap:rho=1e+20+remove-unclaimed"}).procedure
    assert steps == (SplitByGap(rho=1e20), RemoveUnclaimed())
    assert Tiered().with_options({"procedure": ""}).procedure == ()


@pytest.mark.parametrize(
    ("tier", "text", "message"),
    [
        ("assignment", "em-mixtur", "unknown assignment 'em-mixtur': did you mean 'em-mixture'"),
        ("assignment", "em-mixture:nu=1", "unknown setting 'nu' of em-mixture: did you mean 'mu'"),
        ("assignment", "em-mixture:mu=much", "em-mixture: mu must be a number, got 'much'"),
        ("assignment", "lowest-loss:mu=1", "lowest-loss has no settings, got 'mu=1': leave it out"),
        ("procedure", "fixed", "unknown procedure step 'fixed'"),
        ("procedure", "split-by-gap", "split-by-gap needs rho: write split-by-gap:rho=..."),
        ("procedure", "split-by-norm:eps1=1,eps2=1,gate=x", "gate must be a number, got 'x'"),
        ("procedure", "split-by-gap:rho=1,hard=yes", "hard must be true or false, got 'yes'"),
        ("distance", "prototypes:principle=all", "principle must be one of cscp, ascp, got 'all'"),
    ],
)
def test_a_text_that_is_wrong_is_answered_with_what_to_write(tier, text, message):
    with pytest.raises(ConfigError, match=message):
        Tiered().with_options({tier: text})


def test_a_member_of_another_tier_is_refused():
    with pytest.raises(ConfigError, match="assignment must be an assignment with its name and settings, got Ratio"):
        Tiered(assignment=Ratio())  # type: ignore[arg-type]


# ---- custom members ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Never(ProcedureStep):
    """A step that never changes the clusters."""

    patience: int = 3

    def server_propose(self, view: View) -> Regroup | None:
        return None


@pytest.fixture
def _unregistered():
    with patch.dict(ProcedureStep.members):
        yield


@pytest.mark.usefixtures("_unregistered")
def test_a_custom_member_is_known_once_it_is_registered(tmp_path: Path):
    with pytest.raises(ConfigError, match="unknown procedure step 'never'"):
        Tiered().with_options({"procedure": "never"})
    assert coterie.register("never")(Never) is Never
    coterie.register("never")(Never)  # the same again, as in a notebook
    mine = Tiered(procedure=(RemoveUnclaimed(), Never(patience=5)), clusters=2)
    assert Tiered().with_options({"procedure": "remove-unclaimed + never:patience=5", "clusters": 2}) == mine
    data = small_federation("logistic")
    result = coterie.fit(data, mine, learner="logistic", rounds=2, out=tmp_path / "run")
    assert len(result.records) == 2
    assert coterie.load(tmp_path / "run").config["procedure"] == ["remove-unclaimed", {"name": "never", "patience": 5}]


@pytest.mark.usefixtures("_unregistered")
def test_other_classes_are_not_registered():
    class Alone:
        pass

    class Bare(ProcedureStep):
        def server_propose(self, view: View) -> Regroup | None:
            return None

    with pytest.raises(ConfigError, match="Alone has no extensible base class"):
        coterie.register("alone")(Alone)
    with pytest.raises(ConfigError, match="Bare must be a dataclass: put @dataclass"):
        coterie.register("bare")(Bare)
    with pytest.raises(ConfigError, match="there is already a procedure step called 'split-by-gap'"):
        coterie.register("split-by-gap")(Never)


# ---- mistakes ------------------------------------------------------------------------------------------------


def without_bias() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 3, bias=False))


GAP, NORM = "split-by-gap:rho=0.1", "split-by-norm:eps1=1,eps2=0"
COSINE = {"distance": "update-cosine"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        # features of networks without a last layer that is known
        ({"procedure": GAP, "distance": "prototypes", "learner": without_bias}, "compares features, the inputs of one"),
        ({"shared": "layer0", "learner": "mlp:hidden=6-5"}, "but shared=layer0 is only a part of it"),
        ({"shared": "body", "restarts": 2}, "a shared body supports one initialisation only, but restarts=2"),
        ({"assignment": "count-shares", "restarts": 2}, "assignment count-shares supports one initialisation only"),
        (
            {"assignment": "nearest-parameters", "shared": "body", "restarts": 2},
            "a shared body supports one initialisation only",
        ),
        (
            {"assignment": "count-shares", "shared": "layer0", "learner": "mlp:hidden=6-5"},
            "assignment count-shares trains heads on the features of a network's whole body",
        ),
        # clients that choose a cluster never compute features
        (
            {"assignment": "assigned", "procedure": GAP + ",hard=true", "distance": "prototypes"},
            "which clients with assignment assigned do not send",
        ),
        ({"procedure": GAP}, "split-by-gap splits clusters by a distance, but none is set: set distance"),
        (
            {"assignment": "assigned", "procedure": GAP, **COSINE},
            "every client has exactly one cluster: set split-by-gap:hard=true",
        ),
        ({"assignment": "lowest-loss", "objective": "ratio"}, "objective ratio needs counts that only mixtures send"),
        (
            {"assignment": "single-cluster", "objective": "ratio", "clusters": 1},
            "objective ratio needs counts that only mixtures send",
        ),
        ({"assignment": "single-cluster", "procedure": NORM, **COSINE}, "nothing to split or remove"),
        (
            {"assignment": "nearest-parameters", "procedure": GAP, **COSINE},
            "every client has exactly one cluster: set split-by-gap:hard",
        ),
        (
            {"assignment": "softmax-loss:temperature=1", "procedure": NORM, **COSINE},
            "cannot change with assignment softmax-loss",
        ),
        ({"objective": "joint:gaussians=2", "procedure": GAP, **COSINE}, "leave gaussians out"),
        ({"averaging": "members"}, "use averaging=all or responsibility"),
        (
            {"assignment": "softmax-loss:temperature=1", "shared": "body"},
            "train whole models, which cannot share",
        ),
        (
            {"assignment": "assigned", "procedure": NORM, "shared": "body", **COSINE},
            "cannot be split with assignment assigned",
        ),
        ({"procedure": "merge-above:tau=0.1", **COSINE}, "work only together"),
        ({"procedure": GAP, "distance": "anchor-cosine"}, "work only together"),
        ({"procedure": "merge-above:tau=0.1", "distance": "anchor-cosine"}, "set assignment=assigned"),
        (
            {"assignment": "assigned", "procedure": f"{NORM} + merge-above:tau=0.1", "distance": "anchor-cosine"},
            "would merge the clusters that another step has split",
        ),
        ({"distance": "principal-angles"}, "use init=pacfl"),
        ({"procedure": GAP, "restarts": 2, **COSINE}, "with restarts=2 the number of clusters cannot change"),
        ({"assignment": "em-mixture:mu=1.5"}, "mu of em-mixture must be at most 1, got 1.5"),
        ({"procedure": "split-by-gap:rho=-1", **COSINE}, "rho of split-by-gap must be at least 0, got -1"),
        ({"assignment": "assigned"}, "set a procedure that splits, or init=odcl"),
        ({"assignment": "assigned", "procedure": NORM, "clusters": 2, **COSINE}, "all clients start in one cluster"),
        ({"assignment": "single-cluster", "clusters": 2}, "single-cluster has one cluster, but clusters=2"),
    ],
)
def test_a_composition_that_cannot_work_is_refused_in_one_sentence(options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        coterie.fit(small_federation("mlp"), "tiered", **{"learner": "mlp:hidden=6", "rounds": 1} | options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "ratio"}, "counts classes, but this is a regression"),
        ({"assignment": "personal-em"}, "compares likelihoods of classes, but this is a regression"),
        ({"procedure": GAP, "distance": "prototypes"}, "compares classes, but this is a regression"),
    ],
)
def test_class_comparisons_in_a_regression_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        coterie.fit(small_federation("linear"), "tiered", learner="linear", rounds=1, **options)


def test_registered_methods_go_through_the_same_checks():
    with pytest.raises(ConfigError, match="fedem: averaging=members has no meaning"):
        coterie.fit(small_federation("mlp"), "fedem", learner="mlp:hidden=6", rounds=1, averaging="members")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"assignment": "assigned", "procedure": NORM, "participation": 0.5, **COSINE}, "it may split by chance"),
        ({"procedure": GAP + ",hard=true", **COSINE}, "hard=false halves the weights instead"),
        ({"assignment": "em-mixture:mu=0.95"}, "saturate: use at most 0.9"),
    ],
)
def test_a_doubtful_composition_gives_a_warning(options, message):
    with pytest.warns(UserWarning, match=message):
        coterie.fit(small_federation("mlp"), "tiered", learner="mlp:hidden=6", rounds=1, **options)
