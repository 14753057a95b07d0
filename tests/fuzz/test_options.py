"""Random options on the command line, in TOML files and in Python give a plan, or an error in one sentence."""

import traceback
from datetime import date, datetime, time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import click
import numpy as np
import pytest
import tomli_w

import coterie
from coterie.cli import main as commands
from coterie.cli import sweep as sweep_commands
from coterie.cli.main import cli
from coterie.core.registry import Registered
from coterie.data import SCENARIOS
from coterie.learners import LEARNERS
from coterie.methods import Initializer, Method
from coterie.methods.settings import RUN_OPTIONS
from coterie.options import Option
from coterie.training.planning import prepare
from tests.fuzz.cases import cases, refusal

DATA = {
    name: coterie.scenario(name, seed=0, **options)
    for name, options in {
        "mixed-regression": {"clients": 6, "dimension": 2, "samples": "8", "groups": 2},
        "rotated-digits": {"clients": 8},
    }.items()
}

METHODS = {name: method for name, method in Method.members.items() if method.__module__.startswith("coterie.")}

NUMBERS = [
    *("0", "1", "-1", "2", "3", "0.5", "1e-3", "1e-320", "-0", "-0.0", "+1", "1.0", "1.5"),
    *("1e3", "1e9", "1e18", "1e300", "1e308", "1e309", "1e400", "-1e400", "nan", "-nan", "inf", "-inf", "Infinity"),
    *(str(2**31), str(2**63 - 1), str(2**63), str(2**64), str(2**70), "-" + str(2**70), "9" * 400, "9" * 5000),
    *("1_000", "1__0", "٣", "\uff11\uff12", "0x10", "0b1", "1,5", "1e", "e1", " 1", "1 ", "1\n", "½", "1j"),
]
TEXTS = [
    *("", " ", "auto", "AUTO", "none", "None", "true", "false", "null", "default", "x", "random", "body", "-", "--"),
    *("a=b", "a:b=c", ":", "=", ",", "::", ":=", "[/x]", "[bold]", ":smile:", "\x1b[31m", "\n", "\udcff"),
    *("../..", "/dev/null", "/", "~", "%s", "{}", "${HOME}", "é", "💥", "x" * 300, "x" * 100_000, "'; drop", '"'),
]
SPECS = [
    *("mlp", "mlp:", "mlp:hidden=", "mlp:hidden=0", "mlp:hidden=-5", "mlp:hidden=1e9", "mlp:hidden=1000000000"),
    *("mlp:hidden=2-2", "mlp:hidden=2--2", "mlp:hidden=1-", "mlp:hidden", "mlp:hidden=4,l2=nan", "mlp:l2=-1"),
    *("mlp:hidden=99999999999999999999", "mlp:hidden=4,hidden=5", "mlp:hidden=4;l2=1", "mlp:l2=inf", "mlp:l2=1e400"),
    *("mlp:hidden=100000-100000-100000", "mlp:hidden=" + "-".join(["9"] * 500), "mlp:HIDDEN=3", "mlp:hidden=٣"),
    *("cnn", "cnn:channels=-1", "cnn:channels=0", "cnn:channels=10000000", "cnn:hidden=1000000000", "cnn:channels=x"),
    *("linear", "linear:l2=1", "linear:intercept=true", "logistic", "logistic:l2=-1", "logistic:l2=nan"),
    *("representation", "representation:rank=0", "representation:rank=-3", "representation:rank=1000000000000"),
    *("resnet18", "resnet18:weights=/nowhere", "resnet18:weights=/dev/zero.x", "mobilenet-v2:width=nan"),
    *("module:f", "gaussian", "gaussian:sd=", "gaussian:sd=-1", "gaussian:sd=nan", "gaussian:sd=1e400", "gaussian:x=1"),
    *("random", "random:sd=1", "odcl", "odcl:clustering=x", "odcl:lam=oracle13", "odcl:lam=inf", "near-truth:low=inf"),
    *("moment-descent:anchors=0", "moment-descent:anchors=1" + "0" * 400, "/nowhere", "runs/x", "\x00", "x" * 5000),
    *("mean", "median", "median:x=1", "trimmed", "trimmed:share=", "trimmed:share=nan", "trimmed:share=0.5"),
    *(
        "krum",
        "krum:attackers=",
        "krum:attackers=1",
        "krum:attackers=-1",
        "krum:attackers=1" + "0" * 400,
        "krum:attackers=2,attackers=3",
    ),
    *("flip", "crop", "flip,flip", "flip,", ",", "none,flip", "sign-flip", "sign-flip:share=", "sign-flip:share=2"),
    *("scale:strength=nan", "scale:share=0.2,strength=1e400", "label-flip", "label-flip:share=1e-9", "noise:x"),
    *("em-mixture:mu=0.4", "em-mixture:mu=nan", "em-mixture:mu=", "lowest-loss:x=1", "joint:gaussians=-1", "assigned"),
    *("split-by-gap:rho=0.1", "split-by-gap:rho=0.1 + remove-unclaimed", "split-by-gap + ", "+", "+ +", "fixed"),
    *("prototypes:principle=x", "update-cosine", "sgd:momentum=2", "sgd:momentum=0.9,nesterov=true", "adam:b1=nan"),
    *("adamw:weight_decay=1e400", "cosine:warmup=-1", "step-decay:every=0", "exponential-decay:rate=x", "yogi:tau=0"),
    *("layer0", "layer0,layer1", "body", "body,body", "cpu", "cuda", "cuda:1", "cuda:99", "meta", "mps", "cpu:7"),
]


