# Two commands do everything on a fresh machine, set-up included: `make demo` and `make test`.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint types unit test-faults test-dist fuzz dist docs picture pictures reproductions papers scoreboard repeat bench bench-long clean

demo: $(READY)
	$(BIN)/coterie compare rotated-digits --methods local,fedavg,ifca,oracle --seeds 3

# Types are checked at the same time as the tests, one of which mostly waits for Flower's programs.
test: $(READY) lint
	$(MAKE) --no-print-directory --jobs 2 types unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# Tests run in three processes with one-thread linear algebra each: many small products do not gain from threads, and one
# of the tests mostly waits for programs of Flower's. Many tests start processes, so that compiled modules are kept.
unit: $(READY)
	env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/pytest -n 3 --dist worksteal

# Faults against real processes: nodes and servers that are killed, slow, late, restarted, hostile or interrupted; about fifteen minutes on two cores with nothing
# else to do. Two federations at a time, since their programs mostly wait.
test-faults: $(READY)
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/pytest tests/faults -m '' -v -n 2 --dist worksteal --durations=0

# The random cases of tests/fuzz in their full number (about 10^5), and all checks of all methods with all options;
# COTERIE_FUZZ_SEED draws other cases.
fuzz: $(READY)
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 COTERIE_FUZZ_SCALE=$${COTERIE_FUZZ_SCALE:-20} $(BIN)/pytest tests/fuzz tests/methods/test_methods.py -n 2

# Writes the reference pages from the code, runs the tutorials, builds the site into build/site and checks its links; some
# minutes. Open build/site/index.html: it needs no network and no server.
docs: $(READY)
	$(BIN)/python -m coterie.cli.reference docs
	PYTHONPATH=$(CURDIR) NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

picture: $(READY)
	$(BIN)/python docs/picture.py

# The schematic pictures of the documentation.
pictures: $(READY)
	$(BIN)/python -m website.pictures docs/images

# Wheel and source distribution in dist.
dist: $(READY)
	rm -rf dist build/lib build/bdist.*
	$(BIN)/python -m build --no-isolation

# Installs both into empty environments and runs the README's example.
test-dist: dist
	$(BIN)/pytest tests/dist -m dist

# Writes the results in papers/reproductions.jsonl as pages; `coterie reproduce NAME` adds to them.
reproductions: $(READY)
	$(BIN)/coterie reproduce --page docs/reproductions.md

# Runs the unfinished cells of all papers, the cheapest first, and writes the pages; cells of more than two hours are left
# out. It may be interrupted at any time and continues where it stopped: HOURS=8 stops after a night, DATA=FOLDER names
# the data sets. `python -m papers.nightly --list` shows what is left and how long it takes.
papers: $(READY)
	$(BIN)/python -m papers.nightly $(if $(DATA),--data $(DATA)) $(if $(HOURS),--hours $(HOURS)) --page docs/reproductions.md

# Runs the cells of the scoreboard that are not in benchmarks/scoreboard/results.jsonl and writes all of them as a page;
# DATA=FOLDER names a folder with usps.npz and the like. An hour or two; it may be interrupted and continues.
scoreboard: $(READY)
	$(BIN)/coterie scoreboard $(if $(DATA),--data $(DATA)) --page docs/scoreboard.md

# Runs a sample of the finished cells again and compares their figures with the stored ones; a few minutes.
repeat: $(READY)
	$(BIN)/python -m papers.repeat

# Measures the rows of docs/benchmarks.md that are missing for this machine and code, about 15 minutes, and writes the page
# and its plot; it may be interrupted and continues. On a machine with nothing else to do.
bench: $(READY)
	$(BIN)/python benchmarks/speed.py

# The long rows as well, and the scripts whose figures are on other pages; some hours.
bench-long: $(READY)
	$(BIN)/python benchmarks/speed.py --long
	$(BIN)/python benchmarks/starts.py
	$(BIN)/python benchmarks/workloads.py --memory
	$(BIN)/python benchmarks/optimizers.py
	$(BIN)/python benchmarks/phase_two.py --growth
	$(BIN)/python benchmarks/one_shot.py
	$(BIN)/python benchmarks/soft.py --growth
	$(BIN)/python benchmarks/adaptive.py --clients
	$(BIN)/python benchmarks/many_clients.py
	$(BIN)/python benchmarks/newcomers.py
	$(BIN)/python benchmarks/flower_round.py
	$(BIN)/python benchmarks/private.py
	$(BIN)/python benchmarks/poisoning.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/convex_clustering.py --growth
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/cluster.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
