"""A task as a site's policy can pin it: by digest, and by the columns that its options say it reads.

Nothing is imported to find the code of a task: whoever signs a policy need not run what it names.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path

_LABEL = b"securefda/1/task\x00"


def task_digest(factory: str, options: Mapping[str, object]) -> str:
    """Return the SHA-256, in hex, of a task's class, options and code; empty where its code is not on this machine.

    The code is the file in which the class is written. Of securefda's own tasks it does not count: their version is
    the package's. Nor do other files that this one imports, or the site's data and mapping.

    Args:
        factory: ``"package.module:Class"``.
        options: of the task, as a configuration holds them.
    """
    own, code = factory.startswith("securefda."), b""
    if not own:
        file = _file_of(factory.partition(":")[0])
        if file is None:
            return ""
        code = file.read_bytes()
    described = json.dumps([factory, options], sort_keys=True, separators=(",", ":"), default=_plain)
    return hashlib.sha256(_LABEL + hashlib.sha256(described.encode("ascii")).digest() + code).hexdigest()


def columns_read(options: Mapping[str, object]) -> tuple[str, ...]:
    """Return the columns that a table's options name, but for ignored ones: those of the model, of label and group."""
    found, columns, label = list[str](), options.get("columns"), options.get("label")
    if not isinstance(columns, Mapping):
        return ()
    for name, column in columns.items():
        if isinstance(column, Mapping) and column.get("type") != "ignored":
            found.append(str(name))
    if isinstance(label, Mapping):
        found += [str(label[part]) for part in ("column", "event") if label.get(part)]
    return tuple(dict.fromkeys([*found, *([str(options["group"])] if options.get("group") else [])]))


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _file_of(module: str) -> Path | None:
    """Return the file of a module, installed or in the current folder, without importing it or its packages."""
    top, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module put into sys.modules by hand can lack a spec
        spec = None
    if spec is not None and not inner:
        places = [Path(spec.origin)] if spec.origin else []
    else:
        roots = [Path(place) for place in spec.submodule_search_locations or ()] if spec else [Path.cwd() / top]
        stems = [root.joinpath(*inner) for root in roots]
        places = [place for stem in stems for place in (stem.with_suffix(".py"), stem / "__init__.py")]
    return next((place for place in places if place.is_file()), None)
