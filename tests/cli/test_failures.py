"""System errors and hostile texts give one sentence on standard error and exit code 2, and lose no result."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch

from coterie.cli import main as commands
from coterie.cli.terminal import Terminal, on_one_line, visible
from coterie.errors import StorageError, from_system
from coterie.experiments.compare import run_job
from coterie.training.records import RoundRecord
from coterie.training.runs.outputs import check_output, write_output

QUICK = ["mixed-regression", "--clients", "6", "--dimension", "2", "--rounds", "2", "--clusters", "2"]
PROGRAM = "import sys; from coterie.cli.main import main; main()"


def one_sentence(text):
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    assert lines[0].startswith("error: ")
    assert "Traceback" not in text
    return lines[0].removeprefix("error: ")


# ---- errors of the system ------------------------------------------------------------------------------------

CODES = [errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE, errno.EIO, errno.ENOENT]


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize("path", ["/x/result.json", b"/x/\xff", None, "a\nb"])
def test_every_system_error_is_one_sentence_with_the_file_the_reason_and_advice(code, path):
    error = from_system(
        OSError(code, os.strerror(code), path) if path is not None else OSError(code, os.strerror(code))
    )
    assert isinstance(error, StorageError)
    text = str(error)
    assert os.strerror(code) in text
    assert "\n" not in text
    assert ": " in text, "what to do"
    if path == "/x/result.json":
        assert text.startswith("/x/result.json cannot be read or written")


RAISED = {
    "memory": (MemoryError(), "memory ran out"),
    "torch": (
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        "memory ran out",
    ),
    "disk": (OSError(errno.EFBIG, "File too large", "x/y"), "x/y cannot be read or written (File too large)"),
    "deep": (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
    "text": (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "use UTF-8"),
    "bug": (KeyError("a\nb"), "unexpected error, a bug in Coterie (KeyError: "),
    "torch bug": (RuntimeError("shapes do not match"), "COTERIE_TRACEBACK=1"),
}


@pytest.mark.parametrize("name", RAISED)
def test_every_exception_of_a_command_is_one_sentence(coterie, monkeypatch, name):
    error, expected = RAISED[name]

    def fail(*_):
        raise error

    monkeypatch.setattr(commands.show, "methods", fail)
    monkeypatch.delenv(commands.TRACEBACK)
    code, out, err = coterie("methods")
    assert (code, out) == (2, "")
    assert expected in one_sentence(err)


def test_bugs_show_their_traceback_on_request(coterie, monkeypatch):
    def fail(*_):
        raise KeyError("a bug")

    monkeypatch.setattr(commands.show, "methods", fail)
    with pytest.raises(KeyError, match="a bug"):  # the fixture sets COTERIE_TRACEBACK
        commands.cli.main(["methods"], standalone_mode=False)
    monkeypatch.setattr(sys, "argv", ["coterie", "methods"])
    with pytest.raises(KeyError, match="a bug"):
        commands.main()


# ---- files that a user names ---------------------------------------------------------------------------------

BAD_FILES = {
    "missing/result.json": "its folder does not exist",
    "a-folder": "is a folder",
    "a-file/result.json": "its folder does not exist",
    "x" * 300: "cannot be written",
    "loop": "cannot be written",
}
WRITERS = {
    "run": ["run", *QUICK, "--out", "made", "--json"],
    "sweep": ["sweep", *QUICK[:-2], "--over", "lr=0.1,0.2", "--out", "made", "--json"],
    "scenarios": ["scenarios", "--show", "rotated-digits", "--file"],
    "reproduce": ["reproduce", "ifca-figure3", "--page"],
}


@pytest.mark.parametrize("file", BAD_FILES)
@pytest.mark.parametrize("command", WRITERS)
def test_a_file_that_cannot_be_written_is_refused_before_any_work(coterie, tmp_path, command, file):
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "a-file").touch()
    (tmp_path / "loop").symlink_to("loop")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = coterie(*WRITERS[command], file)
    assert (code, out) == (2, "")
    assert BAD_FILES[file] in err or (command == "scenarios" and "is a directory" in err)
    assert sorted(tmp_path.rglob("*")) == before


def test_outputs_are_complete_or_unchanged_and_leave_no_other_file(tmp_path, monkeypatch):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    link.symlink_to(file)
    write_output(link, "new \udcff")
    assert link.is_symlink()
    assert file.read_text() == "new \\udcff"

    def full(number):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        write_output(file, "newer")
    assert file.read_text() == "new \\udcff"
    assert sorted(tmp_path.iterdir()) == [file, link]


def test_devices_and_pipes_are_written_and_never_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE)
    write_output(pipe, "text")
    assert reader.communicate(timeout=30)[0] == b"text"
    assert pipe.is_fifo()
    write_output(Path(os.devnull), "text")
    assert not Path(os.devnull).is_file()
    with pytest.raises(StorageError):
        write_output(Path("/dev/full"), "text")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="read-only"):
        check_output(tmp_path / "file")


def test_a_result_is_not_lost_when_its_json_or_its_report_cannot_be_written(coterie, tmp_path, monkeypatch):
    def full(path, text):
        raise StorageError(f"{path} cannot be written (No space left on device): free some space")

    for name, place in (("json", "coterie.cli.json_output"), ("report", "coterie.report.page")):
        with monkeypatch.context() as patched:
            patched.setattr(f"{place}.write_output", full)
            code, _, err = coterie("run", *QUICK, "--out", name, "--json", "result.json")
        assert code == 2
        assert f"no result is lost: the finished runs are in {name}" in one_sentence(err)
        assert (tmp_path / name / "result.json").is_file()
        assert coterie("report", name)[0] == 0


@pytest.mark.filterwarnings("ignore::coterie.errors.DivergenceWarning")
def test_standard_output_has_only_the_json_and_only_after_success(coterie):
    code, out, err = coterie("run", *QUICK, "--json", "-", "--lr", "1e300")
    assert code == 2 or json.loads(out)
    code, out, err = coterie("run", *QUICK, "--json", "-", "--method", "nothing")
    assert (code, out) == (2, "")
    assert "unknown method 'nothing'" in one_sentence(err)


# ---- the streams ---------------------------------------------------------------------------------------------


FORKS = """
import json, os, resource, sys
import coterie.report.page, coterie.training.fitting  # once for all of them
from coterie.cli.main import main

