# Two commands set up everything and reuse it when nothing changed: `make train` and `make test`.
# PYTHON chooses the interpreter that .venv is made from, any Python >= 3.10 with venv and pip.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One stamp per set of extras; an install runs again only when one of these files changed.
SETUP_FILES := pyproject.toml constraints.txt hatch_build.py

.PHONY: train test slow docs results learn faults mutants bench lint types clean help

help:
	@echo "make train   train PPO on CartPole-v1 from the shipped config and evaluate it (about a minute)"
	@echo "make test    the fast test suite, the same as 'pytest -q', on two cores"
	@echo "make slow    tests that take minutes: Dreamer's probes, recurrent learners, long commands of the documentation"
	@echo "make docs    the documentation as a site, in build/site; every warning is an error"
	@echo "make results the tables and pictures of docs/results.md, from results/ (trains nothing)"
	@echo "make learn   the slow learning gates"
	@echo "make faults  the long kill and fault tests"
	@echo "make mutants mutation testing (an hour; for developers)"
	@echo "make bench   our speed, alone and against other libraries (long; see docs/benchmarks.md)"
	@echo "make lint    ruff: lint and formatting"
	@echo "make types   mypy"
	@echo "make clean   remove caches and build leftovers (not .venv, not runs)"

$(BIN)/pip:
	@echo "making a virtual environment in $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-core: $(SETUP_FILES) | $(BIN)/pip
	@echo "installing rl-training and what it needs into $(VENV) (some minutes the first time)"
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: $(SETUP_FILES) | $(BIN)/pip
	@echo "installing rl-training and its test tools into $(VENV) (some minutes the first time)"
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test]'
	@touch $@

$(VENV)/.installed-all: $(SETUP_FILES) | $(BIN)/pip
	@echo "installing rl-training, its test tools, MuJoCo and Atari into $(VENV) (some minutes the first time)"
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test,mujoco]'
	@touch $@

# The run directory is numbered when it is taken, so the run just trained is the newest one.
train: $(VENV)/.installed-core
	@$(BIN)/rl-training train ppo/cartpole
	@echo
	@$(BIN)/rl-training evaluate "$$(ls -dt runs/ppo-CartPole-v1-s1 runs/ppo-CartPole-v1-s1-* 2>/dev/null | head -n 1)" --episodes 50

test: $(VENV)/.installed-test
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || echo "no browser found: the tests that look at pages in one are skipped (apt-get install chromium)"
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile

slow: $(VENV)/.installed-test
	@$(BIN)/python -m pytest -q --timeout 0 -m slow

docs: $(VENV)/.installed-test
	@$(BIN)/python docs/build_site.py

results: $(VENV)/.installed-test
	@$(BIN)/python docs/make_results.py

learn: $(VENV)/.installed-all
	@$(BIN)/python -m pytest -q -s --timeout 0 -m learn

faults: $(VENV)/.installed-test
	@$(BIN)/python -m pytest -q --timeout 0 -m faults

mutants: $(VENV)/.installed-test
	@$(BIN)/python tests/mutants --count 400 --seed 1 --jobs 2

bench: $(VENV)/.installed-all
	@$(BIN)/python -m benchmarks

lint: $(VENV)/.installed-test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	@$(BIN)/mypy

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
