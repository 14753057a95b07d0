"""`coterie export`: the models of a finished run as files for other programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from coterie.cli.plugins import PluginCommand
from coterie.cli.terminal import Terminal, on_one_line
from coterie.errors import ConfigError
from coterie.training.export import joblib_bytes, onnx_bytes, safetensors_bytes, scikit_learn_model
from coterie.training.result import Result, load
from coterie.training.runs.outputs import check_output, write_binary_output

out = Terminal()


def _joblib(result: Result, cluster: int) -> bytes:
    from coterie.sklearn import estimator_of  # which takes a second to import

    model = scikit_learn_model(result, cluster)
    return joblib_bytes(estimator_of(result, cluster) if model is None else model)


FORMATS: dict[str, Callable[[Result, int], bytes]] = {
    "safetensors": safetensors_bytes,
    "onnx": onnx_bytes,
    "joblib": _joblib,
}


@click.command(name="export", cls=PluginCommand)
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--to", "form", type=click.Choice(list(FORMATS)), required=True, help="Format of the files.")
@click.option("--cluster", type=int, help="Cluster whose model is written. [default: all, one file each]")
@click.option(
    "--out",
    "file",
    type=click.Path(path_type=Path),
    help="File to write; for several clusters its name is continued by the number. [default: RUN/model-K.FORMAT]",
)
def export_command(folder: Path, form: str, cluster: int | None, file: Path | None) -> None:
    """Write the models of a finished run for use without Coterie.

    safetensors holds the parameters by the names of the PyTorch module. onnx holds the whole model, for a run of a
    table with the standardisation of its features. joblib holds a scikit-learn pipeline for linear and logistic models,
    and an estimator that needs Coterie for others; load joblib files only from sources that you trust.

    \b
    coterie export runs/table-ifca-seed0 --to onnx --cluster 0 --out group0.onnx
    """
    result = load(folder)
    clusters = range(len(result.parameters))
    if cluster is not None and cluster not in clusters:
        raise ConfigError(f"--cluster must be 0 to {len(clusters) - 1}, got {cluster}")
    path = file or folder / f"model.{form}"
    files = {k: _name(path, k) for k in clusters} if cluster is None else {cluster: file or _name(path, cluster)}
    if len(clusters) == 1:
        files = {0: path}
    for each in files.values():
        check_output(each)
    for k, each in files.items():
        write_binary_output(each, FORMATS[form](result, k))
        out.print(f"written  {on_one_line(each)}", highlight=False, soft_wrap=True)


def _name(path: Path, cluster: int) -> Path:
    return path.with_name(f"{path.stem}-{cluster}{path.suffix}")
