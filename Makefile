# Two commands matter: `make demo` and `make test`. Both work on a fresh clone with Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# one process per core, with one thread each: threads of several processes would slow each other down
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto
# The later interpreters that `make check-more` tries.
PYTHONS ?= $(wildcard /usr/bin/python3.1[2-9] /usr/local/bin/python3.1[2-9] $(HOME)/.pyenv/versions/3.1[2-9].*/bin/python)
# What some studies need beside the extra `dev`.
EXTRA_load := bench
EXTRA_page_image := browser
EXTRA_scale := ray
EXTRA_third_party := all

.PHONY: demo test check lint format docs bench fuzz study clean check-more

demo: $(VENV)/.installed
	$(BIN)/oodles demo

# Everything but what needs other environments, minutes of load, a browser or Ray: `make check-more` runs that.
test: $(VENV)/.with-dev
	$(PYTEST) --dist worksteal -m "not ray and not browser and not install and not soak"

# Before a commit: lint, and all tests but the slow ones.
check: lint
	$(PYTEST) --dist worksteal

lint: $(VENV)/.with-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.with-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The site, in docs/_build/html: warnings are errors, and every link inside it leads somewhere. OODLES_DOCS_QUICK=1 leaves
# out the examples of the gallery.
docs: $(VENV)/.with-docs
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html
	$(BIN)/python -m studies check_site docs/_build/html

# Speed and memory beside other packages, for an hour on two quiet cores: docs/performance.md.
bench: $(VENV)/.with-bench
	$(BIN)/python -m studies bench

# Attack with hostile files, texts, numbers and kills, for an hour or so: docs/reliability.md. The tests run a short version.
fuzz: $(VENV)/.with-dev
	$(BIN)/python -m tests.fuzz --write-page

# Measure and write a page or a file: `make study NAME=reproduction ARGS='--data ../data'`; without NAME, list the studies.
study: $(VENV)/.with-$(or $(EXTRA_$(NAME)),dev)
	$(BIN)/python -m studies $(NAME) $(ARGS)

# What `make test` leaves out: the wheel in environments of its own, also with other Pythons and the oldest versions allowed;
# the service's page in headless Chromium; the service under load; two Ray workers. `make check-more MARK=ray` runs one.
MARK ?= install or browser or soak or ray
check-more: $(VENV)/.with-browser
	OODLES_PYTHONS='$(PYTHONS)' $(PYTEST) --dist loadfile -m "$(MARK)"

clean:
	rm -rf $(VENV) .coverage htmlcov docs/_build docs/gallery .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Installation: the build tools come from the same pinned list, so nothing else is downloaded. ------
INSTALL := $(PIP) install --constraint constraints.txt --no-build-isolation --editable

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint constraints.txt hatchling editables
	$(INSTALL) '.[torch]'
	touch $@

$(VENV)/.with-%: $(VENV)/.installed
	$(INSTALL) '.[dev,$*]'
	touch $@

$(VENV)/.with-browser: $(VENV)/.installed
	$(INSTALL) '.[dev,browser,ray]'
	{ command -v chromium && command -v chromedriver; } >/dev/null || { apt-get --quiet=2 update && \
	  apt-get --quiet=2 install --yes --no-install-recommends chromium chromium-driver fonts-dejavu-core; }
	command -v npm >/dev/null || apt-get --quiet=2 install --yes --no-install-recommends npm
	npm install --silent --no-save --no-package-lock --prefix $(VENV)/axe axe-core@4.14.0
	touch $@
