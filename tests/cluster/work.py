"""Functions that the tests run in the workers."""

from pathlib import Path

from coterie.cluster import worker

SERVE = worker.serve


def fail_at_first(count, fails):
    """Let the first answers fail, as counted in a file."""

    def serve(*question):
        with Path(count).open("a") as file:
            file.write(".")
        if len(Path(count).read_text()) <= fails:
            raise ZeroDivisionError("fragile")
        return SERVE(*question)

    worker.serve = serve


def heal():
    worker.serve = SERVE


def task_names(dask_scheduler):
    return [str(key) for key in dask_scheduler.tasks]
