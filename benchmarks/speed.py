"""Measure the rows of docs/benchmarks.md that are missing, and write the page and its plot.

    python benchmarks/speed.py                 # about 15 minutes; rows of this machine and code are not repeated
    python benchmarks/speed.py --long          # the long rows as well
    python benchmarks/speed.py --only w3,small # these rows, again
    python benchmarks/speed.py --page          # write the page from the stored results only

Every row runs in a process of its own and is appended to benchmarks/results.jsonl as soon as it is finished, so that an
interrupted run continues where it stopped. Use a machine with nothing else to do.
"""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results.jsonl")
ROOT = Path(__file__).parent.parent
LONGEST = 1800
"""Seconds after which a row is given up."""


def machine() -> dict[str, Any]:
    """Return the facts on which the figures depend."""
    import numpy as np
    import torch

    with open("/proc/cpuinfo") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def code_version() -> str:
    """Return the version of the package, and a hash of its source files."""
    import coterie

    found = hashlib.sha256()
    for path in sorted((ROOT / "coterie").rglob("*.py")):
        found.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return f"{coterie.__version__}+{found.hexdigest()[:10]}"


def stored() -> list[dict[str, Any]]:
    """Return all lines of the results file."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def one(key: str) -> None:
    """Measure a row in this process, and print its figures as JSON."""
    import torch
    from speed_rows import rows

    row = next(row for row in rows() if row.key == key)
    torch.set_num_threads(row.threads)
    print(json.dumps(asdict(row.measure())))


def measure(key: str, threads: int, facts: Mapping[str, Any], version: str) -> bool:
    """Measure a row in a process of its own and store it; return whether that worked."""
    one_thread = dict.fromkeys(("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    try:
        answer = subprocess.run(
            [sys.executable, __file__, "--one", key],
            env=os.environ | one_thread,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=True,
        ).stdout
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"{key}: {error}\n{error.stderr or ''}", file=sys.stderr)
        return False
    line = {"row": key, "version": version, "machine": facts, "threads": threads, **json.loads(answer.splitlines()[-1])}
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="the long rows as well")
    parser.add_argument("--only", default="", help="these rows, even if they were measured")
    parser.add_argument("--page", action="store_true", help="write the page only")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        one(chosen.one)
        return 0
    from speed_page import write
    from speed_rows import rows

    facts, version, failed = machine(), code_version(), 0
    done = {line["row"] for line in stored() if line["version"] == version and line["machine"] == facts}
    named = [key for key in chosen.only.split(",") if key]
    wanted = [row for row in rows() if (row.key in named if named else row.key not in done)]
    for row in () if chosen.page else wanted:
        if chosen.long or named or not row.long:
            print(row.key, flush=True)
            failed += not measure(row.key, row.threads, facts, version)
    write(stored(), ROOT / "docs")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
