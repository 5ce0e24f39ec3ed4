"""The run folder: the files of a run, complete at every moment, even after a crash or on a full disk.

``summary.json``, ``metrics.jsonl`` (a line per round), ``model.safetensors``, ``report.html``, ``model-card.md``, and
``sites/SITE/`` with the files of one site. Files are replaced, and lines appended, as a whole, so that a reader never
sees half of either.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from securefda import formats
from securefda.disk import MAX_FILE_BYTES, open_patiently, read_whole, whole_lines, write_file
from securefda.errors import ConfigError, SecureFdaError
from securefda.operations.records import RoundLine, SiteLine, Summary
from securefda.parse import BeyondBounds, json_value

SUMMARY_FILE = "summary.json"
METRICS_FILE = "metrics.jsonl"
MODEL_FILE = "model.safetensors"
BEST_FILE = "best.safetensors"
ADAPTED_FILE = "adapted.safetensors"
HEAD_FILE = "head.safetensors"
REPORT_FILE = "report.html"
CARD_FILE = "model-card.md"
CARD_JSON_FILE = "model-card.json"
SITES_FOLDER = "sites"
TASK_FOLDER = "task"
ASKED_FILE = "asked.sha256"
REFUSED_FOLDER = "refused"
ROUND, SITE, SUMMARY = TypeAdapter(RoundLine), TypeAdapter(SiteLine), TypeAdapter(Summary)
"""The forms of what is in a run folder."""

_FILE_MODE = 0o666  # less the umask
_OWN_FILE_MODE = 0o600
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class RunFolder:
    """Writes one run folder. An existing one is continued.

    Raises:
        SecureFdaError: from every method, where the disk is full or the folder cannot be written; what was written
            before stays as it was.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with _explaining(path):
            path.mkdir(parents=True, exist_ok=True)

    def site(self, site_id: str) -> Path:
        """Return the folder of one site, made on demand."""
        folder = self.path / SITES_FOLDER / site_id
        with _explaining(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def has_rounds(self) -> bool:
        """Whether a round has been written."""
        return (self.path / METRICS_FILE).exists()

    def append_round(self, line: RoundLine) -> None:
        """Add a line to ``metrics.jsonl``; it is on the disk when this returns."""
        append_line(self.path / METRICS_FILE, line)

    def append_site_round(self, site_id: str, line: SiteLine) -> None:
        """Add a line to a source's own ``metrics.jsonl``."""
        append_line(self.site(site_id) / METRICS_FILE, line)

    def keep_refused(self, site_id: str, line: SiteLine, header: bytes) -> None:
        """Keep a header that a source's policy refused, and the line about it, among the source's own files."""
        keep_refused(self.site(site_id), line, header)

    def write_summary(self, summary: Summary) -> None:
        """Replace ``summary.json``."""
        text = json.dumps(finite(summary.as_json()), indent=2, ensure_ascii=False, allow_nan=False)
        self.write(SUMMARY_FILE, text.encode("utf-8") + b"\n")

    def write(self, name: str, data: bytes) -> None:
        """Replace the file ``name`` with ``data``, or leave it as it is."""
        replace_file(self.path / name, data)

    def write_head(self, rows: bytes | None) -> None:
        """Write the target's rows that predictions compare with; nothing if there are none."""
        if rows is not None:
            replace_file(self.path / HEAD_FILE, rows, mode=_OWN_FILE_MODE)

    def write_adapted(self, model: bytes | None) -> None:
        """Write the model that the target adapted to its rows, for its own eyes; None deletes what was there."""
        path = self.path / ADAPTED_FILE
        if model is not None:
            replace_file(path, model, mode=_OWN_FILE_MODE)
        else:
            with _explaining(path):
                path.unlink(missing_ok=True)


_WRITTEN = (
    *(SUMMARY_FILE, METRICS_FILE, REPORT_FILE, CARD_FILE, CARD_JSON_FILE, SITES_FOLDER, "kits", "audit", "tensorboard"),
    *(TASK_FOLDER, ASKED_FILE),
    *("*.safetensors", "model.onnx", "model.pt", "model.*.card.md", "model.*.card.json"),
    *("state.sqlite*", "settings.json", "status.json", ".status.json.*"),
    *("*.log", "*.log.[0-9]*", "*.jsonl", "*.jsonl.[0-9]*"),
)
"""The files that a run may write into its folder, including logs under the usual names."""


_ONLY_OF_A_RUN = {SUMMARY_FILE, METRICS_FILE, SITES_FOLDER, "state.sqlite", "status.json"}
"""Names that only a run folder has; the first that a site's process writes is among them."""

_IGNORED = {"lost+found"}  # of a disk that is mounted for runs


def require_run_folder(path: Path, key: str = "--out") -> None:
    """Check that a run may be written into ``path``: it is missing or empty, or holds a run already.

    Args:
        path: the folder.
        key: which names it, for the error.

    Raises:
        ConfigError: it holds other files, or is no folder. Nothing was written.
    """
    if not path.exists():
        return
    if not path.is_dir():
        raise ConfigError(key, f"{path} is no folder", hint="name a new folder, or an empty one")
    names = sorted({entry.name for entry in path.iterdir()} - _IGNORED)
    strange = _strange(names)
    if strange and not _ONLY_OF_A_RUN & set(names):
        why = f"{path} holds {strange[0]}{_and_more(strange)}, and is no run folder"
        raise ConfigError(key, why, hint="name a new folder, or an empty one")


def _strange(names: Sequence[str]) -> list[str]:
    return [name for name in names if not any(fnmatch(name, form) for form in _WRITTEN)]


def _and_more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def clear_run(path: Path) -> None:
    """Delete the run in ``path``, all of it; a folder that is not there or empty is left as it is.

    Raises:
        ConfigError: the folder holds something that no run writes, or no run; nothing was deleted.
        SecureFdaError: a file cannot be deleted.
    """
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise ConfigError(str(path), "is no folder", hint="name the run folder itself")
    entries = sorted(path.iterdir()) if path.exists() else []
    strange = _strange([entry.name for entry in entries])
    if strange:
        hint = "nothing was deleted; move it away, or name another folder"
        raise ConfigError(str(path), f"holds {strange[0]}{_and_more(strange)}, which no run writes", hint=hint)
    marks = {SUMMARY_FILE, METRICS_FILE, ASKED_FILE, "kits", SITES_FOLDER}
    if entries and not marks & {entry.name for entry in entries}:
        raise ConfigError(str(path), "is no run folder", hint=f"nothing was deleted; a run folder holds {METRICS_FILE}")
    with _explaining(path):
        for entry in entries:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The contents of a run folder: ``summary`` is None until the run ends, also one that was interrupted and goes on;
    ``sites`` are the sources' own lines.
    """

    path: Path
    summary: Mapping[str, Any] | None
    rounds: tuple[RoundLine, ...]
    sites: Mapping[str, tuple[SiteLine, ...]]


def read_run(path: Path) -> RunRecord:
    """Read a run folder, finished or not.

    Raises:
        ConfigError: there is no run in ``path``, or a file in it is damaged.
        OSError: a file is unreadable, no regular file, or larger than what a run writes.
    """
    if not (path / METRICS_FILE).exists() and not (path / SUMMARY_FILE).exists():
        raise ConfigError(str(path), "is no run folder", hint=f"a run folder holds {METRICS_FILE}")
    sites = {
        file.parent.name: tuple(cast(list[SiteLine], _read_lines(file, SITE)))
        for file in sorted((path / SITES_FOLDER).glob(f"*/{METRICS_FILE}"))
    }
    rounds = cast(list[RoundLine], _read_lines(path / METRICS_FILE, ROUND))
    summary = read_summary(path / SUMMARY_FILE) if (path / SUMMARY_FILE).exists() else None
    return RunRecord(path, None if is_outdated(summary, rounds) else summary, tuple(rounds), sites)


def is_outdated(summary: Mapping[str, Any] | None, rounds: Iterable[RoundLine]) -> bool:
    """Whether the run went on after a summary was written: an interruption leaves one, which the next end replaces."""
    return summary is not None and len({line["round"] for line in rounds}) > summary["rounds"] + summary["rounds_lost"]


def finished_summary(path: Path) -> Summary:
    """Read the summary of a run folder whose run has ended.

    Raises:
        ConfigError: it is damaged.
    """
    return summary_of(read_summary(path / SUMMARY_FILE))


def summary_of(value: Mapping[str, Any]) -> Summary:
    """Return what is read from a ``summary.json`` as the object that was written; keys of later versions go."""
    return Summary(**{one.name: value[one.name] for one in fields(Summary) if one.name in value})


def keep_refused(folder: Path, line: SiteLine, header: bytes) -> None:
    """Append the line of a refused header to a site's metrics, and keep its signed bytes for ``policy check``.

    Of the headers that one key refused the last is kept, so that no aggregator can fill the disk with them.
    """
    append_line(folder / METRICS_FILE, line)
    refused = folder / REFUSED_FOLDER
    with _explaining(refused):
        refused.mkdir(exist_ok=True)
    replace_file(refused / f"{line['refused']['key']}.header", header)


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append one JSON line and force it to the disk; a torn line that a crash left behind goes first.

    Raises:
        SecureFdaError: the disk is full or the file cannot be written; the file then ends with its last whole line.
    """
    data = json.dumps(finite(line), ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n"
    with _explaining(path), open(path, "a+b", buffering=0, opener=open_patiently) as file:
        size, whole = file.tell(), 0
        if path.is_file():
            file.seek(0)
            whole = file.read().rfind(b"\n") + 1
        if whole < size:
            file.truncate(whole)
        try:
            written = file.write(data)
            if written != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file.fileno())
        except OSError:
            if path.is_file():
                file.truncate(whole)
            raise


def replace_file(path: Path, data: bytes, *, mode: int = _FILE_MODE) -> None:
    """Replace a file so that readers, and a machine that loses power, find the old contents or the new.

    Raises:
        SecureFdaError: the disk is full or the file cannot be written; the old contents stay.
    """
    with _explaining(path):
        write_file(path, data, mode)


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _NO_SPACE:
            hint = "free some space, then start again: what was written before is whole"
            raise SecureFdaError(f"{path}: the disk is full", hint=hint) from error
        hint = "name another folder with --out, or check its permissions"
        hint = "name a file, not a folder" if error.errno == errno.EISDIR else hint
        if isinstance(error, NotADirectoryError | FileExistsError | IsADirectoryError | PermissionError):
            raise ConfigError(str(path), f"cannot be written: {error.strerror}", hint=hint) from error
        raise SecureFdaError(f"{path}: cannot be written: {error.strerror}", hint=hint) from error


def finite(value: Any) -> Any:
    """Prepare a value for a JSON encoder: JSON has no NaN, so a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_lines(path: Path, form: TypeAdapter[Any]) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [read_object(path, number, line, form) for number, line in enumerate(whole_lines(path), start=1)]


def read_summary(path: Path) -> dict[str, Any]:
    """Read a ``summary.json``.

    Raises:
        ConfigError: it is damaged, or a later release wrote it in another format.
        OSError: it is unreadable, no regular file, or larger than ``MAX_FILE_BYTES``.
    """
    data = read_whole(path, MAX_FILE_BYTES)
    if why := formats.SUMMARY.why_not_of(data):
        raise ConfigError(str(path), why, hint="read this run folder with that release")
    return read_object(path, 1, data, SUMMARY)


def _is_vast(value: Any) -> bool:
    """Whether a number is not finite or so large that sums and charts of it would not be."""
    if isinstance(value, dict | list):
        return any(map(_is_vast, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and not abs(value) <= _LARGEST


_LARGEST = 1e100
_DAMAGED = "put the file back as the run wrote it, or name another run folder"


def read_object(path: Path, number: int, text: bytes, form: TypeAdapter[Any]) -> dict[str, Any]:
    """Parse a line of a JSON lines file, or a file with one object, as ``form``.

    Raises:
        ConfigError: it is no object of the form, or holds what nothing here writes: nesting without end, say.
    """
    try:
        value = json_value(text)
    except BeyondBounds as error:
        raise ConfigError(str(path), f"line {number} {error}", hint=_DAMAGED) from error
    except ValueError as error:
        raise ConfigError(str(path), f"line {number} is not JSON", hint=_DAMAGED) from error
    if not isinstance(value, dict):
        raise ConfigError(str(path), f"line {number} is not a JSON object", hint=_DAMAGED)
    if _is_vast(value):
        raise ConfigError(str(path), f"line {number} holds a number that no run writes", hint=_DAMAGED)
    try:
        form.validate_json(text, strict=True)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            if detail["type"] != "float_type" or detail["input"] is not None:  # null is a figure that was not finite
                key = ".".join(map(str, detail["loc"]))[:100]
                raise ConfigError(str(path), f"line {number}: {key} is not as a run writes it", hint=_DAMAGED) from None
    return value
