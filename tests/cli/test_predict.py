"""`coterie predict`: for who trained, for somebody new, from arrays and from tables, and every mistake."""

from __future__ import annotations

import csv
import io
import zipfile

import numpy as np
import pytest

import coterie as library
from coterie.cli.csv_output import cell as _cell

X = np.random.default_rng(3).standard_normal((6, 2))
SIGNS = {f"c{i}": (-1) ** i for i in range(6)}
"""y = x0 + x1 in c0, c2 and c4, the opposite in the others."""


def numbers(sign: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((count, 2))
    return x, sign * x.sum(axis=1)


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    """A finished run that has found both groups."""
    data = library.from_arrays({name: numbers(sign, 20, seed) for seed, (name, sign) in enumerate(SIGNS.items())})
    folder = tmp_path_factory.mktemp("runs") / "groups"
    library.fit(data, "ifca", clusters=2, rounds=60, lr=0.3, restarts=3, out=folder)
    return folder


@pytest.fixture(scope="module")
def one_model(tmp_path_factory):
    data = library.from_arrays({name: numbers(1, 20, seed) for seed, name in enumerate(SIGNS)})
    folder = tmp_path_factory.mktemp("runs") / "one"
    library.fit(data, "fedavg", rounds=60, lr=0.3, out=folder)
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    data = library.from_arrays({name: numbers(sign, 20, seed) for seed, (name, sign) in enumerate(SIGNS.items())})
    folder = tmp_path_factory.mktemp("runs") / "alone"
    library.fit(data, "local", rounds=5, out=folder)
    return folder


@pytest.fixture(autouse=True)
def files(tmp_path):
    np.savez(tmp_path / "new.npz", x=X)
    np.savez(tmp_path / "labelled.npz", x=X, y=-X.sum(axis=1))
    np.savez(tmp_path / "narrow.npz", x=X[:, :1])
    np.savez(tmp_path / "uneven.npz", x=X, y=np.zeros(4))
    np.savez(tmp_path / "other.npz", features=X)
    (tmp_path / "broken.npz").write_text("no archive")
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")


def read(text: str) -> np.ndarray:
    header, *rows = csv.reader(text.splitlines())
    assert header == ["prediction"]
    return np.array([float(value) for (value,) in rows])


def test_a_client_that_trained_predicts_by_its_cluster(coterie, groups):
    code, out, err = coterie("predict", groups, "--data", "new.npz", "--client-id", "c3")
    assert (code, err) == (0, "")
    assert read(out) == pytest.approx(-X.sum(axis=1), abs=0.01)
    cluster = library.load(groups).assignments["c2"]
    assert read(coterie("predict", groups, "--data", "new.npz", "--cluster", cluster)[1]) == pytest.approx(
        X.sum(axis=1), abs=0.01
    )


def test_a_new_client_is_placed_by_its_support_and_labels_give_a_score(coterie, groups, tmp_path):
    code, out, err = coterie("predict", groups, "--data", "labelled.npz", "--support", "labelled.npz")
    assert code == 0
    assert read(out) == pytest.approx(-X.sum(axis=1), abs=0.01)
    assert err.startswith("rmse     0.0")
    code, out, err = coterie(
        "predict", groups, "--data", "labelled.npz", "--support", "labelled.npz", "--out", "predicted.csv"
    )
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("rmse     0.0")
    assert out.splitlines()[1] == "written  predicted.csv"
    assert read((tmp_path / "predicted.csv").read_text()) == pytest.approx(-X.sum(axis=1), abs=0.01)


def test_one_model_serves_whoever_comes(coterie, one_model):
    code, out, _ = coterie("predict", one_model, "--data", "new.npz")
    assert code == 0
    assert read(out) == pytest.approx(X.sum(axis=1), abs=0.01)


# ---- tables --------------------------------------------------------------------------------------------------------


def pupils(rows: int, seed: int, target: str = "score") -> str:
    """Eight schools: the score rises with x in four and falls in the others; a verdict is whether it is above 5."""
    random, lines = np.random.default_rng(seed), [f"school,x,kind,{target}"]
    for row in range(rows):
        x = random.normal(3, 2)
        score = 5 + (4 if row % 8 < 4 else -4) * (x - 3) + ("ab"[row % 2] == "b")
        lines.append(f"s{row % 8},{x},{'ab'[row % 2]},{score if target == 'score' else ['low', 'high'][score > 5]}")
    return "\n".join(lines)


def trained(coterie, tmp_path, target: str = "score") -> None:
    (tmp_path / "pupils.csv").write_text(pupils(320, 0, target))
    flags = ["--table", "pupils.csv", "--client", "school", "--target", target, "--features", "x,kind"]
    code, _, err = coterie("run", *flags, "--clusters", 2, "--rounds", 100, "--out", "run")
    assert code == 0, err


def test_rows_of_another_table_are_read_as_those_of_the_run(coterie, tmp_path):
    trained(coterie, tmp_path)
    (tmp_path / "some.csv").write_text("kind,x,score\n" + "\n".join(f"a,{x},{5 - 4 * (x - 3)}" for x in range(8)))
    (tmp_path / "more.csv").write_text("x,kind\n3,a\n3,b\n4,a\n")  # by hand: 5, then 1 more for b, then 4 less
    code, out, err = coterie("predict", "run", "--data", "more.csv", "--support", "some.csv")
    assert (code, err) == (0, "")
    assert read(out) == pytest.approx([5, 6, 1], abs=0.05)
    assert read(coterie("predict", "run", "--data", "more.csv", "--client-id", "s0")[1]) == pytest.approx(
        [5, 6, 9], abs=0.05
    )


def test_classes_of_a_table_keep_their_names(coterie, tmp_path):
    trained(coterie, tmp_path, "verdict")
    (tmp_path / "more.csv").write_text("x,kind,verdict\n1,a,high\n5,a,low\n9,b,high\n")
    code, out, err = coterie("predict", "run", "--data", "more.csv", "--client-id", "s5")
    assert code == 0
    assert out.splitlines() == ["prediction", "high", "low", "low"]
    score, caution = err.splitlines()
    assert score == "accuracy 0.6667"
    assert caution.startswith("note: rows that the run was trained on make the score too good")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("x\n3\n", "no column 'kind', which the run predicts from: give it the columns 'x', 'kind'"),
        ("x,kind\n3,c\n", "column 'kind' holds 'c', which is not a category of the training table"),
        ("x,kind\nmuch,a\n", "column 'x' must hold numbers, as in the training table, but row 1 has 'much'"),
        ("x,kind\ninf,a\n3,a\n", "column 'x' must hold finite numbers, but row 1 has"),
        (
            "x,kind,score\n3,a,good\n",
            "column 'score' must hold numbers, as in the training table, but row 1 has 'good'",
        ),
    ],
)
def test_a_table_that_differs_from_that_of_the_run_is_refused(coterie, tmp_path, rows, message):
    trained(coterie, tmp_path)
    (tmp_path / "odd.csv").write_text(rows)
    code, out, err = coterie("predict", "run", "--data", "odd.csv", "--client-id", "s0")
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_the_run_keeps_its_encoding_and_needs_its_table_no_more(coterie, tmp_path):
    trained(coterie, tmp_path)
    (tmp_path / "more.csv").write_text("x,kind\n3,a\n")
    before = coterie("predict", "run", "--data", "more.csv", "--client-id", "s0")
    (tmp_path / "pupils.csv").unlink()
    assert coterie("predict", "run", "--data", "more.csv", "--client-id", "s0") == before
    assert before[0] == 0
    code, _, err = coterie("predict", "run", "--data", "new.npz", "--client-id", "s0")
    assert code == 2
    assert "neither .csv, .tsv nor .parquet" in err


