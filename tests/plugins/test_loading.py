"""Plugins: files, modules and entry points that make members of families known."""

import os
import sys

import pytest

import coterie
from coterie.core.registry import register
from coterie.data import SCENARIOS
from coterie.learners import Optimizer
from coterie.methods import Initializer, Method
from coterie.plugins import loading as plugins
from coterie.testing import small_federation

METHOD = '''
from dataclasses import dataclass
from typing import ClassVar
import coterie
from coterie.methods import IFCA

@coterie.register("{name}")
@dataclass(frozen=True, kw_only=True)
class Mine(IFCA):
    """IFCA under another name."""
    summary: ClassVar[str] = "mine"
'''


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    """Forget what a test registers."""
    monkeypatch.setattr(Method, "members", dict(Method.members))
    monkeypatch.setenv(plugins.VARIABLE, "")
    plugins.load_installed.cache_clear()
    yield
    plugins.load_installed.cache_clear()


def written(folder, name, file="mine.py"):
    path = folder / file
    path.write_text(METHOD.format(name=name))
    return path


def test_a_file_is_loaded_once_and_named_to_worker_processes(tmp_path):
    path = written(tmp_path, "from-file")
    first, second = coterie.load_plugin(path), coterie.load_plugin(str(path))
    assert first is second
    assert os.environ[plugins.VARIABLE].split(os.pathsep)[-1] == str(path)
    result = coterie.fit(small_federation("linear"), "from-file", clusters=2, rounds=1, learner="linear")
    assert result.config["method"] == "from-file"


def test_a_file_in_the_environment_is_found_by_an_unknown_name(tmp_path, monkeypatch):
    monkeypatch.setenv(plugins.VARIABLE, str(written(tmp_path, "from-environment", "other.py")))
    assert coterie.fit(small_federation("linear"), "from-environment", clusters=2, rounds=1, learner="linear").records


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A function that installs a package with this source as a plugin."""

    def install(source):
        (tmp_path / "installed_plugin.py").write_text(source)
        facts = tmp_path / "installed_plugin-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-plugin\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text("[coterie.plugins]\nmine = installed_plugin\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    yield install
    sys.modules.pop("installed_plugin", None)


def test_an_entry_point_of_an_installed_package_is_found_by_an_unknown_name(installed):
    installed(METHOD.format(name="from-package"))
    assert coterie.fit(small_federation("linear"), "from-package", clusters=2, rounds=1, learner="linear").records


SCENARIO = """
import coterie
from coterie.data import register_scenario

@register_scenario("installed-scenario")
def build(*, seed: int = 0, clients: int = 3) -> coterie.FederatedDataset:
    '''Clients that all have the same two samples.'''
    return coterie.from_arrays([([[0.0], [1.0]], [0.0, 1.0])] * clients)
"""


def test_a_scenario_of_an_installed_package_is_found_by_its_name(installed, monkeypatch):
    monkeypatch.setattr("coterie.data.registry.SCENARIOS", dict(SCENARIOS))
    installed(SCENARIO)
    assert len(coterie.scenario("installed-scenario", clients=5).clients) == 5
    with pytest.raises(coterie.ConfigError, match="unknown scenario 'installed'"):
        coterie.scenario("installed")


PARTS = """
from dataclasses import dataclass
import coterie
from coterie.learners import SGD
from coterie.methods import RandomInit

@coterie.register("installed-optimizer")
@dataclass(frozen=True)
class Mine(SGD):
    '''SGD under another name.'''

@coterie.register("installed-init")
@dataclass(frozen=True, kw_only=True)
class Start(RandomInit):
    '''Random models under another name.'''
"""


@pytest.mark.parametrize("option", ["optimizer", "init"])
def test_a_part_of_an_installed_package_is_found_by_its_name(installed, monkeypatch, option):
    for family in (Initializer, Optimizer):
        monkeypatch.setattr(family, "members", dict(family.members))
    installed(PARTS)
    given = {option: f"installed-{option}", "clusters": 2, "rounds": 1}
    found = coterie.fit(small_federation("linear"), "ifca", learner="linear", **given)
    name = f"installed-{option}"
    assert found.config[option] in (name, {"name": name, "restarts": 1})  # the number of starts that was decided


def test_a_broken_plugin_is_named_with_its_error(tmp_path):
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(coterie.ConfigError, match=r"broken.*ZeroDivisionError: division by zero"):
        coterie.load_plugin(tmp_path / "broken.py")


def test_a_plugin_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(coterie.ConfigError, match="there is no plugin file"):
        coterie.load_plugin(tmp_path / "none.py")
    with pytest.raises(coterie.ConfigError, match="neither a Python file nor an importable module"):
        coterie.load_plugin("no_such_module_anywhere")


def test_a_name_that_is_taken_is_refused():
    with pytest.raises(coterie.ConfigError, match="already a method called 'ifca'"):
        register("ifca")(type("Other", (Method,), {"__dataclass_fields__": {}}))
