"""The commands for clients elsewhere, as far as they need no processes: those are in tests/federation/flower."""

import pytest
from click.testing import CliRunner

from coterie.cli.flower import read_setting
from coterie.cli.main import cli
from coterie.errors import ConfigError, RunError


def call(*arguments):
    return CliRunner().invoke(cli, ["flower", *map(str, arguments)], catch_exceptions=False)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [("rounds=3", "rounds", 3), ("lr=0.5", "lr", 0.5), ("method=ifca", "method", "ifca"), ("a=", "a", "")],
)
def test_settings_are_read_as_toml_or_text(text, name, value):
    assert read_setting(text) == (name, value)
    assert type(read_setting(text)[1]) is type(value)


@pytest.mark.parametrize("text", ["rounds", "=3", "clusters=[1, 2]", "nodes=3"])
def test_settings_that_are_none_are_refused(text):
    with pytest.raises(ConfigError, match="--set"):
        read_setting(text)


def test_init_writes_an_app_that_up_would_take(tmp_path):
    said = call("init", tmp_path / "myfed").output
    assert "client_app.py" in said
    assert "coterie flower up" in said
    compile((tmp_path / "myfed" / "client_app.py").read_text(), "client_app.py", "exec")


def test_up_refuses_what_it_cannot_run(tmp_path):
    pytest.importorskip("flwr")
    with pytest.raises(ConfigError, match="coterie flower init"):
        call("up", tmp_path)
    call("init", tmp_path / "myfed")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").touch()
    with pytest.raises(RunError, match="finished already"):
        call("up", tmp_path / "myfed", "--out", tmp_path / "run")
