# Each target is sufficient on its own: the first one called makes .venv and installs the locked versions.
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
SHELL := /bin/bash

VENV := .venv
STAMP := $(VENV)/installed
# Files are dealt to two processes, as what a file's tests share is made once, and Ray starts once in each process; in
# their order, as those of few and long tests would otherwise come last. Bytecode is kept even where the environment
# forbids it: rewriting the assertions of all tests takes ten seconds a process.
PYTEST := PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=10
LOCK_VENV := .venv-lock
SUITABLE := import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))

# PYTHON=/path/to/python make ... chooses another interpreter. The lock is tested with 3.11, so that comes first.
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python /usr/bin/python3; do \
	if "$$python" -c '$(SUITABLE)' >/dev/null 2>&1; then echo "$$python"; break; fi; done)

.PHONY: help install demo test lint style gate gpu language-model stress chaos docs gallery lock size clean

help:
	@echo 'make demo    the whole program on ten clients of real digits (ARGS= goes to fedscout run)'
	@echo 'make test    the quick tests, about six minutes on two cores (ARGS= goes to pytest)'
	@echo 'make lint    ruff (lint and format) and mypy'
	@echo 'make gate    lint and the tests, the slow ones too, about nine minutes on two cores: what CI runs'
	@echo 'make gpu     the tests that need a GPU, then a round on it beside other simulators'
	@echo 'make language-model  fetch, build and serve a language model to test with (MODEL=small PORT=18081 for a small one)'
	@echo 'make stress  what kills studies, starts whole clusters or takes full sizes, one after the other'
	@echo 'make chaos   kill processes of a study at random (CHAOS_KILLS=50 CHAOS_SEED=1)'
	@echo 'make docs    the documentation as a site: site/index.html'
	@echo 'make gallery the six studies of docs/gallery.md, about a minute; make docs links their reports'
	@echo 'make size    lines of code and modules, by package'
	@echo 'make lock    resolve the dependencies anew and write constraints.txt'
	@echo 'make clean   remove .venv and everything that tools have left'

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@"$(PYTHON)" -c '$(SUITABLE)' 2>/dev/null || { echo "fedscout needs Python 3.11, 3.12 or 3.13 with venv;" \
		"found '$(PYTHON)'. Install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo 'Installing the locked versions into $(VENV); the first time takes a few minutes.'
	@"$(PYTHON)" -m venv $(VENV)
	@$(VENV)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	@$(VENV)/bin/fedscout run $(ARGS)

test: $(STAMP)
	$(PYTEST) -m 'not slow and not stress' $(ARGS)

lint: style
	$(VENV)/bin/mypy

style: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

# One of the two processors would be idle for the minute that types take, so the tests begin meanwhile.
gate: style
	$(VENV)/bin/mypy & types=$$!; $(PYTEST) -m 'not stress' $(ARGS); tests=$$?; \
		wait $$types || { echo 'the types are wrong: see above' >&2; exit 1; }; exit $$tests

gpu: $(STAMP)
	$(VENV)/bin/python -m pytest -m gpu $(ARGS)
	$(VENV)/bin/fedscout bench engine --device cuda --peers --repeats 2

# Serves until it is interrupted; the tests that ask it are run beside it, with the address that it prints.
language-model:
	@PYTHON="$(PYTHON)" bash tests/language_model/serve.sh $(or $(MODEL),medium) $(or $(PORT),18080)

stress: $(STAMP)
	$(VENV)/bin/python -m pytest -m stress $(ARGS)

# Without CHAOS_SEED one is drawn; it is printed, and gives the same plan of kills again.
chaos: $(STAMP)
	@$(VENV)/bin/python -m tests.faults.chaos --kills $(or $(CHAOS_KILLS),50) \
		$(if $(CHAOS_SEED),--seed $(CHAOS_SEED)) $(ARGS)

# The commands are those of the page, in which some go on over a second and a third line.
gallery: $(STAMP)
	@sed -e ':line' -e '/\\$$/{N; s/\\\n *//; b line' -e '}' docs/gallery.md | grep '^fedscout run .*--out gallery/' \
		| while read -r command; do PATH="$(CURDIR)/$(VENV)/bin:$$PATH" bash -c "$$command" || exit 1; done

# Without the network; a link or an anchor that leads nowhere ends it. The variable silences a notice of the theme's makers.
docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict
	@echo 'site/index.html'

# A fresh environment holds nothing but what the project brings, so what pip freezes there is the lock. A version's
# local part ("+cpu") names a build of this machine and is left out.
lock:
	"$(PYTHON)" -m venv --clear $(LOCK_VENV)
	$(LOCK_VENV)/bin/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	head -2 constraints.txt > constraints.new
	set -o pipefail; $(LOCK_VENV)/bin/python -m pip freeze --all --exclude pip --exclude fedscout \
		| sed -E 's/\+[^ ]*$$//' | LC_ALL=C sort -f >> constraints.new
	mv constraints.new constraints.txt
	rm -rf $(LOCK_VENV)

size: $(STAMP)
	@$(VENV)/bin/python -m tests.code_size

clean:
	rm -rf $(VENV) $(LOCK_VENV) site gallery build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis constraints.new
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