def limited():
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

def unread():
    reading, writing = os.pipe()
    os.close(reading)
    os.dup2(writing, 1)

def full():
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)

cases = json.loads(sys.argv[1])
for name, arguments in cases.items():
    child = os.fork()
    if child == 0:
        for number, stream in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{name}.{stream}", os.O_WRONLY | os.O_CREAT), number)
        {"limited": limited, "unread": unread, "full": full, "ascii": lambda: None}[name]()
        sys.argv = ["coterie", *arguments]
        main()
    cases[name] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(json.dumps(cases))
"""
"""Script that runs the program in forked processes, each with other streams or limits."""

CASES = {
    "limited": ["run", *QUICK, "--out", "limited"],
    "unread": ["methods"],
    "full": ["methods"],
    "ascii": ["run", *QUICK, "--out", "run ±"],
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Return exit code, output and errors of each case, on a very narrow ASCII terminal."""
    folder = tmp_path_factory.mktemp("streams")
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "COLUMNS": "1", "NO_COLOR": "1", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-c", FORKS, json.dumps(CASES)],
        cwd=folder, env=environment, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    texts = {name: [(folder / f"{name}.{stream}").read_bytes() for stream in ("out", "err")] for name in CASES}
    return {name: (code, *texts[name]) for name, code in json.loads(done.stdout).items()}


def test_a_limit_on_the_size_of_files_is_an_error_in_one_sentence(ended):
    code, _, err = ended["limited"]
    assert code == 2, err
    assert "File too large" in one_sentence(err.decode())


@pytest.mark.parametrize(("case", "reason"), [("unread", "Broken pipe"), ("full", "No space left on device")])
def test_a_closed_or_full_stream_is_one_sentence_without_a_traceback(ended, case, reason):
    code, _, err = ended[case]
    assert code == 2
    assert one_sentence(err.decode()) == f"the output could not be printed completely ({reason})"


def test_a_very_narrow_ascii_terminal(ended):
    code, out, err = ended["ascii"]
    assert (code, err) == (0, b"")
    assert out
    out.decode("ascii")


