"""Mixes of one's own: published methods come out of their members, texts are read and written, nonsense is refused."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest
from coterie.tiers.members import STEPS, TIERS, read_member, read_steps, settings_of, text_of

import coterie
from coterie.core.regroup import Regroup
from coterie.errors import ConfigError
from coterie.testing.checks import small_federation
from coterie.tiers import register
from coterie.tiers.view import View
from coterie.training import composing as c

COMMON = {"rounds": 4, "local_steps": 2, "lr": 0.05, "dtype": "float64", "seed": 3}
HEADS = {"shared": "body", "order": "heads-first", "averaging": "all"}
CUT = {"warmup": 1, "eps1": 10.0, "eps2": 0.0}


@pytest.mark.parametrize(
    ("method", "options", "mine", "learner"),
    [
        ("fedem", {"clusters": 2}, c.compose(weights=c.soft(), clusters=2), "logistic"),
        ("fedrc", {"clusters": 2}, c.compose(objective=c.ratio(), clusters=2), "logistic"),
        (
            "fedgmm",
            {"clusters": 2, "gaussians": 3},
            c.compose(objective=c.joint(gaussians=3), clusters=2, averaging="responsibility"),
            "logistic",
        ),
        ("fesem", {"clusters": 2}, c.compose(weights=c.nearest(), clusters=2), "logistic"),
        ("fedsoft", {"clusters": 2}, c.compose(weights=c.counts(), clusters=2), "logistic"),
        ("ifca", {"clusters": 2}, c.compose(weights=c.hard_by_loss(), clusters=2, client_weight="uniform"), "logistic"),
        (
            "two-phase",
            {"clusters": 2, "start": "random", "soft": 0.5},
            c.compose(weights=c.soft_by_loss(0.5), clusters=2, averaging="all"),
            "logistic",
        ),
        ("one-shot", {"clusters": 2}, c.compose(weights=c.assigned(), start="odcl", clusters=2), "logistic"),
        (
            "cfl",
            CUT,
            c.compose(weights=c.assigned(), procedure=c.split_by_norm(10.0, 0.0, warmup=1), distance=c.update_cosine()),
            "logistic",
        ),
        (
            "icfl",
            {"alpha0": 0.3, "warmup": 1},
            c.compose(weights=c.assigned(), procedure=c.split_by_spectrum(0.3, warmup=1), distance=c.update_cosine()),
            "logistic",
        ),
        (
            "stocfl",
            {"tau": 0.3, "lam": 0.2},
            c.compose(weights=c.assigned(), procedure=c.merge(0.3), distance=c.anchor_cosine(), pull=0.2),
            "logistic",
        ),
        (
            "hcfl+",
            {"rho": 0.05, "clusters": 1},
            c.compose(
                objective=c.ratio(),
                weights=c.sample_wise(mu=0.4),
                procedure=c.remove() + c.split(rho=0.05),
                distance=c.prototypes("cscp"),
                **HEADS,
            ),
            "mlp:hidden=6",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.filterwarnings("ignore:one-shot")  # nine small clients hardly show their groups
def test_the_members_of_a_published_method_are_that_method(method, options, mine, learner):
    data = small_federation("logistic", sizes=(12,) * 9)
    published = coterie.fit(data, method, learner=learner, **COMMON, **options)
    composed = coterie.fit(data, mine, learner=learner, **COMMON)
    assert published.assignments == composed.assignments
    assert len(published.models) == len(composed.models)
    for a, b in zip(published.models, composed.models, strict=True):
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
    if method in ("cfl", "icfl", "stocfl", "hcfl+"):
        assert any("events" in record for record in composed.records), "nothing was split: the test shows little"


def test_what_a_soft_split_has_just_made_is_not_removed_in_the_same_round():
    """Both parts have half of everybody's weight, so nobody ranks one of them behind the other."""
    data = small_federation("mlp", sizes=(20,) * 9)
    options = {"learner": "mlp:hidden=6", "shared": "body", "order": "heads-first", "max_clusters": 3}
    mine = c.compose(procedure=c.split(rho=0.01) + c.remove(), distance=c.prototypes("ascp"), **options)
    first = coterie.fit(data, mine, **COMMON).records[0]
    assert [event["kind"] for event in first["events"]] == ["split"]
    assert first["K"] == 2


def test_a_composition_is_texts_that_mean_the_same(tmp_path):
    mine = c.compose(
        objective=c.ratio(),
        weights=c.sample_wise(mu=0.4),
        procedure=c.split(rho=0.3) + c.remove(),
        distance=c.prototypes("ascp", weighted=False),
        clusters=2,
    )
    assert dict(mine.options) == {
        "objective": "ratio",
        "weights": "em-mixture:mu=0.4",
        "procedure": "split-by-gap:rho=0.3 + remove-unclaimed",
        "distance": "prototypes:principle=ascp,weighted=false",
        "clusters": 2,
    }
    assert c.compose(**mine.options) == mine


