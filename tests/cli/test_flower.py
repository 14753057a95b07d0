"""`coterie flower` as far as it needs no processes: those are in tests/flower and tests/faults."""

import os
import time

import pytest
from click.testing import CliRunner

import coterie
from coterie.cli.flower import read_setting
from coterie.cli.main import cli, main
from coterie.errors import ConfigError, CoterieError, RunError, StorageError
from coterie.flower.local.app import write_app


def call(*arguments):
    return CliRunner().invoke(cli, ["flower", *map(str, arguments)], catch_exceptions=False)


@pytest.fixture
def app(tmp_path):
    write_app(tmp_path / "myfed")
    return tmp_path / "myfed"


@pytest.fixture
def nothing_starts(monkeypatch):
    """Fail a test in which a process would be started."""
    pytest.importorskip("flwr")
    from coterie.flower.local.child import Child

    class StartedError(Exception):
        pass

    def start(*_: object, **__: object) -> None:
        raise StartedError

    monkeypatch.setattr(Child, "__init__", start)
    return StartedError


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("rounds=3", "rounds", 3),
        ("lr=0.5", "lr", 0.5),
        ("method=ifca", "method", "ifca"),
        ("a=", "a", ""),
        (f"a={'[' * 5000}", "a", "[" * 5000),
    ],
)
def test_settings_are_read_as_toml_or_text(text, name, value):
    assert read_setting(text) == (name, value)
    assert type(read_setting(text)[1]) is type(value)


@pytest.mark.parametrize("text", ["rounds", "=3", "clusters=[1, 2]", "nodes=3", "out=/x", "a=2026-01-01", "a=1\nb=2"])
def test_settings_that_are_none_are_refused(text):
    with pytest.raises(ConfigError, match="--set"):
        read_setting(text)


def test_init_writes_an_app_that_up_would_take(tmp_path, nothing_starts):
    said = call("init", tmp_path / "myfed").output
    assert "client_app.py" in said
    assert "coterie flower up" in said
    compile((tmp_path / "myfed" / "client_app.py").read_text(), "client_app.py", "exec")
    with pytest.raises(nothing_starts):
        call("up", tmp_path / "myfed", "--out", tmp_path / "run")


def test_init_writes_an_app_about_a_table(tmp_path, nothing_starts):
    file = tmp_path / "visits.csv"
    rows = [f"w{i % 3},{i % 7},{'ill' if i % 2 else 'well'}" for i in range(30)]
    file.write_text("\n".join(["ward,dose,outcome", *rows]))
    given = ("--table", file, "--client", "ward", "--target", "outcome")
    call("init", tmp_path / "myfed", *given, "--features", "dose")
    written = (tmp_path / "myfed" / "client_app.py").read_text()
    compile(written, "client_app.py", "exec")
    assert 'client="ward", target="outcome", features="dose"' in written
    assert "for the 3 clients of visits.csv" in (tmp_path / "myfed" / "README.md").read_text()
    with pytest.raises(nothing_starts):
        call("up", tmp_path / "myfed", "--out", tmp_path / "run")
    with pytest.raises(ConfigError, match="needs --table FILE, --client COLUMN and --target COLUMN"):
        call("init", tmp_path / "other", "--table", file, "--client", "ward")
    with pytest.raises(ConfigError, match="needs --table FILE"):
        call("init", tmp_path / "other", "--task", "regression")
    with pytest.raises(ConfigError, match="unknown client column 'site'"):
        call("init", tmp_path / "other", *given, "--client", "site")
    assert not (tmp_path / "other").exists()


