"""The class of a task as a user gave it: how this process finds it, and how the processes of a run do."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from securefda.api.given_data import CopyOf
from securefda.api.written_code import Sources, is_of_main
from securefda.errors import ConfigError
from securefda.operations.records import IN_MEMORY, is_shipped
from securefda.operations.run_folder import replace_file
from securefda.tasks import Task, task_class
from securefda.tasks.given import GivenClasses, GivenNumbers, GivenTask, rows_bytes, rows_path

_HEADING = "Written by securefda: what the sites of this run train, as a notebook or script defined it."
_ROWS_MODE = 0o600
_ANY = "target"


def lives_here(task: type[Task]) -> bool:
    """Whether only this process has the class: a notebook or script defined it, or ``task_from`` made it."""
    return is_of_main(task) or (issubclass(task, GivenTask) and task.rows is not None)


def factory_of(task: type[Task]) -> str:
    """Return ``module:Class`` by which this process finds the class.

    Raises:
        ConfigError: it was defined inside a function or another class.
    """
    if "." in task.__qualname__:
        hint = "define it at the top level of a module or notebook"
        raise ConfigError("task", f"{task.__qualname__} was defined inside a function or class", hint=hint)
    if not lives_here(task):
        return f"{task.__module__}:{task.__qualname__}"
    module = sys.modules.setdefault(IN_MEMORY, ModuleType(IN_MEMORY))
    setattr(module, task.__name__, task)  # the latest of this name: a notebook may define it again
    return f"{IN_MEMORY}:{task.__name__}"


def write_task(task: type[Task], folder: Path, target: str, sources: Sequence[str]) -> tuple[str, list[Path], str]:
    """Write a class that only this process has, with the rows of these sites, for processes that start later.

    Returns:
        ``module:Class``, the folders from which it can be imported, and one line that says what was written.

    Raises:
        ConfigError: its source, or that of what it uses, cannot be written.
        SecureFdaError: the disk is full or the folder cannot be written.
    """
    text, name, modules = _source_of(task)
    module = f"task_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{module}.py"
    replace_file(file, text.encode())
    said = f"the processes of the run import {name} from {file}"
    if issubclass(task, GivenTask):
        for path, rows in _files(task, folder, target, sources).items():
            replace_file(path, rows, mode=_ROWS_MODE)
        said += ", and read the rows of their sites beside it"
    return f"{module}:{name}", [folder, *folders_of(modules)], said


def digest_of(factory: str, task: type[Task] | None) -> str:
    """Return a digest of a task's code and, where they are in memory, of its rows; empty where that cannot be known.

    Of a class in a module it is that of the module's source: what the module imports may change unnoticed.
    """
    if task is None:
        if is_shipped(factory):
            return factory
        task = task_class(factory)
    digest = hashlib.sha256()
    try:
        if not lives_here(task):
            digest.update(inspect.getsource(sys.modules[task.__module__]).encode())
            return digest.hexdigest()
        digest.update(_source_of(task)[0].encode())
    except (ConfigError, OSError):
        return ""
    if issubclass(task, GivenTask):
        for path, rows in _files(task, Path(), _ANY, tuple(task.rows or ())).items():
            digest.update(json.dumps([str(path), len(rows)]).encode() + rows)
    return digest.hexdigest()


def folders_of(modules: set[str]) -> list[Path]:
    """Return the folders of these modules, as far as they are not part of this installation of Python."""
    found = set()
    for name in modules:
        top = sys.modules[name.partition(".")[0]]
        if file := getattr(top, "__file__", None):
            folder = Path(file).absolute().parent
            found.add(folder.parent if Path(file).stem == "__init__" else folder)
    roots = {Path(root).absolute() for root in (sys.prefix, sys.base_prefix)}
    return sorted(folder for folder in found if not any(folder.is_relative_to(root) for root in roots))


def _source_of(task: type[Task]) -> tuple[str, str, set[str]]:
    """Return the text of a module with the class, the name of the class there, and the modules that it imports."""
    sources = Sources()
    if not issubclass(task, GivenTask) or task.rows is None:
        name = sources.add(task)
        return sources.text(_HEADING), name, sources.modules
    if isinstance(task.make_model, CopyOf):
        hint = "give the class, or a function that returns a new one: def make_model(): ..."
        raise ConfigError("model", "is a module as it is, and processes would need its code", hint=hint)
    base = GivenNumbers if issubclass(task, GivenNumbers) else GivenClasses
    lines = [
        f"class {task.__name__}({sources.add(base)}):",
        '    """A task that `securefda.task_from` made."""',
        "",
        f"    make_model = staticmethod({sources.add(task.make_model)})",
        f"    given_loss = {f'staticmethod({sources.add(task.given_loss)})' if task.given_loss else None}",
        f"    columns = {task.columns!r}",
        f"    classes = {task.classes!r}",
        f"    separate_rows = {task.separate_rows!r}",
    ]
    return sources.text(_HEADING, "\n".join(lines)), task.__name__, sources.modules


def _files(task: type[GivenTask], folder: Path, target: str, sources: Sequence[str]) -> dict[Path, bytes]:
    """Return the files of these sites' rows, with what they hold; other sites of the data stay in memory."""
    rows = {site: rows for site, rows in (task.rows or {}).items() if site in (target, *sources)}
    files = {rows_path(folder, site, "train"): rows_bytes(own) for site, own in rows.items()}
    return files | ({rows_path(folder, target, "test"): rows_bytes(task.test)} if task.test else {})
