"""Extensions by users: plugins in fit, engines, resume and the check suite."""

import os
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import coterie
from coterie.cli.main import cli
from coterie.core.registry import Registered
from coterie.data import SCENARIOS, register_scenario
from coterie.errors import ConfigError
from coterie.learners import LEARNERS, register_learner
from coterie.methods import Method
from coterie.plugins.loading import VARIABLE
from coterie.testing.checks import CHECKS, TASKS, Case, check_task
from tests.methods.test_ifca import arrays_of, population

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = ROOT / "tests" / "plugins"
TIERS = {"assignment": "reluctant-loss:margin=0.1", "procedure": "split-in-round:at=1", "distance": "manhattan"}


def families(base=Registered):
    """Return all families of registered classes."""
    found = [base] if "members" in vars(base) else []
    return found + [each for sub in base.__subclasses__() for each in families(sub)]


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch):
    """Remove classes that a test has registered, and their modules."""
    monkeypatch.setenv(VARIABLE, "")  # restored afterwards, even if a test loads plugins
    kept = [(family.members, dict(family.members)) for family in families()]
    kept += [(SCENARIOS, dict(SCENARIOS)), (LEARNERS, dict(LEARNERS))]
    yield
    for table, before in kept:
        table.clear()
        table.update(before)
    for name in [each for each in sys.modules if each.startswith("coterie_plugin_")]:
        del sys.modules[name]


def load(name):
    return coterie.load_plugin(PLUGINS / f"{name}.py")


CASES = [
    ("scaffold", Case("scaffold", "linear")),
    ("scaffold", Case("scaffold", "mlp")),
    ("fl_hc", Case("fl-hc", "linear")),
    ("own_tiers", Case("tiered", "mlp", {"assignment": "reluctant-loss"})),
    ("own_tiers", Case("tiered", "linear", TIERS)),
]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(("plugin", "case"), CASES, ids=lambda value: getattr(value, "method", value))
def test_plugins_pass_the_check_suite(plugin, case, check):
    load(plugin)
    CHECKS[check](case)


@pytest.mark.parametrize(("plugin", "case"), CASES[::2], ids=lambda value: getattr(value, "method", value))
def test_plugins_have_the_same_results_on_a_flower_grid(plugin, case, tmp_path):
    """A Flower server without data has the same models and refuses no reply."""
    pytest.importorskip("flwr")
    from tests.flower.make import clients_behind_a_grid
    from tests.flower.test_every_method import TWO, same

    load(plugin)
    plan = case.plan()
    same(case.run(plan), case.run(case.plan(clients_behind_a_grid(plan, tmp_path, nodes=TWO))))


@pytest.mark.parametrize("task", TASKS)
def test_a_plugin_works_on_every_kind_of_data(task):
    load("scaffold")
    assert check_task("scaffold", task, layouts=("float16", "lists")) is None


def test_scaffold_equals_a_plain_loop():
    """Option II of the paper; c is the mean of c_i over all clients that have replied."""
    load("scaffold")
    data, lr, steps = population(), 0.05, 3
    settings = {"learner": "linear", "rounds": 5, "lr": lr, "local_steps": steps, "seed": 1}
    x = coterie.fit(data, "fedavg", learner="linear", rounds=1, lr=1e-300, seed=1).models[0]["weight"]
    own = np.zeros((len(data.clients), len(x)))
    for _ in range(5):
        common, changes = own.mean(axis=0), []
        for i, (features, y) in enumerate(arrays_of(data)):
            theta = x
            for _ in range(steps):
                theta = theta - lr * (features.T @ (features @ theta - y) / len(y) - own[i] + common)
            changes.append(theta - x)
        own = own - common - np.array(changes) / (steps * lr)
        x = x + np.mean(changes, axis=0)
    np.testing.assert_allclose(coterie.fit(data, "scaffold", **settings).models[0]["weight"], x, rtol=1e-9)


def test_fl_hc_finds_the_groups_once():
    load("fl_hc")
    result = coterie.fit(population(sizes=(30,) * 8), "fl-hc", learner="linear", rounds=5, first_rounds=3, lr=0.1)
    assert [record["clusters"] for record in result.records] == [1, 1, 1, 2, 2]
    assert list(result.assignments.values()) in ([0, 1] * 4, [1, 0] * 4)


def test_user_defined_tier_members_work_together():
    load("own_tiers")
    result = coterie.fit(population(sizes=(30,) * 8), "tiered", learner="linear", rounds=4, lr=0.1, **TIERS)
    assert [record["clusters"] for record in result.records] == [1, 2, 2, 2]
    assert list(result.assignments.values()) == [0, 1] * 4
    assert result.config["procedure"] == ["split-in-round"]
    assert result.config["assignment"] == {"name": "reluctant-loss", "margin": 0.1}


