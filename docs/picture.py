"""Draws docs/report.png, the head of a report, from a fresh comparison: `make picture` (needs Chromium)."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import coterie
from coterie.report.page import write_report
from coterie.report.reading import read_runs

METHODS = ("local", "fedavg", "ifca", "oracle")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--hide-scrollbars",
)

if __name__ == "__main__":
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("no browser: install it with 'apt-get install chromium'")
    target = Path(__file__).parent / "report.png"
    with tempfile.TemporaryDirectory() as place:
        folder = coterie.compare("rotated-digits", METHODS, seeds=3, out=Path(place) / "runs").folder
        page = write_report(read_runs(folder), Path(place) / "report.html")
        window = ["--window-size=1200,1250", f"--screenshot={target}", f"--user-data-dir={place}/browser"]
        subprocess.run([browser, *FLAGS, *window, page.as_uri()], check=True, capture_output=True)
    print(target)
