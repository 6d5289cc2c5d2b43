# make demo and make test set themselves up; nothing but Python 3.11 and pip is needed.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Two test processes on two cores: BLAS, OpenMP and numba threads of their own would only wait for each other.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMBA_NUM_THREADS=1
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help setup setup-demo demo test check lint types unit pages docs test-slow bench flower clean kills fuzz bugs truth mutants advice

help:
	@echo "make demo       set up, then a one-minute tour on embedded data (no torch needed)"
	@echo "make test       set up, then lint, types, doctests and tests"
	@echo "make setup      only the environment, in $(VENV)"
	@echo "make pages      the explorer and the reports in a real browser (Debian's Chromium)"
	@echo "make docs       the site in build/site, warnings are errors; then its links, search and outside requests"
	@echo "make test-slow  the tests marked slow"
	@echo "make kills      kill a peer 10,000 times; make fuzz: 100 million frames; make bugs: planted bugs"
	@echo "make truth      10,000 random plans against an independent price; make mutants: small changes, all noticed?"
	@echo "make advice     200 random consortia, brute force beside the advice, intervals against real runs"
	@echo "make flower     Flower, Ray and Dask in an environment of their own, with their tests"
	@echo "make bench      benchmarks against named rivals, JSON ratios"

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)

$(VENV)/.demo: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	@echo "installing sottovoce into $(VENV) (once)"
	@$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.test: $(VENV)/pyvenv.cfg pyproject.toml constraints.txt
	@echo "installing sottovoce with its test tools into $(VENV) (once)"
	@$(PIP_INSTALL) -e '.[deep,test,explore]'
	@touch $@ $(VENV)/.demo

$(VENV)/.pages: $(VENV)/.test
	@$(PIP_INSTALL) -e '.[deep,test,explore,pages]'
	@touch $@

$(VENV)/.docs: $(VENV)/.test
	@$(PIP_INSTALL) -e '.[deep,test,explore,docs]'
	@touch $@

setup: $(VENV)/.test
setup-demo: $(VENV)/.demo

demo: setup-demo
	@$(BIN)/sottovoce demo

test: setup lint types unit

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types:
	$(BIN)/mypy

unit:
	$(ONE_THREAD) $(BIN)/python -m pytest -n 2 -m "not slow and not paper and not pages"

# Without a browser every test is skipped with a sentence: apt-get install chromium gives one.
pages: $(VENV)/.pages
	$(ONE_THREAD) $(BIN)/python -m pytest -m pages tests/pages

SITE := build/site
docs: $(VENV)/.docs
	$(ONE_THREAD) $(BIN)/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs $(SITE)
	SOTTOVOCE_SITE=$(CURDIR)/$(SITE) $(BIN)/python -m pytest tests/test_site.py
	@echo "the site is in $(SITE)/index.html"

test-slow: setup
	$(BIN)/python -m pytest -m slow

bench: setup
	$(BIN)/python -m benchmarks

# Long forms of what CI shows in short: 10,000 kills, 100 million frames, every planted bug.
kills: setup
	$(BIN)/python scripts/kill_loop.py --kills 10000

fuzz: setup
	$(BIN)/python scripts/fuzz_frames.py --frames 100000000

bugs: setup
	@mkdir -p build
	$(ONE_THREAD) $(BIN)/python scripts/plant_bugs.py --lines build/planted-bugs.jsonl --out docs/results/planted-bugs.json

# Both append what they find line by line and go on where they were ended.
truth: setup
	$(ONE_THREAD) $(BIN)/python scripts/truth.py --resume --out docs/results/truth.json

mutants: setup
	$(ONE_THREAD) $(BIN)/python scripts/mutate.py --resume --out docs/results/mutants.json

advice: setup
	$(ONE_THREAD) $(BIN)/python scripts/advice_proof.py --resume --out docs/results/advice.json

# Flower pins its own typer, rich and protobuf, so the federation has an environment of its own; Ray comes
# with it, and with Dask beside them the workers of sweeps are tested there too.
FLOWER ?= .venv-flower
flower:
	@$(PYTHON) -m venv $(FLOWER) || python3 -m venv $(FLOWER)
	@$(FLOWER)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-flower.txt \
		-e '.[flower,dask]' pytest hypothesis
	$(FLOWER)/bin/python -m pytest tests/peers/test_flower.py tests/peers/flower_deployment.py \
		tests/experiments/test_sweep.py tests/runners/test_threads.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