def not_empty(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    return tmp_path


def a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    return tmp_path / "file"


def below_a_file(tmp_path):
    return a_file(tmp_path) / "app"


def no_folder_at_all(tmp_path):
    return "/proc/coterie/app"


def too_long(tmp_path):
    return tmp_path / ("a" * 300)


@pytest.mark.parametrize("folder", [not_empty, a_file, below_a_file, no_folder_at_all, too_long])
def test_init_refuses_a_folder_that_it_cannot_fill_with_one_sentence(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["coterie", "flower", "init", str(folder(tmp_path))])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_init_refuses_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(CoterieError, match="denied"):
        write_app(tmp_path / "app")


WRONG = {
    "method=icfa": "did you mean 'icfl'|did you mean 'ifca'",
    "method=oracle": "true groups",
    "clustres=3": "did you mean 'clusters'",
    "rounds=0": "rounds must be",
    "rounds=many": "rounds must be",
    "learner=mpl": "did you mean 'mlp'",
    "learner=mlp:hiden=3": "did you mean 'hidden'",
    "lr=nan": "lr must be",
    "init=odlc": "did you mean 'odcl'",
    "quorum=1.5": "quorum must be",
    "deadline=-1": "deadline must be",
    "deadline=inf": "deadline must be",
    "wait=0": "wait must be",
    "most-change=0": "most_change must be",
    "allowed=/no/such/list.toml": "list.toml",
    "schema=/no/such/form.json": "form.json",
    'schema={"classes": -1}': "classes",
    "engine=simulated": "applies to simulated clients only",
    "privacy=local": "budget",
    "learner=\udcff": "printable",
}


@pytest.mark.parametrize("setting", WRONG)
def test_up_refuses_a_wrong_setting_before_it_starts_anything(setting, app, tmp_path, nothing_starts):
    clock = time.process_time()
    with pytest.raises(ConfigError, match=WRONG[setting]) as refused:
        call("up", app, "--set", "method=ifca", "--set", setting, "--out", tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert time.process_time() - clock < 3, "a typo must not cost more than a moment"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["myfed"], "nothing is left behind"


def test_up_takes_settings_that_suit_some_data(app, tmp_path, nothing_starts):
    for settings in (
        {"learner": "linear", "init": "moment-descent"},
        {"learner": "cnn", "clusters": 500},
        {"learner": "logistic", "method": "fedem"},
        {"learner": "mlp:hidden=8", "shared": "body"},
    ):
        settings = {"method": "ifca", **settings}
        flags = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
        with pytest.raises(nothing_starts):
            call("up", app, *flags, "--out", tmp_path / "run")


@pytest.mark.parametrize("nodes", ["0", "-1", "101", "many"])
def test_up_refuses_a_number_of_nodes_that_makes_no_sense(nodes, app, nothing_starts):
    assert CliRunner().invoke(cli, ["flower", "up", str(app), "--nodes", nodes]).exit_code == 2


def finished(out):
    out.mkdir()
    (out / "result.json").touch()


def something_else(out):
    out.mkdir()
    (out / "notes.txt").touch()


def damaged(out):
    out.mkdir()
    (out / "config.toml").write_text("rounds = ")


def of_other_options(out):
    out.mkdir()
    (out / "config.toml").write_text("rounds = 3\nmethod = 'ifca'\n")


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (finished, "finished already"),
        (something_else, "no run folder"),
        (lambda out: out.touch(), "no run folder"),
        (damaged, "."),
        (of_other_options, "."),
    ],
)
def test_up_refuses_a_run_folder_that_it_cannot_use(make, match, app, tmp_path, nothing_starts):
    make(tmp_path / "run")
    with pytest.raises(CoterieError, match=match):
        call("up", app, "--out", tmp_path / "run", "--set", "rounds=4")
    assert not (tmp_path / "run.flower").exists()


@pytest.mark.parametrize("out", ["/proc/coterie/run", "FILE/run"])
def test_up_refuses_a_run_folder_that_cannot_be_written(out, app, tmp_path, nothing_starts):
    (tmp_path / "file").touch()
    with pytest.raises((StorageError, RunError)):
        call("up", app, "--out", out.replace("FILE", str(tmp_path / "file")))


def test_the_same_command_resumes_a_run(app, tmp_path, nothing_starts):
    """What was given as text, or left to the data, is stored as something else."""

    def interrupt(record: object) -> None:
        raise InterruptedError

    data = coterie.scenario("opposite-labels", clients=4)
    with pytest.raises(InterruptedError):
        coterie.fit(
            data, "ifca", learner="logistic", rounds=3, local_steps=2, out=tmp_path / "run", callbacks=[interrupt]
        )
    given = ["method=ifca", "rounds=3", "learner=logistic", "lr=auto", "local-steps=2", "deadline=30"]
    flags = [part for text in given for part in ("--set", text)]
    with pytest.raises(nothing_starts):
        call("up", app, "--out", tmp_path / "run", *flags)
    for other in ("method=fedavg", "local-steps=3", "local_steps=3"):
        with pytest.raises(ConfigError, match="a resumed run keeps its options"):
            call("up", app, "--out", tmp_path / "run", "--set", other)


def test_up_refuses_a_folder_that_is_no_app(tmp_path, nothing_starts):
    with pytest.raises(ConfigError, match="coterie flower init"):
        call("up", tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "match"),
    [
        ("client_app.py", None, "client_app.py does not exist"),
        ("client_app.py", "def load(context:\n", "client_app.py, line 1"),
        ("server_app.py", "\0", "server_app.py"),
        ("pyproject.toml", "[tool", "no valid TOML"),
        ("pyproject.toml", "a = 1", "components"),
    ],
)
def test_up_refuses_an_app_whose_files_cannot_work(file, text, match, app, tmp_path, nothing_starts):
    (app / file).unlink() if text is None else (app / file).write_text(text)
    with pytest.raises(ConfigError, match=match):
        call("up", app, "--out", tmp_path / "run")