def test_support_of_a_table_needs_its_target(coterie, tmp_path):
    trained(coterie, tmp_path)
    (tmp_path / "more.csv").write_text("x,kind\n3,a\n")
    code, _, err = coterie("predict", "run", "--data", "more.csv", "--support", "more.csv")
    assert code == 2
    assert "more.csv has no column 'score': new clients are assigned by labelled samples" in err


# ---- mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "new.npz"], "ifca needs a few labelled samples to assign a new client"),
        (["--data", "new.npz", "--client-id", "c33"], "client 'c33' was not in the training data (near names: c3"),
        (["--data", "new.npz", "--cluster", "2"], "cluster must be 0 to 1, got 2"),
        (["--data", "new.npz", "--client-id", "c1", "--support", "labelled.npz"], "exclude each other"),
        (["--data", "new.npz", "--client-id", "c1", "--cluster", "0"], "exclude each other"),
        (["--data", "new.npz", "--support", "new.npz"], "new.npz has no array y"),
        (["--data", "new.npz", "--support", "uneven.npz"], "6 samples but labels of shape (4,)"),
        (["--data", "narrow.npz", "--client-id", "c1"], "samples must have shape (n, 2), got (6, 1)"),
        (["--data", "uneven.npz", "--client-id", "c1"], "6 samples but labels of shape (4,)"),
        (["--data", "other.npz", "--client-id", "c1"], "other.npz has no x: expected x, got features"),
        (["--data", "broken.npz", "--client-id", "c1"], "broken.npz is no whole npz file"),
        (["--data", "nowhere.npz", "--client-id", "c1"], "nowhere.npz is no file"),
        (
            ["--data", "rows.csv", "--client-id", "c1"],
            "rows.csv is no .npz file, and the run was not made from a table",
        ),
        (["--data", "new.npz", "--client-id", "c1", "--out", "no/such/file.csv"], "no/such/file.csv cannot be written"),
    ],
)
def test_a_mistake_is_one_line_with_exit_code_2(coterie, groups, arguments, message):
    code, out, err = coterie("predict", groups, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_new_client_has_no_model_where_all_trained_alone(coterie, alone):
    code, _, err = coterie("predict", alone, "--data", "new.npz", "--support", "labelled.npz")
    assert code == 2
    assert "local gives every client a personal model, so a new client has none" in err
    code, _, err = coterie("predict", alone, "--data", "new.npz")
    assert code == 2
    assert "local gives every client a personal model" in err


def test_a_folder_without_a_run_is_refused(coterie):
    code, _, err = coterie("predict", "nowhere", "--data", "new.npz")
    assert (code, err.count("\n")) == (2, 1)
    assert "nowhere is not a run folder" in err


def test_predict_without_data_says_so(coterie, groups):
    code, _, err = coterie("predict", groups)
    assert code == 2
    assert "--data" in err


def damaged(whole: bytes) -> dict[str, bytes]:
    """Contents of files that are called .npz and are none."""
    array, pickled, header = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(array, X)
    np.savez(pickled, x=np.array([{}, "a"], dtype=object))
    with zipfile.ZipFile(header, "w") as archive:
        claim = b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,), }"
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(claim).to_bytes(2, "little") + claim)
    odd = {"a renamed .npy": array.getvalue(), "pickled": pickled.getvalue(), "a header": header.getvalue()}
    changed = {f"byte {i}": whole[:i] + bytes([whole[i] ^ 255]) + whole[i + 1 :] for i in range(0, len(whole), 23)}
    return odd | changed | {f"cut at {i}": whole[:i] for i in range(0, len(whole), 61)}


