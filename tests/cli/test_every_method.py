"""Commands that read a run folder work for finished and interrupted runs of all methods."""

import shutil

import numpy as np
import pytest

from coterie.methods import Method
from coterie.training.runs.folder import RunFolder

NUMBERS = ("mixed-regression", "--clients", "6", "--dimension", "2", "--samples", "12")
SUBSPACE = ("linear-representation", "--clients", "8", "--dimension", "4", "--samples", "12")
DIGITS = ("rotated-digits", "--clients", "8", "--local-steps", "1")
CLASSIFIERS = ("fedrc", "hcfl", "hcfl-split", "hcfl+")
"""Methods that only support classification."""
OPTIONS = {"rounds": ("--rounds", "2"), "clusters": ("--clusters", "2")}


def arguments(method):
    """Return the arguments of a small run of a method, with options that the method supports."""
    taken = {option.name for option in Method.members[method].options()}
    subspace = Method.members[method].learners == ("representation",)
    data = DIGITS if method in CLASSIFIERS else SUBSPACE if subspace else NUMBERS
    return [*data, "--method", method, *(word for name in OPTIONS if name in taken for word in OPTIONS[name])]


FINISH = RunFolder.finish


@pytest.mark.filterwarnings("ignore")  # six small clients: nothing is found with certainty, some steps are too long
@pytest.mark.parametrize("method", Method.members)
def test_resume_report_and_predict_work_with_the_folder_of_every_method(coterie, tmp_path, monkeypatch, method):
    folder, killed = tmp_path / "run", tmp_path / "killed"

    def finish(run, *given):
        """Copy the folder before the first file of the result is written, as a kill would leave it."""
        shutil.copytree(run.path, killed)
        return FINISH(run, *given)

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "finish", finish)
        code, _, err = coterie("run", *arguments(method), "--out", folder)
    assert code == 0, err
    assert not (killed / "result.json").exists()
    models = (folder / "models.safetensors").read_bytes()
    for command in ("resume", "report"):
        code, _, err = coterie(command, folder)
        assert code == 0, err
    np.savez(tmp_path / "new.npz", x=np.ones((3, *RunFolder.open(folder).result["features"])))
    code, out, err = coterie("predict", folder, "--data", tmp_path / "new.npz", "--cluster", "0")
    assert code == 0, err
    assert len(out.splitlines()) == 4  # a header and three predictions
    code, _, err = coterie("resume", killed)
    assert code == 0, err
    assert (killed / "models.safetensors").read_bytes() == models
