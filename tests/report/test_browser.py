"""The page in a real browser: its script runs without an error and its figures answer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from coterie.report.page import write_report

HOSTILE = "</script><img src=x onerror=console.error('caught')>"
PROBE = """<script>
const say = (name, value) => { document.body.dataset[name] = value; };
const figures = [...document.querySelectorAll("svg.figure")];
const press = (figure, key) => figure.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
say("figures", figures.length);
say("stops", figures.filter((f) => f.tabIndex === 0).length);
press(figures[0], "ArrowRight");
say("first", document.getElementById("tip").textContent);
press(figures.at(-1), "ArrowLeft");
say("last", document.getElementById("tip").textContent);
press(figures.at(-1), "Escape");
say("hidden", document.getElementById("tip").hidden);
const column = [...document.querySelectorAll("th button")].find((b) => b.textContent === "samples");
const cells = () => [...document.querySelectorAll("#client-table tbody tr td:nth-child(2)")];
const order = () => cells().map((c) => c.textContent).join();
column.click(); say("up", order());
column.click(); say("down", order());
const find = document.getElementById("find");
find.value = "ONERROR"; find.dispatchEvent(new Event("input"));
say("search", document.getElementById("shown").textContent);
say("images", document.images.length);
const width = document.documentElement; say("wide", width.scrollWidth - width.clientWidth);
</script></body>"""


def browser() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    if "browser" in os.environ.get("COTERIE_REQUIRE", "").split(","):
        pytest.fail("no browser: install it with 'apt-get install chromium'")
    pytest.skip("no browser: install it with 'apt-get install chromium', or set PATH to one")


def load(path: Path, profile: Path) -> tuple[str, list[str]]:
    """The document after its script ran, and what the console said."""
    quiet = ("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-sync")
    command = [browser(), "--headless", "--no-sandbox", *quiet, "--disable-component-update", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={profile}", "--enable-logging=stderr", "--v=0", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture
def report(tmp_path, make_run):
    ids = (HOSTILE, "b", "c", "d")
    truth = ("north", "north", "south", "south")
    runs = []
    for seed in (0, 1):
        runs.append(make_run("ifca", seed, ids=ids, truth=truth, certainty=(1.0,) * 4))
        runs.append(make_run("fedavg", seed, ids=ids, truth=truth, clusters=(0,) * 4, scores=(0.5, 0.8, 0.85, 0.7)))
    return write_report(runs, tmp_path / "report.html")


def test_the_page_as_written_runs_without_a_word_on_the_console(report, tmp_path):
    dom, console = load(report, tmp_path / "profile")
    assert console == []
    assert 'data-ready="yes"' in dom  # the script came to its end
    assert "4 of 4 shown" in dom
    assert len(re.findall(r'<svg class="figure"[^>]*tabindex="0"', dom)) == 5
    assert 'class="mark" data-client="0"' in dom
    assert "<img" not in dom


def test_figures_and_table_answer(report, tmp_path):
    # the page allows no script but its own, so the probe needs a copy without that rule
    text = re.sub(r"<meta http-equiv[^>]*>", "", report.read_text(encoding="utf-8"))
    probed = tmp_path / "probed.html"
    probed.write_text(text.replace("</body>", PROBE), encoding="utf-8")
    dom, console = load(probed, tmp_path / "profile")
    assert console == []
    body = re.search(r"<body[^>]*>", dom)[0]
    said = dict(re.findall(r'data-(\w+)="([^"]*)"', body))
    assert (said["figures"], said["stops"]) == ("5", "5")
    assert "onerror" in said["first"]  # the greatest gain is that of the hostile client: 0.9 against 0.5
    assert "50.0 % (gain +40.0)" in said["first"]
    assert "After round 3" in said["last"]
    assert said["hidden"] == "true"
    assert (said["up"], said["down"]) == ("10,11,12,13", "13,12,11,10")
    assert said["search"] == "1 of 4 shown"
    assert said["images"] == "0"
    assert said["wide"] == "0"  # no sideways scrolling


def test_injected_script_would_not_run(report, tmp_path):
    evil = tmp_path / "evil.html"
    evil.write_text(report.read_text(encoding="utf-8").replace("</main>", "<script>document.title='x'</script></main>"))
    dom, console = load(evil, tmp_path / "profile")
    assert "<title>x</title>" not in dom
    assert any("Content Security Policy" in line for line in console)