def test_a_damaged_npz_is_one_line_or_what_it_was(coterie, groups, tmp_path):
    whole = (tmp_path / "new.npz").read_bytes()
    expected = coterie("predict", groups, "--data", "new.npz", "--client-id", "c3")
    for what, content in damaged(whole).items():
        (tmp_path / "bad.npz").write_bytes(content)
        found = coterie("predict", groups, "--data", "bad.npz", "--client-id", "c3")
        if found != expected:
            assert found[:2] == (2, ""), what
            assert found[2].startswith("error: "), what
            assert found[2].count("\n") == 1, what


@pytest.mark.parametrize("array", [X[::-1], X[:, ::-1], np.asfortranarray(X), X.astype(">f8"), X.astype(np.float16)])
def test_arrays_of_any_layout_are_predicted_for(groups, array):
    result = library.load(groups)
    expected = result.predict(np.array(array, dtype=np.float64, order="C"), client="c3")
    assert result.predict(array, client="c3").tolist() == expected.tolist()


def test_texts_that_look_like_formulas_are_written_as_texts(coterie, tmp_path):
    rows = "\n".join(f"s{i % 2},{i % 4},{['=1+1', 'plain'][i % 4 > 1]}" for i in range(40))
    (tmp_path / "t.csv").write_text("site,x,y\n" + rows)
    flags = ["--table", "t.csv", "--client", "site", "--target", "y", "--features", "x", "--out", "run"]
    code, _, err = coterie("run", *flags, "--method", "fedavg", "--rounds", 20)
    assert code == 0, err
    (tmp_path / "more.csv").write_text("x\n0\n3\n")
    assert coterie("predict", "run", "--data", "more.csv", "--client-id", "s0") == (0, "prediction\n'=1+1\nplain\n", "")


def test_only_texts_are_escaped():
    assert [_cell(value) for value in (-1.5, 3, True, "-x", "+1", "@a", "\t=1", "a=1", "")] == [
        -1.5, 3, True, "'-x", "'+1", "'@a", "'\t=1", "a=1", "",
    ]  # fmt: skip
