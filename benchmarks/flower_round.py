"""A round over a real SuperLink and three real SuperNodes, compared with the same exchange in plain Flower.

    python benchmarks/flower_round.py [--sizes 0,1,20] [--rounds 15]

The app in `flower_app/` does both in turn, in one run for each size: by messages as one would write them for plain
torch, and by Coterie. IFCA with two clusters: two models go down, the change of one comes back, after a choice and one
step on 32 samples. Both sides of the pair end in the same sums, which is checked in every turn. TLS and node
authentication, one client a node, answers looked for every 0.2 s. Both clients import torch; each message is a new
process. Flower asks for work every few seconds, so single rounds differ by seconds; the ratio is that of the medians,
with the middle 90 % of what it is when the turns are drawn anew. Processor seconds are those of all processes
together, server included, and of one client's process before it begins with a message and for it (Linux only). Bytes
are those of the messages as Flower sends them, objects how many parts it cuts them into.
"""

import argparse
import json
import random
import tempfile
from pathlib import Path
from statistics import median

from coterie.flower.local.processes import LocalFederation

NODES, FEATURES, CLASSES = 3, 784, 10
KINDS = ("bare", "coterie")
DRAWS = 2000
MOST_SECONDS = 600
"""Seconds for one exchange, on a busy machine."""
APP = Path(__file__).parent / "flower_app"


def hidden_for(megabytes: float) -> int:
    """Return the hidden units of a float32 network of this size, at least one."""
    return max(1, round((megabytes * 1e6 / 4 - CLASSES) / (FEATURES + 1 + CLASSES)))


def ratio_of(of: dict[str, list[dict[str, float]]], name: str) -> tuple[float, float, float]:
    """Return the ratio of the medians, Coterie over plain Flower, and its bootstrap interval of 90 %."""
    bare, ours = ([one[name] for one in of[kind]] for kind in KINDS)
    draw, turns = random.Random(0), range(len(bare))
    drawn = [draw.choices(turns, k=len(turns)) for _ in range(DRAWS)]
    ratios = sorted(median(ours[i] for i in some) / median(bare[i] for i in some) for some in drawn)
    return median(ours) / median(bare), ratios[DRAWS // 20], ratios[-DRAWS // 20]


def measure(federation: LocalFederation, megabytes: float, rounds: int, folder: Path) -> None:
    """Run once, and print its three lines of the table."""
    folder.mkdir()
    sessions = [federation.superlink, federation.superexec, *federation.nodes.values()]
    config = {"hidden": hidden_for(megabytes), "rounds": rounds, "out": str(folder)}
    run = federation.run(
        config | {"sessions": " ".join(str(child.pid) for child in sessions)}, timeout=MOST_SECONDS * 2 * rounds
    )
    if not run.status().completed:
        raise SystemExit(f"the run failed: {run.status().details}\n{run.tail(20)}")
    found = json.loads((folder / "rounds.json").read_text())
    clients = [json.loads(path.read_text()) for path in folder.glob("*-*.json")]
    of = {kind: [one for one in found if one["kind"] == kind] for kind in KINDS}
    for kind in KINDS:
        seconds, last = sorted(one["seconds"] for one in of[kind]), of[kind][-1]
        low, high = seconds[rounds // 4], seconds[-1 - rounds // 4]
        before, work = zip(*((started, done - started) for name, started, done in clients if name == kind), strict=True)
        print(
            f"| {megabytes:g} | {kind} | {median(seconds):.2f} ({low:.1f} to {high:.1f}) "
            f"| {median(one['worked'] for one in of[kind]):.2f} | {median(before):.2f} | {median(work):.2f} "
            f"| {last['down'] / 1e6:.3f} | {last['up'] / 1e6:.3f} | {last['objects down']} + {last['objects up']} |"
        )
    wall, worked = ("{:.2f} ({:.2f} to {:.2f})".format(*ratio_of(of, name)) for name in ("seconds", "worked"))
    down, up = (of["coterie"][-1][way] / of["bare"][-1][way] for way in ("down", "up"))
    print(f"| {megabytes:g} | ratio | {wall} | {worked} | | | {down:.4f} | {up:.4f} | |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="0,1,20", help="of one model, in MB, separated by commas")
    parser.add_argument("--rounds", type=int, default=15, help="of each kind")
    given = parser.parse_args()
    print("| MB | | s a round (middle half) | processor s | a client before | at work | MB down | MB up | objects |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
    with tempfile.TemporaryDirectory() as name, LocalFederation(APP, NODES, Path(name) / "work") as federation:
        for number, size in enumerate(given.sizes.split(",")):
            measure(federation, float(size), given.rounds, Path(name) / f"out-{number}")


if __name__ == "__main__":
    main()