def test_closed_streams(tmp_path):
    line = f'exec "$0" -c "{PROGRAM}" methods >&- 2>&-'
    ended = subprocess.run(
        ["sh", "-c", line, sys.executable], cwd=tmp_path, capture_output=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_closed_pipe_for_json_is_an_error_in_one_sentence(coterie, monkeypatch):
    def closed(*_, **__):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("builtins.print", closed)
    monkeypatch.setattr("coterie.cli.terminal.discard_output", lambda: None)
    code, _, err = coterie("run", *QUICK, "--json", "-", "--out", "made")
    assert code == 2
    assert one_sentence(err).endswith("(Broken pipe); no result is lost: the finished runs are in made")


@pytest.mark.parametrize("width", [1, 2, 5, 20])
def test_progress_on_a_narrow_terminal(width, capsys):
    console = Terminal(stderr=True, width=width)
    console._force_terminal = True
    with commands.run_progress(console, 3, "[/x]") as bar:
        split = {"kind": "split", "reason": "[/x]", "before": 1, "parents": [[0], [0]]}
        bar.show(RoundRecord(round=1, loss=0.5, events=[split]))
    assert "Traceback" not in capsys.readouterr().err


# ---- texts ---------------------------------------------------------------------------------------------------

HOSTILE = ["[/x]", "[bold]x[/bold]", ":smile:", "\x1b[31mred\x1b[0m", "two\nlines", "bell\x07\x9b31m", "\u202eturned"]


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_are_printed_literally_without_control_characters(text, capsys):
    from rich.table import Table

    console = Terminal(width=100)
    console.print(text, style="red")
    table = Table(text)
    table.add_row(text)
    console.print(table)
    printed = capsys.readouterr().out
    assert not set(printed) & {"\x1b", "\x07", "\x9b", "\u202e"}
    if not set(text) & {"\x1b", "\x07", "\x9b", "\u202e", "\n"}:
        assert printed.count(text) == 3
    assert "\n" not in on_one_line(text)
    assert visible(visible(text)) == visible(text)


@pytest.mark.parametrize("name", [*HOSTILE, os.fsdecode(b"bytes \xff")])
def test_every_command_prints_folders_with_hostile_names(coterie, tmp_path, name):
    folder = tmp_path / name.replace("/", "_")
    folder = folder.with_name(folder.name + " x")
    code, out, err = coterie("run", *QUICK, "--out", folder)
    assert (code, err) == (0, "")
    assert f"run     {on_one_line(folder)}\n" in out
    for command in (["resume"], ["report"]):
        code, out, err = coterie(*command, folder)
        assert code == 0
        assert on_one_line(folder) in out
        assert "\x1b" not in out + err
    code, out, err = coterie("run", *QUICK, "--out", folder)
    assert code == 2
    assert on_one_line(" ".join(str(folder).splitlines())) in one_sentence(err)
    for command in (
        ["report", name + "y"],
        ["resume", name + "y"],
        ["describe", name],
        ["run", name],
        ["data", "get", name],
    ):
        code, out, err = coterie(*command)
        assert code == 2
        one_sentence(err)
        assert "\x1b" not in err


def test_interrupted_runs_quote_their_folder(coterie, monkeypatch):
    def interrupt(*_):
        Path("a [/x] b").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "carry_out", interrupt)
    code, _, err = coterie("run", *QUICK, "--out", "a [/x] b")
    assert code == 130
    assert "continue with 'coterie resume 'a [/x] b''" in err


def test_failed_runs_of_a_comparison_are_listed_next_to_the_others(coterie, monkeypatch):
    def some_fail(folder, workers, progress):
        run_job(commands.jobs_of(folder)[0])
        return ["ifca-seed0: its process was killed by SIGKILL 3 times, perhaps because memory ran out: [/x]\nsecond"]

    monkeypatch.setattr(commands, "run_comparison", some_fail)
    code, out, err = coterie("compare", *QUICK, "--methods", "fedavg,ifca", "--seeds", 1, "--out", "c")
    assert code == 2
    assert "fedavg" in out
    assert err == (
        "failed  ifca-seed0: its process was killed by SIGKILL 3 times, perhaps because memory ran out: [/x]\\nsecond\n"
    )


def test_warnings_are_notes_on_one_line(coterie, monkeypatch):
    import warnings

    def warn(console):
        warnings.warn("[/x]\n\x1b[31m", stacklevel=1)

    monkeypatch.setattr(commands.show, "methods", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        _, _, err = coterie("methods")
    assert err == "note: [/x]\\n\\x1b[31m\n"


def test_memory_of_torch_is_recognised():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.float64)
    assert from_system(raised.value) is not None
    assert from_system(RuntimeError("something else")) is None
    assert from_system(click.ClickException("x")) is None
