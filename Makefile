# make demo   Fed-BAC, IFCA and HierFAVG on the embedded data, with a report
# make test   lint, types and every test
# make install just the environment
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo install test clean

KERNEL := $(wildcard src/fedbac/native/*.cpp src/fedbac/native/*.hpp src/fedbac/native/*.inc)
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

install: $(STAMP)

# torch comes first and pinned: a plain request by another package would pull a much larger build.
$(STAMP): pyproject.toml setup.py $(KERNEL)
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
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

clean:
	rm -rf $(VENV) build runs src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
