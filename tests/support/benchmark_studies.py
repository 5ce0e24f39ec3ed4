"""Imports the studies of ``benchmarks/``, which are no package, for their tests."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@contextmanager
def importable_studies() -> Iterator[Callable[[str], ModuleType]]:
    """Import studies by name within the block; after it, no module of their folder is left in ``sys.modules``."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name, module in list(sys.modules.items()):
            if (file := getattr(module, "__file__", None)) and Path(file).parent == BENCHMARKS:
                del sys.modules[name]


@contextmanager
def imported_study(name: str) -> Iterator[ModuleType]:
    """Import one study, as :func:`importable_studies`."""
    with importable_studies() as imported:
        yield imported(name)
