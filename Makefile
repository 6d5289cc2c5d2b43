# make demo and make test set themselves up; nothing but Python 3.11 and pip is needed.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Three test processes on two cores, because some tests wait for processes and sockets; BLAS, OpenMP and numba
# threads of their own would only wait for each other.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 NUMBA_NUM_THREADS=1
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

VERIFY := kills fuzz connection hops recomputation charges bugs mutation advice tables spans liars histories \
	membership timing contact

.PHONY: help setup demo test pages docs test-slow bench flower clean verify $(VERIFY:%=verify-%)

help:
	@echo "make demo       set up, then a one-minute tour on embedded data (no torch needed)"
	@echo "make test       set up, then lint, types, doctests and tests"
	@echo "make test-slow  the tests marked slow"
	@echo "make docs       the site in build/site, warnings are errors; then its links, search and outside requests"
	@echo "make pages      the explorer and the reports in a real browser (Debian's Chromium)"
	@echo "make flower     Flower, Ray and Dask in an environment of their own, with their tests"
	@echo "make bench      benchmarks against named rivals, JSON ratios"
	@echo "make verify     the long checks of verification/README.md; one of them, for example: make verify-kills"
	@echo "make setup      only the environment, in $(VENV); make clean removes it and everything built"

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

demo: $(VENV)/.demo
	@$(BIN)/sottovoce demo

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(ONE_THREAD) $(BIN)/python -m pytest -n 3 -m "not slow and not paper and not pages"

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

# What each check of verification/README.md is started with. They write their records into one file; recomputation,
# bugs, mutation and advice also append their cases to a file in build/ and go on from it when started again.
check-kills := kills --kills 10000
check-fuzz := fuzzing --frames 100000000
check-connection := fuzzing --connection --seconds 3600
check-hops := slow_hops --worlds 2000
check-recomputation := recomputation --resume
check-charges := charges --histories 300 --seed 1
check-bugs := planted_bugs --resume
check-mutation := mutation --resume
check-advice := advice_check --resume
check-tables := tables
check-spans := exact_spans --cases 2000 --seed 1
check-liars := liars --worlds 2000
check-histories := histories --histories 200
check-membership := membership_changes
check-timing := timing --rounds 2000 --runs 10
check-contact := first_contact
verify: $(VERIFY:%=verify-%)
$(VERIFY:%=verify-%): verify-%: setup
	$(ONE_THREAD) $(BIN)/python -m verification.$(check-$*) --out docs/results/verification.json

# Flower pins its own typer, rich and protobuf, so the federation has an environment of its own; Ray comes
# with it, and with Dask beside them the workers of sweeps are tested there too.
FLOWER ?= .venv-flower
flower:
	@$(PYTHON) -m venv $(FLOWER) || python3 -m venv $(FLOWER)
	@$(FLOWER)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-flower.txt \
		-e '.[flower,dask]' pytest hypothesis
	$(FLOWER)/bin/python -m pytest tests/integrations/test_flower.py tests/integrations/flower_deployment.py \
		tests/runners/test_sweep.py tests/runners/test_launch.py

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