def test_a_composed_run_is_resumed_and_loaded_by_its_folder(tmp_path):
    data = small_federation("logistic")
    mine = c.compose(weights=c.assigned(), procedure=c.split_by_norm(10.0, 0.0, warmup=1), distance=c.update_cosine())
    whole = coterie.fit(data, mine, learner="logistic", **COMMON)

    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.fit(data, mine, learner="logistic", out=tmp_path / "cut", on_round=stop, checkpoint_every=2, **COMMON)
    cut = coterie.resume(tmp_path / "cut", data)
    assert cut.assignments == whole.assignments
    assert [r.get("events") for r in cut.records] == [r.get("events") for r in whole.records]
    assert coterie.load(tmp_path / "cut").assignments == whole.assignments


# ---- texts ---------------------------------------------------------------------------------------------------

EXAMPLES = {
    "split-by-spectrum": {"alpha0": 0.5},
    "merge-above": {"tau": -0.5},
    "softmax-loss": {"temperature": 0.5},
    "split-by-gap": {"rho": 1e20},
    "split-by-norm": {"eps1": 1, "eps2": 2},
}


@pytest.mark.parametrize(("tier", "name"), [(tier, name) for tier, facts in TIERS.items() for name in facts.members])
def test_every_member_survives_its_text(tier, name):
    member = TIERS[tier].members[name]
    built = member(**EXAMPLES.get(name, {key: 1.5 for key, value in settings_of(member).items() if value == "needed"}))
    assert read_member(tier, text_of(built)) == built


def test_settings_of_every_kind_are_read():
    step = read_member("procedure", "split-by-norm: eps1=0.5, eps2=0, relative=true, warmup=3, gate=none")
    assert dataclasses.astuple(step)[:4] == (0.5, 0.0, True, 3)
    assert step.gate is None
    assert read_member("objective", "joint:gaussians=3").gaussians == 3


def test_steps_are_told_apart_from_exponents():
    steps = read_steps("split-by-gap:rho=1e+20+remove-unclaimed")
    assert [step.name for step in steps] == ["split-by-gap", "remove-unclaimed"]
    assert steps[0].rho == 1e20
    assert read_steps("fixed") == ()