class Odd:
    """An object whose conversions fail."""

    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __float__ = __int__ = __index__ = __bool__ = __eq__ = __str__
    __hash__ = object.__hash__


OBJECTS = [
    *(None, True, False, 0, 1, 2, -1, 2**31, 2**63, 2**70, -(2**70), 10**400, 0.5, 1.5, -0.0, 1e308, 5e-324),
    *(float("nan"), float("inf"), 1j, "", "auto", b"1", b"\xff", [], [1], (1,), {}, {"a": 1}, set(), range(3)),
    *(np.int64(2), np.int8(1), np.uint64(2**63), np.float32(0.5), np.float64("nan"), np.float16(1), np.bool_(True)),
    *(np.str_("auto"), np.array(1), np.array([1, 2]), np.array([]), np.datetime64("2020-01-01"), np.ma.masked),
    *(Decimal(1), Decimal("NaN"), Decimal("1e400"), Fraction(1, 2), date(2020, 1, 1), Path("x"), len, int, Odd()),
]


def near(random: np.random.Generator, option: Option) -> str:
    """Return a value that the option accepts, or almost accepts."""
    if issubclass(option.kind, Registered):
        return str(random.choice([*option.kind.members, *SPECS]))
    edges = [edge for edge in (option.low, option.above, option.high) if np.isfinite(edge)]
    suited = [*option.words, *option.choices, *(f"{edge:g}" for edge in edges)]
    suited += [str(option.default)] if option.default is not None else []
    suited += ["true", "false"] if option.kind is bool else ["1", "2", "3"] if option.kind is int else ["0.1", "0.5"]
    return str(random.choice(suited))


def value(random: np.random.Generator, option: Option) -> str:
    kind = random.random()
    if kind < 0.35:
        return near(random, option)
    if option.kind not in (int, float, bool) and not option.choices and kind < 0.8:
        return str(random.choice(SPECS))
    return str(random.choice(NUMBERS if kind < 0.8 else TEXTS))


def pick(random: np.random.Generator, items):
    """Return one of the items unchanged; numpy's choice would convert them to an array."""
    return items[int(random.integers(len(items)))]


def drawn_options(random: np.random.Generator, options: list[Option], most: int = 3) -> dict[str, str]:
    return {o.name: value(random, o) for o in (pick(random, options) for _ in range(random.integers(1, most + 1)))}


class Planned(Exception):  # noqa: N818
    """Raised in place of the start of a run whose plan was accepted."""


@pytest.fixture
def stop_after_planning(monkeypatch, tmp_path):
    """Run the commands in an empty folder, and stop them before training."""

    def planned(*_, **__):
        raise Planned

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "carry_out", planned)
    monkeypatch.setattr(commands, "_run_comparison", planned)
    monkeypatch.setattr(sweep_commands, "continue_sweep", planned)
    known = commands.build_scenario
    monkeypatch.setattr(commands, "build_scenario", lambda name, **options: _cached(known, name, options))
    return tmp_path


