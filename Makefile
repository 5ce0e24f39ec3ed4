# make demo         set up, then the main job: five sources and a target as separate processes, masked updates
# make test         set up, then the quick tests; 5 minutes on two cores
# make test-deep    all tests in their long forms; PART=2 runs the second of four parts
# make docs         the manual, as HTML in docs/_build/html
# make lint         what CI checks beside the tests
# make lock         renew the locks, requirements*.lock, from pyproject.toml
# make audit-deps   look up what is locked in a database of known vulnerabilities
# make release      what a release consists of, of the last commit, in OUT=dist; KEY=FILE signs it
#
# TORCH=cuda sets up, in a new .venv, with PyTorch's build for NVIDIA GPUs, several GB; without it, with the one for CPUs.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TOOLS := .venv.tools
TORCH := cpu
CPU_INDEX := https://download.pytorch.org/whl/cpu
INSTALL := -m pip install --quiet --disable-pip-version-check

# Where nothing compiled is kept, every process that a test starts compiles the package anew, and so does every worker.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-deep docs lint lint-style lint-types lint-imports lint-generated lint-prose lint-growth lock audit-deps release clean
.DEFAULT_GOAL := demo

demo: $(READY)
	@$(BIN)/securefda demo

test: $(READY)
	@$(BIN)/python tests/run.py

test-deep: $(READY)
	@$(BIN)/python tests/run.py --deep $(if $(PART),--part $(PART))

docs: $(READY)
	@$(BIN)/python -m sphinx -q -E -W --keep-going -c docs . docs/_build/html
	@echo "the manual: docs/_build/html/index.html"

# Each by itself, so that `make -j` runs them beside each other.
lint: lint-style lint-types lint-imports lint-generated lint-prose lint-growth

lint-style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-types: $(READY)
	$(BIN)/mypy

lint-imports: $(READY)
	$(BIN)/lint-imports

lint-generated: $(READY)
	$(BIN)/python protos/generate.py --check
	$(BIN)/python tests/vectors/generate.py --check
	$(BIN)/python -m threat_model.generate --check
	$(BIN)/python benchmarks/tables.py --check
	$(BIN)/python docs/generate.py --check

lint-prose: $(READY)
	$(BIN)/python docs/prose.py

lint-growth: $(READY)
	$(BIN)/python tests/run.py --check

$(READY): requirements-dev.lock requirements-torch-$(TORCH).lock pyproject.toml
	@python=; for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	    if $$candidate -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; \
	    then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then echo "error: no Python 3.11, 3.12 or 3.13 found; name one: make PYTHON=/path/to/python" >&2; exit 4; fi; \
	echo "setting up $(VENV) with $$($$python --version), once"; \
	$$python -m venv $(VENV)
	@$(BIN)/python $(INSTALL) --require-hashes --no-deps --requirement requirements-torch-$(TORCH).lock \
	    $(if $(filter cpu,$(TORCH)),--retries 2 --extra-index-url $(CPU_INDEX))
	@$(BIN)/python $(INSTALL) --require-hashes --requirement requirements-dev.lock
	@$(BIN)/python $(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $(READY)

$(TOOLS)/.ready: requirements-tools.lock | $(READY)
	@$(BIN)/python -m venv $(TOOLS)
	@$(TOOLS)/bin/python $(INSTALL) --require-hashes --requirement requirements-tools.lock
	@touch $@

# Resolved for all Pythons and platforms at once. Each build of PyTorch has a lock of its own: from hashes of both, pip would choose. CUDA_ONLY is
# what only the build for GPUs needs. Only wheels: pip checks no hash of what a source package needs to be built.
CUDA_ONLY := cuda-bindings cuda-toolkit nvidia-cudnn-cu13 nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvshmem-cu13 triton
COMPILE := $(TOOLS)/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --fork-strategy fewest --generate-hashes \
    --only-binary :all: --emit-build-options --annotation-style line --custom-compile-command 'make lock'
WITHOUT_TORCH := printf '%s\n' $(CUDA_ONLY) | $(COMPILE) --excludes - --no-emit-package torch --group torch pyproject.toml

lock: $(TOOLS)/.ready
	$(WITHOUT_TORCH) --extra dev --output-file requirements-dev.lock >/dev/null
	$(WITHOUT_TORCH) --constraint requirements-dev.lock --output-file requirements.lock >/dev/null
	$(COMPILE) --group tools --output-file requirements-tools.lock >/dev/null
	$(COMPILE) --group torch --constraint requirements-dev.lock --output-file requirements-torch-cuda.lock >/dev/null
	$(COMPILE) --group torch --no-deps --default-index $(CPU_INDEX) --output-file requirements-torch-cpu.lock >/dev/null
	PATH="$(CURDIR)/$(TOOLS)/bin:$$PATH" $(BIN)/python docs/support.py

audit-deps: $(TOOLS)/.ready
	@.ci/audit-deps $(TOOLS)/bin/pip-audit

OUT := dist
release: $(READY) $(TOOLS)/.ready
	@PATH="$(CURDIR)/$(TOOLS)/bin:$$PATH" $(BIN)/python .ci/release.py build "$(OUT)" $(if $(KEY),--sign "$(KEY)")

clean:
	rm -rf $(VENV) $(TOOLS) docs/_build build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
