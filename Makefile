# Two commands matter: `make demo` and `make test`. Both work on a fresh clone with Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
DATA ?= ../shared/data

.PHONY: demo test check lint format bench pack reproduction small-network clean

demo: $(VENV)/.installed
	$(BIN)/oodles demo

test: $(VENV)/.developed
	$(BIN)/python -m pytest

check: $(VENV)/.developed lint
	$(BIN)/python -m pytest

lint: $(VENV)/.developed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.developed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Speed and memory beside the obvious way to do the same, as ratios within one run.
bench: $(VENV)/.developed
	$(BIN)/python -m benchmarks

# Rebuild the demo's feature pack from the original archives (see the card in src/oodles/demo_pack).
pack: $(VENV)/.developed
	$(BIN)/python tools/build_demo_pack.py $(DATA) $(DATA)/checkpoints/densenet101-cifar10.pth.tar

# Measure every table and figure of the paper on the data at hand and write docs/reproduction.md.
reproduction: $(VENV)/.developed
	$(BIN)/python tools/write_reproduction.py $(DATA)

# Measure every detector on the shipped network and write docs/cifar10-small.md; RUNS/godin is the short DeConf run.
RUNS ?= runs
small-network: $(VENV)/.developed
	$(BIN)/python tools/write_small_network.py $(DATA) $(RUNS)/godin

# The build tools come from the same pinned list, so nothing is fetched behind its back.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt hatchling editables
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable .
	touch $@

$(VENV)/.developed: $(VENV)/.installed
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
