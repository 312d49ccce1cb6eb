# make demo   Fed-BAC, IFCA and HierFAVG on the embedded data, with a report
# make test   lint, types and every test
# make docs   the documentation as a site, in build/site
# make install just the environment
# make lock   raise requirements-dev.lock to the newest versions that pyproject.toml allows
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo install test docs lock clean

KERNEL := $(wildcard src/fedbac/native/*.cpp src/fedbac/native/*.hpp src/fedbac/native/*.inc)
INSTALL := pip install --quiet --disable-pip-version-check
# Everybody tests with the same versions; make test LOCK= takes the newest instead.
LOCK ?= requirements-dev.lock
PIP := $(BIN)/$(INSTALL) $(if $(LOCK),-c $(LOCK))
TORCH := torch==2.13.0

install: $(STAMP)

# torch comes first and pinned: a plain request by another package would pull a much larger build.
$(STAMP): pyproject.toml setup.py $(LOCK) $(KERNEL)
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	$(PIP) -e .
	touch $@

$(STAMP)-dev: $(STAMP)
	$(PIP) -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/fedbac compare fed-bac ifca hierfavg --task demo --seed 0 --seed 1 --out runs/demo --overwrite

test: $(STAMP)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/make_docs.py --check
	$(BIN)/pytest -n 2

# Strict: a warning is an error. The variable silences an advertisement for another program.
docs: $(STAMP)-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# A fresh environment, so that nothing old stays; versions without their build (+cpu) fit every platform.
lock:
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/$(INSTALL) $(TORCH)
	build/lock/bin/$(INSTALL) -e '.[dev]'
	echo "# Versions of the development environment, for x86-64 and 64-bit ARM. Written by: make lock" > requirements-dev.lock
	build/lock/bin/pip freeze --exclude-editable | sed 's/+[^+]*$$//' >> requirements-dev.lock
	rm -rf build/lock

clean:
	rm -rf $(VENV) build runs src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