def test_a_run_of_a_plugin_is_resumed_by_another_process(tmp_path):
    """The environment variable provides the plugin, and the run folder everything else."""
    load("scaffold")
    (tmp_path / "lines.py").write_text(SCENARIO)
    coterie.load_plugin(tmp_path / "lines.py")
    data = coterie.scenario("two-lines", clients=6)

    def interrupt(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    settings = {"rounds": 4, "checkpoint_every": 1, "lr": 0.1}
    with pytest.raises(KeyboardInterrupt):
        coterie.fit(data, "scaffold", out=tmp_path / "run", callbacks=[interrupt], **settings)
    program = f"import coterie; print(coterie.resume({str(tmp_path / 'run')!r}).models[0]['weight'].tolist())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    found = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    whole = coterie.fit(data, "scaffold", **settings)
    assert found.stdout.strip() == str(whole.models[0]["weight"].tolist())


SCENARIO = '''
import numpy as np
import coterie
from coterie.data import register_scenario


@register_scenario("two-lines", recommended={"learner": "linear", "clusters": 2, "rounds": 3})
def two_lines(*, seed: int = 0, clients: int = 12, noise: float = 0.1) -> coterie.FederatedDataset:
    """Clients whose targets follow one of two lines.

    Args:
        clients: Number of clients (m).
        noise: Standard deviation of the noise.
    """
    random = np.random.default_rng(seed)
    x = random.normal(size=(clients, 20, 1))
    y = [(-1) ** i * x[i, :, 0] + noise * random.normal(size=20) for i in range(clients)]
    return coterie.from_arrays(list(zip(x, y)), truth=[i % 2 for i in range(clients)])
'''


def test_plugins_are_compared_in_worker_processes(tmp_path):
    """Workers load the plugins of the environment variable before they create the scenario."""
    (tmp_path / "lines.py").write_text(SCENARIO)
    command = ["compare", "two-lines", "--clients", "6", "--methods", "scaffold,fedamp"]
    command += ["--seeds", "1", "--jobs", "1", "--rounds", "2", "--out", str(tmp_path / "compared")]
    command += ["--plugin", str(tmp_path / "lines.py"), "--plugin", str(PLUGINS / "scaffold.py")]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "compared" / "jobs").glob("*/result.json"))) == 2


def test_a_user_defined_scenario_has_options_and_recommendations(tmp_path):
    (tmp_path / "lines.py").write_text(SCENARIO)
    coterie.load_plugin(tmp_path / "lines.py")
    entry = SCENARIOS["two-lines"]
    assert entry.summary == "Clients whose targets follow one of two lines"
    assert [(o.name, o.kind, o.default, o.help) for o in entry.options] == [
        ("clients", int, 12, "Number of clients (m)"),
        ("noise", float, 0.1, "Standard deviation of the noise"),
    ]
    data = coterie.scenario("two-lines", seed=3, clients=6)
    result = coterie.fit(data, "ifca")
    assert (data.name, dict(data.options)) == ("two-lines", {"clients": 6, "noise": 0.1})
    assert len(result.models) == 2
    assert result.config["learner"].startswith("linear")
    assert len(result.records) == 3
    with pytest.raises(ConfigError, match="unknown option 'client' of scenario two-lines"):
        coterie.scenario("two-lines", client=6)


def test_names_of_scenarios_and_learners_can_be_registered_once():
    with pytest.raises(ConfigError, match="already a scenario called 'drift'"):
        register_scenario("drift")(lambda *, seed: None)
    with pytest.raises(ConfigError, match="already a learner called 'mlp'"):
        register_learner("mlp")(lambda profile: None)
    with pytest.raises(ConfigError, match=r"the parameter clients of .* cannot become an option"):
        register_scenario("mine")(lambda *, seed, clients: None)


def test_a_user_defined_learner_is_named_in_the_config():

    @register_learner("narrow")
    def narrow(profile, *, width: int = 3, deep: bool = False) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))

    result = coterie.fit(population(), "ifca", learner="narrow:width=5", rounds=2)
    assert result.config["learner"] == "narrow:width=5,deep=false"
    assert result.models[0]["0.weight"].shape == (5, 4)
    again = coterie.fit(population(), "ifca", learner=result.config["learner"], rounds=2)
    assert np.array_equal(again.models[0]["0.weight"], result.models[0]["0.weight"])


def test_every_file_of_the_methods_package_is_registered():
    """All modules of the package are imported, so a new method needs no further entry."""
    folder = Path(coterie.methods.__file__).parent
    named = {
        name for path in folder.glob("*.py") for name in re.findall(r'^@register\("(.+)"\)', path.read_text(), re.M)
    }
    methods = {cls for cls in Method.members.values() if cls.__module__.startswith("coterie.methods.")}
    assert {cls.name for cls in methods} <= named
    assert all(f"coterie.methods.{path.stem}" in sys.modules for path in folder.glob("[!_]*.py"))


def test_the_example_runs(capsys):
    module = coterie.load_plugin(ROOT / "examples" / "own_method.py")
    module.main()
    assert capsys.readouterr().out.strip() == "[8, 8, 8, 16, 16]"


DOCUMENTS = ("extending.md", "extending-parts.md")


def test_the_code_in_the_documents_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in DOCUMENTS:
        text = (ROOT / "docs" / name).read_text()
        for place, block in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)):
            with patch.dict(sys.modules):
                exec(compile(block, f"{name}, block {place}", "exec"), {"__name__": f"block_{place}"})
    assert {"soft-adam", "shrinking-ifca", "sign-sgd"} <= set(Method.members)
    for method in ("soft-adam", "shrinking-ifca", "sign-sgd"):
        for check in CHECKS.values():
            check(Case(method, "linear"))
