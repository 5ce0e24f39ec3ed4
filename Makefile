# make demo         set up, then the main job: five sources and a target as separate processes, masked updates
# make test         set up, then the quick tests; 5 to 6 minutes on two cores
# make test-deep    all tests in their long forms; PART=2 runs the second of four parts
# make docs         the manual, as HTML in docs/_build/html
# make lint         what CI checks beside the tests
# make lock         renew requirements.lock from pyproject.toml

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Where nothing compiled is kept, every process that a test starts compiles the package anew, and so does every worker.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-deep docs lint lint-style lint-types lint-imports lint-generated lint-growth lock clean
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
lint: lint-style lint-types lint-imports lint-generated lint-growth

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

lint-growth: $(READY)
	$(BIN)/python tests/run.py --check

$(READY): requirements.lock pyproject.toml
	@python=; for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	    if $$candidate -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; \
	    then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then echo "error: no Python 3.11, 3.12 or 3.13 found; name one: make PYTHON=/path/to/python" >&2; exit 4; fi; \
	echo "setting up $(VENV) with $$($$python --version), once"; \
	$$python -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(READY)

lock:
	rm -rf $(VENV).lock
	python3 -m venv $(VENV).lock
	$(VENV).lock/bin/python -m pip install --quiet torch==2.13.0
	$(VENV).lock/bin/python -m pip install --quiet setuptools --editable '.[dev]'
	$(VENV).lock/bin/python -m pip freeze --all --exclude-editable --exclude pip | sed 's/+cpu//' | grep -v -i '^nvidia-\|^triton' > requirements.lock
	rm -rf $(VENV).lock

clean:
	rm -rf $(VENV) docs/_build build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
