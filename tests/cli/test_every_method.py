"""Every command that reads a run folder works for every method, whether the run is finished or was interrupted."""

import shutil

import numpy as np
import pytest

from coterie.cli import progress
from coterie.cli.main import cli
from coterie.methods import Method
from coterie.training.runs.folder import RunFolder

NUMBERS = ("mixed-regression", "--clients", "6", "--dimension", "2", "--samples", "12")
SUBSPACE = ("linear-representation", "--clients", "8", "--dimension", "4", "--samples", "12")
DIGITS = ("rotated-digits", "--clients", "8", "--local-steps", "1")
CLASSIFIERS = ("fedrc", "hcfl", "hcfl-split", "hcfl+")
"""Methods that are for classes alone."""
OPTIONS = {"rounds": ("--rounds", "2"), "clusters": ("--clusters", "2")}


def arguments(method):
    """The arguments of a small run of a method; options that it refuses are left out."""
    taken = {option.name for option in Method.members[method].options()}
    subspace = Method.members[method].learners == ("representation",)
    data = DIGITS if method in CLASSIFIERS else SUBSPACE if subspace else NUMBERS
    return [*data, "--method", method, *(word for name in OPTIONS if name in taken for word in OPTIONS[name])]


class KilledError(BaseException):
    """Stands for a kill: nothing catches it."""


def kill(*_):
    raise KilledError


@pytest.mark.filterwarnings("ignore")  # six small clients: nothing is found with certainty, some steps are too long
@pytest.mark.parametrize("method", Method.members)
def test_resume_report_and_predict_take_the_folder_of_every_method(coterie, tmp_path, monkeypatch, method):
    folder = tmp_path / "run"
    code, _, err = coterie("run", *arguments(method), "--out", folder)
    assert code == 0, err
    models = (folder / "models.safetensors").read_bytes()
    for command in ("resume", "report"):
        code, _, err = coterie(command, folder)
        assert code == 0, err
    np.savez(tmp_path / "new.npz", x=np.ones((3, *RunFolder.open(folder).result["features"])))
    code, out, err = coterie("predict", folder, "--data", tmp_path / "new.npz", "--cluster", "0")
    assert code == 0, err
    assert len(out.splitlines()) == 4  # a header and three predictions
    shutil.rmtree(folder)
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "finish", kill)
        patched.setattr(progress.RunBar, "trial", lambda *_: None)
        with pytest.raises(KilledError):
            cli.main(["run", *arguments(method), "--out", str(folder)], standalone_mode=False)
    code, _, err = coterie("resume", folder)
    assert code == 0, err
    assert (folder / "models.safetensors").read_bytes() == models
