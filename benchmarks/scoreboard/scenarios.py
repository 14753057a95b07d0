"""The scenarios of the scoreboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.scoreboard.drawing import Drawn
from benchmarks.scoreboard.files import PACKAGE, Files
from benchmarks.scoreboard.pictures import Handwriting, Pictures, Shift, Source
from benchmarks.scoreboard.records import Landmine, School, grunfeld
from benchmarks.scoreboard.regressions import Regression, mixed_table

FAMILIES = {
    "linear": "Drawn linear regressions",
    "logistic": "Drawn logistic regressions",
    "digits": "scikit-learn's digits, one kind of shift at a time and all at once",
    "images": "Larger images",
    "real": "Real clients and tables",
}


@dataclass(frozen=True)
class Scenario:
    """A kind of federation, of which every seed draws one."""

    name: str
    family: str
    about: str
    draw: Callable[[int], Drawn]
    learner: str | None = None
    """Model family, where the default is not meant."""
    needs: str | None = None
    """Data that must be at hand."""
    alike: bool = False
    """Whether all clients are alike: more than one cluster is an error."""
    small: bool = False
    """Whether it belongs to the small version."""

    def is_chosen(self, only: str | None, small: bool) -> bool:
        """Whether its name contains a text, and it belongs to the small version if that is asked for."""
        return (only or "").lower() in self.name and (self.small or not small)


SHIFTS: dict[Shift, str] = {
    "concept": "labels mean different things",
    "feature": "images are turned",
    "label": "other labels are frequent",
    "all": "all three shifts at once",
    "mixed": "labels mean different things, and a fifth of each client's labels follow any group",
    "none": "all clients are alike",
    "dirichlet": "no groups, every client has its own mix of labels (Dirichlet 0.5)",
}


def scenarios(folder: Path | None = None) -> dict[str, Scenario]:
    """Return all scenarios by name; those that need files read them from this folder or from the user's cache."""
    files = Files(folder)
    found = [*_regressions(), *_pictures(files), *_real(files)]
    return {scenario.name: scenario for scenario in found}


def _regressions() -> Iterator[Scenario]:
    kinds: dict[str, tuple[str, dict[str, object]]] = {
        "groups": ("3 clear groups, 40 clients of 60 samples", {}),
        "weak": ("3 groups whose coefficients differ by 0.3 of the noise", {"spread": 0.3}),
        "none": ("all clients are alike", {"groups": 1}),
        "few samples": ("12 samples for 8 coefficients", {"samples": 12}),
        "unequal": ("4 to 400 samples", {"unequal": True}),
        "heavy tails": ("features and noise with the tails of Student's t, 3 degrees of freedom", {"heavy": True}),
        "many clients": ("240 clients of 20 samples", {"clients": 300, "samples": 20}),
        "many groups": ("9 groups in 8 dimensions, 72 clients", {"groups": 9, "clients": 90}),
    }
    for family in ("linear", "logistic"):
        for kind, (about, settings) in kinds.items():
            if family == "logistic" and kind.startswith("many"):
                continue
            draw = Regression(classes=family == "logistic", **settings)  # type: ignore[arg-type]
            name = f"{family} {kind}"
            yield Scenario(name, family, about, draw, alike=kind == "none", small=kind == "groups")


def _pictures(files: Files) -> Iterator[Scenario]:
    digits = Source("digits", 40, 18)
    for shift, about in SHIFTS.items():
        small = shift in ("concept", "none")
        draw = Pictures(digits, shift)
        yield Scenario(f"digits {shift}", "digits", about, draw, "mlp", alike=shift == "none", small=small)
    chosen: dict[str, tuple[Shift, ...]] = {
        "usps": ("concept", "feature", "all", "mixed"),
        "mnist": ("concept", "all"),
        "fashion-mnist": ("feature", "mixed"),
    }
    for name, shifts in chosen.items():
        for shift in shifts:
            draw = Pictures(Source(name), shift, files)
            yield Scenario(f"{name} {shift}", "images", SHIFTS[shift], draw, "mlp", name)
    kinds: tuple[Shift, ...] = ("concept", "none")
    for shift in kinds:
        draw = Pictures(Source("cifar10", 100, 50), shift, files)
        about = f"{SHIFTS[shift]}; 256 features of fixed random filters"
        yield Scenario(f"cifar10 {shift}", "images", about, draw, None, "cifar10", alike=shift == "none")


def _real(files: Files) -> Iterator[Scenario]:
    writers = "24 writers of FEMNIST, 62 classes"
    yield Scenario("femnist writers", "real", writers, Handwriting(False, files), "mlp", "femnist")
    permuted = f"{writers}; labels mean different things in 3 groups"
    yield Scenario("femnist permuted", "real", permuted, Handwriting(True, files), "mlp", "femnist")
    mines = "mines on 24 fields, foliated or bare: all mines and as many other objects"
    yield Scenario("landmine", "real", mines, Landmine(files), None, "landmine")
    yield Scenario("school", "real", "exam scores in 112 schools, raw columns", School(files), None, "school")
    yield Scenario("grunfeld", "real", "investment of 9 firms over 20 years, raw columns", grunfeld, None, PACKAGE)
    about = "a drawn table of 32 sites: unlike units, categories, gaps, 3 groups"
    yield Scenario("table", "real", about, mixed_table)
