"""Draws the schematic pictures of the documentation: `python -m website.pictures docs/images` (or `make pictures`)."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

WIDTH, HEIGHT = 640, 250
COLOURS = ("#3f51b5", "#ff7043", "#2e9e6b")
GREY, INK = "#9aa0a6", "#37474f"
Point = tuple[float, float]


class Picture:
    """An SVG picture to which shapes are added."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []

    def line(self, start: Point, end: Point, colour: str = GREY, width: float = 1.5, arrow: bool = False) -> None:
        """Add a line, with an arrow head at its end if asked for."""
        head = f' marker-end="url(#{_name(colour)})"' if arrow else ""
        self.parts.append(
            f'<line x1="{start[0]:g}" y1="{start[1]:g}" x2="{end[0]:g}" y2="{end[1]:g}" stroke="{colour}" '
            f'stroke-width="{width:g}"{head}/>'
        )

    def client(self, at: Point, colour: str = GREY, size: float = 9) -> None:
        """Add a client: a filled circle."""
        self.parts.append(f'<circle cx="{at[0]:g}" cy="{at[1]:g}" r="{size:g}" fill="{colour}"/>')

    def mixture(self, at: Point, shares: Sequence[float], size: float = 12) -> None:
        """Add a client whose sectors show its weights."""
        angle = -math.pi / 2
        for share, colour in zip(shares, COLOURS, strict=False):
            to = angle + 2 * math.pi * share
            x1, y1 = at[0] + size * math.cos(angle), at[1] + size * math.sin(angle)
            x2, y2 = at[0] + size * math.cos(to), at[1] + size * math.sin(to)
            large = int(share > 0.5)
            self.parts.append(
                f'<path d="M{at[0]:g},{at[1]:g} L{x1:.1f},{y1:.1f} A{size:g},{size:g} 0 {large} 1 {x2:.1f},{y2:.1f} Z" '
                f'fill="{colour}"/>'
            )
            angle = to

    def model(self, at: Point, text: str, colour: str = INK, width: float = 92, height: float = 34) -> None:
        """Add a model: a rounded box with a text."""
        self.parts.append(
            f'<rect x="{at[0] - width / 2:g}" y="{at[1] - height / 2:g}" width="{width:g}" height="{height:g}" rx="7" '
            f'fill="#fff" stroke="{colour}" stroke-width="2"/>'
        )
        self.text(at, text, colour)

    def text(self, at: Point, text: str, colour: str = INK, size: int = 13, anchor: str = "middle") -> None:
        """Add a text, centred by default."""
        self.parts.append(
            f'<text x="{at[0]:g}" y="{at[1] + size * 0.35:.1f}" font-size="{size}" fill="{colour}" '
            f'text-anchor="{anchor}">{text}</text>'
        )

    def caption(self, text: str, y: float = 238) -> None:
        """Add a sentence below the picture."""
        self.text((WIDTH / 2, y), text, size=12)

    def circle(self, at: Point, size: float, colour: str) -> None:
        """Add a dashed circle."""
        self.parts.append(
            f'<circle cx="{at[0]:g}" cy="{at[1]:g}" r="{size:g}" fill="none" stroke="{colour}" stroke-width="1.5" '
            f'stroke-dasharray="5 4"/>'
        )

    def svg(self) -> str:
        """Return the text of the file."""
        heads = "".join(
            f'<marker id="{_name(each)}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
            f'orient="auto-start-reverse"><path d="M0,0 L8,4 L0,8 Z" fill="{each}"/></marker>'
            for each in (*COLOURS, GREY, INK)
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'font-family="system-ui, sans-serif"><title>{self.title}</title><defs>{heads}</defs>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def _name(colour: str) -> str:
    return f"to{colour.removeprefix('#')}"


def _row(count: int, y: float, left: float = 60, right: float = WIDTH - 60) -> list[Point]:
    return [(left + (right - left) * i / (count - 1), y) for i in range(count)]


GROUPS = (0, 1, 0, 0, 1, 1, 0, 1)


def local(picture: Picture) -> None:
    """Every client has its own model."""
    for at, group in zip(_row(8, 190), GROUPS, strict=True):
        picture.model((at[0], 95), "model", COLOURS[group], width=58)
        picture.line((at[0], 115), (at[0], 176), COLOURS[group], arrow=True)
        picture.client(at, COLOURS[group])
    picture.text((WIDTH / 2, 30), "no server: every client trains alone")
    picture.caption("clients; the colour is the group, which is unknown", 232)


def one_model(picture: Picture) -> None:
    """All clients train one model."""
    picture.model((WIDTH / 2, 60), "one model", INK, width=120)
    for at, group in zip(_row(8, 190), GROUPS, strict=True):
        picture.line(at, (WIDTH / 2 + (at[0] - WIDTH / 2) * 0.15, 82), GREY, arrow=True)
        picture.client(at, COLOURS[group])
    picture.text((WIDTH / 2, 20), "server: the mean over all clients")
    picture.caption("clients of both groups change the same model", 232)


def _two_models(picture: Picture, title: str) -> list[Point]:
    places = [(200.0, 65.0), (440.0, 65.0)]
    for place, colour, name in zip(places, COLOURS, ("model 1", "model 2"), strict=False):
        picture.model(place, name, colour)
    picture.text((WIDTH / 2, 20), title)
    return places


def hard(picture: Picture) -> None:
    """Every client tries all models and joins one."""
    models = _two_models(picture, "server: one model for each cluster")
    for at, group in zip(_row(8, 190), GROUPS, strict=True):
        other = models[1 - group]
        picture.line((other[0], 84), at, "#e0e3e6", 1)
        picture.line(at, (models[group][0], 85), COLOURS[group], 2, arrow=True)
        picture.client(at, COLOURS[group])
    picture.text(
        (WIDTH / 2, 232),
        "in every round, each client evaluates all models, joins the best one and trains it",
        size=12,
    )


def nearest(picture: Picture) -> None:
    """Clients train their own models; each joins the nearest centre."""
    picture.text((WIDTH / 2, 20), "space of parameters")
    for index, centre in enumerate([(210.0, 125.0), (430.0, 125.0)]):
        picture.circle(centre, 78, COLOURS[index])
        for number in range(6):
            angle = number * math.pi / 3 + index
            at = (centre[0] + 55 * math.cos(angle), centre[1] + 55 * math.sin(angle))
            picture.line(at, centre, COLOURS[index], 1, arrow=True)
            picture.client(at, COLOURS[index], 7)
        picture.model(centre, "centre", COLOURS[index], 62, 24)
    picture.text(
        (WIDTH / 2, 232),
        "each client joins the centre nearest to its own model; a centre is the mean of its members",
        size=12,
    )


def soft(picture: Picture) -> None:
    """Every client is a mixture of the models."""
    models = _two_models(picture, "server: one model for each component")
    for at, share in zip(_row(8, 190), (0.9, 0.2, 0.7, 0.5, 0.1, 0.35, 0.8, 0.05), strict=True):
        for model, weight, colour in zip(models, (share, 1 - share), COLOURS, strict=False):
            picture.line(at, (model[0], 85), colour, 0.4 + 3.2 * weight, arrow=weight > 0.3)
        picture.mixture(at, (share, 1 - share))
    picture.caption("every client has a weight for each model, and trains each by its weight", 232)


def split(picture: Picture) -> None:
    """One cluster is split in two, and one of these again."""
    picture.model((90, 120), "all", INK, 70)
    for x, y, colour, name in ((300, 65, COLOURS[0], "A"), (300, 175, COLOURS[1], "B")):
        picture.line((126, 120), (x - 48, y), GREY, 2, arrow=True)
        picture.model((x, y), name, colour)
    for y, colour, name in ((135, COLOURS[1], "B 1"), (210, COLOURS[2], "B 2")):
        picture.line((347, 175), (512, y), GREY, 2, arrow=True)
        picture.model((560, y), name, colour)
    picture.line((347, 65), (512, 65), GREY, 2, arrow=True)
    picture.model((560, 65), "A", COLOURS[0])
    picture.text((205, 60), "test", size=12)
    picture.text((440, 118), "test", size=12)
    picture.text((WIDTH / 2, 20), "rounds of training, from left to right")
    picture.text((190, 238), "a cluster is split if that lowers the held-out loss", size=12)


def grow(picture: Picture) -> None:
    """A shared body with heads that are added and removed."""
    picture.model((130, 125), "shared body", INK, 130, 90)
    for y, colour, name in ((60, COLOURS[0], "head 1"), (125, COLOURS[1], "head 2"), (190, COLOURS[2], "head 3")):
        picture.line((196, 125), (300, y), GREY, 2, arrow=True)
        picture.model((350, y), name, colour)
    for y, index, share in ((60, 0, (0.85, 0.15, 0)), (125, 1, (0.2, 0.7, 0.1)), (190, 2, (0, 0.25, 0.75))):
        for step in range(3):
            picture.mixture((470 + 50 * step, y + (step - 1) * 5), share, 11)
        picture.line((398, y), (450, y), COLOURS[index], 1.5, arrow=True)
    picture.text((WIDTH / 2, 20), "the number of clusters grows by splits and shrinks by merges and removals")
    picture.caption("clients are mixtures of the clusters; whole models, or heads on a shared body", 238)


def _cloud(picture: Picture, centre: Point, colour: str, turn: float) -> None:
    for number in range(7):
        angle, far = turn + number * 2.4, 14 + 26 * ((number * 37 % 10) / 10)
        picture.client((centre[0] + far * math.cos(angle), centre[1] + far * math.sin(angle)), colour, 6)


def one_shot(picture: Picture) -> None:
    """One vector for each client is clustered once."""
    for centre, colour, turn in (
        ((110, 85), COLOURS[0], 0.0),
        ((240, 110), COLOURS[1], 1.0),
        ((130, 180), COLOURS[2], 2.0),
    ):
        picture.circle(centre, 52, colour)
        _cloud(picture, centre, colour, turn)
    for y, colour, number in ((75, COLOURS[0], 1), (125, COLOURS[1], 2), (175, COLOURS[2], 3)):
        picture.line((330, 125), (440, y), GREY, 2, arrow=True)
        picture.model((495, y), f"model {number}", colour)
    picture.text((160, 20), "one point for each client, sent once")
    picture.text((495, 20), "one model for each cluster")
    picture.text(
        (WIDTH / 2, 240),
        "the server clusters the clients once; then models are averaged, or trained in each cluster",
        size=12,
    )


def unite(picture: Picture) -> None:
    """Clients that change a frozen model in similar directions are grouped as they arrive."""
    for index, (y, colour) in enumerate(((70, COLOURS[0]), (125, COLOURS[1]), (180, COLOURS[2]))):
        for step in range(4):
            at = (70 + 75 * step, y + (8 if step % 2 else -8))
            picture.client(at, colour, 8)
            if step:
                picture.line((at[0] - 66, y + (-8 if step % 2 else 8)), (at[0] - 9, at[1]), colour, 1.5)
        picture.line((305, y), (400, y), colour, 2, arrow=True)
        picture.model((450, y), f"model {index + 1}", colour)
        picture.line((498, y), (548, 125), GREY, 1.5)
    picture.model((590, 125), "all", INK, 70)
    picture.text((180, 20), "similar clients are grouped as they arrive")
    picture.text((490, 20), "models stay near a common model")
    picture.caption("similar clients change a frozen model in the same direction", 240)


def anchors(picture: Picture) -> None:
    """A few anchors estimate coarse models, then all clients join them."""
    for index, at in enumerate([(80.0, 75.0), (120.0, 125.0), (80.0, 175.0), (150.0, 185.0)]):
        colour = COLOURS[index % 2]
        picture.client(at, colour, 11)
        picture.line((at[0] + 12, at[1]), (258, 90 if index % 2 == 0 else 160), colour, 1.5, arrow=True)
    for y, colour, number in ((90, COLOURS[0], 1), (160, COLOURS[1], 2)):
        picture.model((310, y), f"coarse {number}", colour)
        picture.line((358, y), (430, y), GREY, 2, arrow=True)
        picture.model((480, y), f"model {number}", colour)
        for step in range(3):
            picture.client((575, y - 20 + 20 * step), colour, 7)
            picture.line((566, y - 20 + 20 * step), (530, y), colour, 1, arrow=True)
    picture.text((110, 20), "a few anchor clients")
    picture.text((310, 20), "phase 1")
    picture.text((520, 20), "phase 2: all clients join")
    picture.caption("moment descent finds coarse models from any start; two-phase refines them", 240)


def subspace(picture: Picture) -> None:
    """One linear subspace and a solved head for each cluster."""
    picture.model((110, 125), "features", INK, 100, 120)
    picture.line((162, 125), (232, 125), GREY, 2, arrow=True)
    picture.model((290, 125), "subspace B", INK, 110, 60)
    for y, colour, number in ((65, COLOURS[0], 1), (125, COLOURS[1], 2), (185, COLOURS[2], 3)):
        picture.line((346, 125), (430, y), GREY, 2, arrow=True)
        picture.model((485, y), f"head {number}", colour)
        picture.client((575, y), colour)
        picture.client((602, y), colour)
    picture.text((WIDTH / 2, 20), "one subspace for all clients, a head for each cluster")
    picture.text(
        (WIDTH / 2, 240), "heads are computed in closed form; the subspace takes a gradient step, then QR", size=12
    )


def attract(picture: Picture) -> None:
    """A model for every client, pulled to those of similar clients."""
    places = [(120, 80), (190, 130), (115, 165), (430, 85), (500, 130), (430, 175)]
    for first in range(6):
        for second in range(first + 1, 6):
            near = first // 3 == second // 3
            colour = COLOURS[first // 3] if near else "#e0e3e6"
            picture.line(places[first], places[second], colour, 3 if near else 0.8)
    for index, at in enumerate(places):
        picture.client(at, "#fff", 19)
        picture.model(at, "model", COLOURS[index // 3], 54, 26)
    picture.text((WIDTH / 2, 20), "every client has a model; thick lines pull more")
    picture.caption("the more alike two models are, the more each follows the other", 235)


def known(picture: Picture) -> None:
    """The true groups are given."""
    models = _two_models(picture, "the true groups are given")
    for index, model in enumerate(models):
        for step in range(4):
            at = (model[0] - 75 + 50 * step, 185.0)
            picture.line(at, (model[0], 85), COLOURS[index], 2, arrow=True)
            picture.client(at, COLOURS[index])
    picture.caption("the best possible result of clustering", 232)


def tiers(picture: Picture) -> None:
    """A method is one member of each of four tiers."""
    names = (("1", "objective"), ("2", "assignment"), ("3", "procedure"), ("4", "distance"))
    for (number, name), at in zip(names, _row(4, 110, 95, WIDTH - 95), strict=True):
        picture.model(at, name, COLOURS[0], 118, 60)
        picture.text((at[0], 60), f"tier {number}", size=12)
        picture.line((at[0], 142), (WIDTH / 2 + (at[0] - WIDTH / 2) * 0.2, 186), GREY, 2, arrow=True)
    picture.model((WIDTH / 2, 208), "a method", COLOURS[1], 150)
    picture.text((WIDTH / 2, 20), "one member of each tier makes a method")


def overview(picture: Picture) -> None:
    """Clients, a server with a model for each group, and the result."""
    models = _two_models(picture, "server: models, no data")
    for at, group in zip(_row(8, 185), GROUPS, strict=True):
        picture.line(at, (models[group][0], 85), COLOURS[group], 2, arrow=True)
        picture.client(at, COLOURS[group], 11)
    picture.caption("clients keep their data; models and a few numbers are exchanged", 218)
    picture.text(
        (WIDTH / 2, 238),
        "result: the groups, the certainty of each assignment, and a model for each group",
        size=12,
    )


PICTURES: dict[str, Callable[[Picture], None]] = {
    "overview": overview,
    **{
        f"methods/{name}": draw
        for name, draw in {
            "local": local,
            "one-model": one_model,
            "hard": hard,
            "nearest": nearest,
            "soft": soft,
            "split": split,
            "grow": grow,
            "one-shot": one_shot,
            "unite": unite,
            "anchors": anchors,
            "subspace": subspace,
            "attract": attract,
            "known": known,
            "tiers": tiers,
        }.items()
    },
}


def drawn(name: str) -> str:
    """Return a picture as the text of an SVG file."""
    draw = PICTURES[name]
    picture = Picture((draw.__doc__ or "").strip())
    draw(picture)
    return picture.svg()


def main() -> None:
    """Write all pictures below the folder that is the only argument."""
    folder = Path(sys.argv[1])
    for name in PICTURES:
        path = folder / f"{name}.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(drawn(name))


if __name__ == "__main__":
    main()