BUILT: dict[str, object] = {}


def _cached(build, name, options):
    """Return the data of a scenario, which is built only once for the same options."""
    key = repr((name, sorted(options.items())))
    if key not in BUILT:
        BUILT[key] = build(name, **options)
    return BUILT[key]


def on_the_command_line(label: str, arguments: list[str]) -> str:
    """Return the outcome of the command: `planned`, `printed`, `usage` or `refused`; fail for an unexpected error."""
    try:
        cli.main(arguments, prog_name="coterie", standalone_mode=False)
    except Planned:
        return "planned"
    except click.ClickException:
        return "usage"
    except Exception as error:
        known = commands.explain(error)
        if known is None:
            pytest.fail(f"{label}: {arguments!r:.400}\n{traceback.format_exc()}")
        if not known or "\n" in known:
            pytest.fail(f"{label}: not a sentence: {known!r}")
        return "refused"
    return "printed"


def every_option() -> list[Option]:
    found = {option.name: option for option in RUN_OPTIONS}
    for options in (*(method.options() for method in METHODS.values()), *(each.options for each in SCENARIOS.values())):
        found |= {option.name: option for option in options}
    return list(found.values())


SMALL = {
    "mixed-regression": ["--clients", "6", "--dimension", "2", "--samples", "8"],
    "rotated-digits": ["--clients", "8"],
}


def test_random_arguments_are_planned_or_refused(stop_after_planning, capsys):
    seen: set[str] = set()
    for label, random in cases("arguments", 500, few=200):
        command = pick(random, ["run", "run", "run", "compare", "sweep", "describe", "predict"])
        name = pick(random, list(SMALL))
        method = pick(random, list(METHODS))
        arguments = [command]
        if command == "describe":
            arguments.append(str(pick(random, [*METHODS, *SCENARIOS, *LEARNERS, *Initializer.members, *TEXTS])))
        elif command == "predict":
            arguments += [
                pick(random, TEXTS),
                "--data",
                pick(random, TEXTS),
                "--cluster",
                value(random, RUN_OPTIONS[0]),
            ]
        else:
            own = list(METHODS[method].options())
            options = drawn_options(random, own if random.random() < 0.8 else every_option())
            arguments += [name if random.random() < 0.95 else str(pick(random, TEXTS)), *SMALL[name]]
            arguments += {
                "run": ["--method", method],
                "compare": ["--methods", f"{method},fedavg" if random.random() < 0.8 else str(pick(random, TEXTS))],
                "sweep": ["--method", method, "--over", f"{pick(random, own).name}={pick(random, NUMBERS)},2"],
            }[command]
            for option, text in options.items():
                arguments += ["--" + option.replace("_", "-"), text]
            if random.random() < 0.2:
                named = pick(random, ["--out", "--json", "--seeds", "--seed", "--config"])
                arguments += [named, pick(random, TEXTS + NUMBERS)]
        seen.add(on_the_command_line(label, arguments))
    capsys.readouterr()
    assert seen == {"planned", "usage", "refused", "printed"}, seen


def test_every_option_of_every_method_accepts_its_values_and_refuses_extreme_ones(capsys):
    for name, method in METHODS.items():
        data = DATA["mixed-regression" if "linear" in (method.learners or ("linear",)) else "rotated-digits"]
        for option in method.options():
            for label, random in cases(f"{name}.{option.name}", 1):
                for given in (near(random, option), pick(random, NUMBERS), pick(random, OBJECTS)):
                    shown = f"{label}: {name} with {option.name}={_shown(given)}"
                    refusal(shown, lambda given=given: prepare(data, name, None, {option.name: given}))  # noqa: B023


