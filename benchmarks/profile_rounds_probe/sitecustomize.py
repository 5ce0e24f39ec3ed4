"""Loaded by every process of a profiled run: has it timed as soon as a site's code is there, before that begins.

A process that is no site's (``securefda run`` itself, and what it forks sites from) writes nothing.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

BEGINS = ("securefda.source.process", "securefda.aggregator.process", "securefda.transport.driver")
"""What a site's process imports last before it serves; the third is that of older trees."""


class _ThenStart(Loader):
    """Loads a module as ``loader`` does, and starts the timing when that is done."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        sys.path.append(os.environ["SECUREFDA_BENCHMARKS"])  # behind the tree's own
        from profile_rounds_kinds import start  # noqa: PLC0415 - not before the site's code is there

        start()


class _Wait(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname not in BEGINS:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenStart(spec.loader)
        return spec


sys.meta_path.insert(0, _Wait())