@pytest.mark.parametrize(
    ("tier", "text", "message"),
    [
        ("weights", "em-mixtur", "unknown member of tier weights 'em-mixtur': did you mean 'em-mixture'"),
        ("weights", "em-mixture:nu=1", "unknown setting of em-mixture 'nu': did you mean 'mu'"),
        ("weights", "em-mixture:mu=much", "em-mixture: mu must be a number, got 'much'"),
        ("weights", "lowest-loss:mu=1", "lowest-loss has no settings, got 'mu=1': leave it out"),
        ("procedure", "split-by-gap", "split-by-gap needs rho: write split-by-gap:rho=..."),
        ("procedure", "split-by-norm:eps1=1,eps2=1,gate=x", "gate must be a number or none, got 'x'"),
        ("procedure", "split-by-gap:rho=1,hard=yes", "hard must be true or false, got 'yes'"),
        ("distance", "prototypes:principle=all", "principle must be one of cscp, ascp, got 'all'"),
    ],
)
def test_a_text_that_is_wrong_is_answered_with_what_to_write(tier, text, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        read_member(tier, text)


def test_something_that_is_no_member_is_refused():
    with pytest.raises(ConfigError, match="weights must be a member of that tier, got Ratio"):
        c.compose(weights=c.ratio())


# ---- members of one's own ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Never:
    """Nothing ever changes."""

    patience: int = 3
    name: ClassVar[str] = "never"
    splits: ClassVar[bool] = False

    def server_propose(self, view: View) -> Regroup | None:
        return None


@pytest.fixture
def _unregistered():
    before = dict(STEPS)
    yield
    STEPS.clear()
    STEPS.update(before)


@pytest.mark.usefixtures("_unregistered")
def test_a_member_of_ones_own_is_known_once_it_is_registered():
    with pytest.raises(ConfigError, match=r"put @coterie\.tiers\.register"):
        c.compose(procedure=Never())
    assert register("procedure")(Never) is Never
    register("procedure")(Never)  # the same again, as in a notebook
    mine = c.compose(procedure=c.remove() + Never(patience=5))
    assert mine.options["procedure"] == "remove-unclaimed + never:patience=5"
    data = small_federation("logistic")
    assert len(coterie.fit(data, mine, learner="logistic", clusters=2, rounds=2).records) == 2


@pytest.mark.usefixtures("_unregistered")
def test_what_is_no_member_is_not_registered():
    class Bare:
        name = "bare"

    with pytest.raises(ConfigError, match="must be a dataclass, but Bare is none"):
        register("procedure")(Bare)
    with pytest.raises(ConfigError, match="Bare lacks splits, server_propose, which members of tier procedure have"):
        register("procedure")(dataclasses.dataclass(frozen=True)(Bare))
    taken = dataclasses.make_dataclass("Taken", [], bases=(Never,), frozen=True, namespace={"name": "split-by-gap"})
    with pytest.raises(ConfigError, match="has a member called 'split-by-gap' already"):
        register("procedure")(taken)
    with pytest.raises(ConfigError, match="unknown tier 'weight': did you mean 'weights'"):
        register("weight")


# ---- nonsense ------------------------------------------------------------------------------------------------

GAP, NORM = "split-by-gap:rho=0.1", "split-by-norm:eps1=1,eps2=0"
COSINE = {"distance": "update-cosine"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        # features without a common body
        ({"procedure": GAP, "distance": "prototypes"}, "compares features.*set shared=body"),
        ({"shared": "layer0", "learner": "mlp:hidden=6-5"}, "whole body can be shared and no part of it"),
        ({"shared": "body", "restarts": 2}, "a shared body can have one start only, but restarts=2"),
        ({"weights": "count-shares", "restarts": 2}, "count-shares can have one start only"),
        ({"weights": "nearest-parameters", "shared": "body", "restarts": 2}, "a shared body can have one start only"),
        (
            {"weights": "count-shares", "shared": "layer0", "learner": "mlp:hidden=6-5"},
            "with weights count-shares a network's whole body",
        ),
        # clients that choose never see features
        (
            {"weights": "assigned", "procedure": GAP + ",hard=true", "distance": "prototypes"},
            "which clients with weights assigned do not tell",
        ),
        ({"procedure": GAP}, "split-by-gap parts clients by a distance, but none was chosen: set distance"),
        ({"weights": "assigned", "procedure": GAP, **COSINE}, "a client has one cluster: set split-by-gap:hard=true"),
        ({"weights": "lowest-loss", "objective": "ratio"}, "objective ratio counts only in mixtures"),
        ({"weights": "single-cluster", "objective": "ratio", "clusters": 1}, "objective ratio counts only in mixtures"),
        ({"weights": "single-cluster", "procedure": NORM, **COSINE}, "nothing to split or remove"),
        (
            {"weights": "nearest-parameters", "procedure": GAP, **COSINE},
            "a client has one cluster: set split-by-gap:hard",
        ),
        (
            {"weights": "softmax-loss:temperature=1", "procedure": NORM, **COSINE},
            "cannot change with weights softmax-loss",
        ),
        ({"objective": "joint:gaussians=2", "procedure": GAP, **COSINE}, "leave gaussians out"),
        ({"averaging": "members"}, "use averaging=all or responsibility"),
        ({"weights": "softmax-loss:temperature=1", "shared": "body"}, "clients train whole models, which cannot share"),
        (
            {"weights": "assigned", "procedure": NORM, "shared": "body", **COSINE},
            "cannot be split with weights assigned",
        ),
        ({"procedure": "merge-above:tau=0.1", **COSINE}, "need each other"),
        ({"procedure": GAP, "distance": "anchor-cosine"}, "need each other"),
        ({"procedure": "merge-above:tau=0.1", "distance": "anchor-cosine"}, "set weights=assigned"),
        (
            {"weights": "assigned", "procedure": f"{NORM} + merge-above:tau=0.1", "distance": "anchor-cosine"},
            "unite again what another step has parted",
        ),
        ({"distance": "principal-angles"}, "use start=principal-angles"),
        ({"procedure": GAP, "restarts": 2, **COSINE}, "but restarts=2: leave it at 1"),
        ({"weights": "em-mixture:mu=1.5"}, "em-mixture takes mu of at most 1, got 1.5"),
        ({"procedure": "split-by-gap:rho=-1", **COSINE}, "split-by-gap takes rho of at least 0, got -1"),
        ({"weights": "assigned"}, "set a procedure that splits, or start=odcl"),
        ({"weights": "assigned", "procedure": NORM, "clusters": 2, **COSINE}, "all begin in one cluster"),
        ({"weights": "single-cluster", "clusters": 2}, "single-cluster have one cluster, but clusters=2"),
    ],
)
def test_a_mix_that_makes_no_sense_is_refused_in_one_sentence(options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        coterie.fit(small_federation("mlp"), "composed", **{"learner": "mlp:hidden=6", "rounds": 1} | options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "ratio"}, "counts classes, but the targets are numbers"),
        ({"weights": "personal-em"}, "compare likelihoods of classes, but the targets are numbers"),
        ({"procedure": GAP, "distance": "prototypes"}, "compares classes, but the targets are numbers"),
    ],
)
def test_classes_of_numbers_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        coterie.fit(small_federation("linear"), "composed", learner="linear", rounds=1, **options)


def test_registered_methods_go_through_the_same_checks():
    with pytest.raises(ConfigError, match="fedem: averaging=members has no meaning"):
        coterie.fit(small_federation("mlp"), "fedem", learner="mlp:hidden=6", rounds=1, averaging="members")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "assigned", "procedure": NORM, "participation": 0.5, **COSINE}, "it may split by chance"),
        ({"procedure": GAP + ",hard=true", **COSINE}, "hard=false halves them"),
        ({"weights": "em-mixture:mu=0.95"}, "saturate: take at most 0.9"),
    ],
)
def test_a_mix_that_hardly_makes_sense_is_warned_of(options, message):
    with pytest.warns(UserWarning, match=message):
        coterie.fit(small_federation("mlp"), "composed", learner="mlp:hidden=6", rounds=1, **options)