def test_random_keywords_are_planned_or_refused():
    planned = 0
    for label, random in cases("keywords", 500):
        name, method = pick(random, list(DATA)), pick(random, list(METHODS))
        accepted = list(METHODS[method].options())
        given = {}
        for _ in range(random.integers(1, 3)):
            option = pick(random, accepted)
            typed = [option.kind(near(random, option))] if option.kind in (str, float) and not option.words else [1, 2]
            given[option.name] = pick(random, OBJECTS if random.random() < 0.4 else [*typed, value(random, option)])
        learner = given.pop("learner", None)
        call = lambda: prepare(DATA[name], method, learner, given)  # noqa: B023, E731
        plan, _ = refusal(f"{label}: {method} on {name} with {_shown(given)}, {_shown(learner)}", call)
        planned += plan is not None
    assert planned > 50


def _shown(given: object) -> str:
    try:
        return repr(given)[:200]
    except RuntimeError:
        return "an object without a text"


def test_random_toml_files_are_planned_or_refused(stop_after_planning, capsys):
    values = [
        *(1, -1, 2**70, 10**400, 1.5, float("nan"), float("inf"), True, False, "auto", "", "x", "\x00", [], [1], {}),
        *({"a": {"b": 1}}, date(2020, 1, 1), datetime(2020, 1, 1, 1), time(1, 2), [[1]], [{"a": 1}], "mlp:hidden=1e9"),
    ]
    names = [*(option.name for option in every_option()), "scenario", "method", "out", "zzz", "", "a b", "a.x", "é"]
    for label, random in cases("toml", 300, few=100):
        content = {"scenario": "mixed-regression", "clients": 6, "dimension": 2, "samples": "8"}
        content |= {pick(random, names): pick(random, values) for _ in range(random.integers(0, 4))}
        data = tomli_w.dumps(content).encode()
        if random.random() < 0.4:
            data = damaged(random, data)
        Path("options.toml").write_bytes(data)
        on_the_command_line(f"{label}: {data[:300]!r}", ["run", "--config", "options.toml"])
    capsys.readouterr()


def damaged(random: np.random.Generator, data: bytes) -> bytes:
    place = int(random.integers(len(data) + 1))
    return pick(
        random,
        [
            data[:place],
            data[:place] + random.bytes(3) + data[place:],
            data[:place] + b"\x00" + data[place:],
            b"\xff\xfe" + data.decode().encode("utf-16-le"),
            b"\xef\xbb\xbf" + data,
            data + data,
            b"a = " + b"[" * 5000 + b"]" * 5000,
            b"rounds = " + b"9" * 5000,
            b"",
        ],
    )


def test_random_arguments_of_compare_and_sweep_are_planned_or_refused(monkeypatch, tmp_path):
    def planned(*_, **__):
        raise Planned

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("coterie.experiments.compare.run_comparison", planned)
    monkeypatch.setattr("coterie.experiments.sweep.run_sweep", planned)
    monkeypatch.setattr("coterie.experiments.compare.fit", planned)
    monkeypatch.setattr("coterie.experiments.sweep._run_here", planned)
    small = {"clients": 6, "dimension": 2, "samples": "8"}
    seen = set()
    for label, random in cases("compare and sweep", 200):
        odd = lambda likely: likely if random.random() < 0.8 else pick(random, OBJECTS)  # noqa: B023, E731
        data = odd(pick(random, ["mixed-regression", "mixed-regression", DATA["mixed-regression"]]))
        given = {"seeds": odd(pick(random, [1, 2, [0, 5], np.arange(2)])), "out": odd(f"out {label}")}
        given |= small if isinstance(data, str) else {}
        option = pick(random, METHODS["ifca"].options())
        given[option.name] = odd(pick(random, [near(random, option), 1, 2, 0.5, np.int64(2), None]))
        over = (
            odd({pick(random, ["lr", "lr", "lr", 5, ""]): odd([odd(0.1), odd(np.float32(0.2))])})
            if random.random() < 0.7
            else {"lr": np.array([1, 2])}
        )

        def call():
            try:
                if random.random() < 0.5:  # noqa: B023
                    coterie.compare(data, odd([odd("fedavg"), "ifca"]), **given)  # noqa: B023
                else:
                    coterie.sweep(data, odd("ifca"), over=over, **given)  # noqa: B023
            except Planned:
                return "planned"

        outcome, error = refusal(f"{label}: {_shown(given)} {_shown(over)}", call)
        seen.add(outcome or type(error).__name__)
    assert "planned" in seen
