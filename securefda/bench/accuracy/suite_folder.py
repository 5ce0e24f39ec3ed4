"""The folder of a suite: one line for every finished run, and the settings common to all runs.

``settings.json`` is written before the first run; ``runs.jsonl`` gets a line after each run. The measuring process
holds a lock, so that two processes never add to one folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from securefda import __version__
from securefda.bench.accuracy.federated import RunResult
from securefda.bench.accuracy.plan import Planned, Request, common_settings
from securefda.bench.accuracy.results import Results, RunKey
from securefda.bench.accuracy.suites import SUITES
from securefda.disk import read_whole
from securefda.errors import ConfigError, SecureFdaError
from securefda.operations.run_folder import append_line, read_object, replace_file

SETTINGS_FILE = "settings.json"
RUNS_FILE = "runs.jsonl"
_LOCK_FILE = ".lock"
_SCRATCH = "scratch"
_DIGITS = 6  # significant ones: estimated errors can be tiny
_ANOTHER = "name another folder with --out"


class _SuiteSettings(TypedDict):
    """``settings.json``, see :func:`settings_of`."""

    suite: str
    level: str
    release: str
    federations: dict[str, dict[str, Any]]
    files: dict[str, dict[str, str]]


class _RunLine(TypedDict):
    """A line of ``runs.jsonl``: a :class:`RunKey`, how it was run, and its :class:`RunResult`."""

    data: str
    column: str
    target: str
    rule: str
    seed: int
    level: str
    digest: str
    release: str
    metrics: dict[str, float]
    loss: float
    accuracies: list[float]
    betas: dict[str, list[float | None]]
    delta_errors: list[dict[str, float]]
    rounds_by_rule: dict[str, int]
    clipped: int


_SETTINGS, _RUN = TypeAdapter(_SuiteSettings), TypeAdapter(_RunLine)


class SuiteFolder:
    """A folder in which a suite is being measured; made by `open_folder`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.scratch = path / _SCRATCH

    def finished(self, planned: Iterable[Planned]) -> dict[RunKey, RunResult]:
        """Return all runs that have finished, including those outside this request.

        Raises:
            ConfigError: a line is damaged, or is of one of the ``planned`` runs with another configuration.
        """
        digests = {one.key: one.digest for one in planned}
        results = {}
        for key, digest, result in _runs(self.path / RUNS_FILE):
            if digest != digests.get(key, digest):
                why = f"{key} in {self.path} was run with other settings than this release's suite has"
                raise ConfigError("--out", why, hint=_ANOTHER)
            results[key] = result
        return results

    def add(self, planned: Planned, level: str, result: RunResult) -> None:
        """Add a finished run; it is on the disk when this returns. A torn last line goes first."""
        line = {**asdict(planned.key), "level": level, "digest": planned.digest, "release": __version__}
        append_line(self.path / RUNS_FILE, line | result_line(result))


@contextmanager
def open_folder(path: Path, request: Request) -> Iterator[SuiteFolder]:
    """Open a new folder, or one that was made with the same settings, for one process.

    Raises:
        ConfigError: it was made with other settings, the first of which is the key; or it is being measured into.
        SecureFdaError: it cannot be written.
    """
    folder = SuiteFolder(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / _LOCK_FILE).open("a")
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise ConfigError(str(path), f"cannot be written: {error.strerror}", hint=_ANOTHER) from error
    except OSError as error:
        raise SecureFdaError(f"{path}: cannot be written: {error.strerror}", hint=_ANOTHER) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError("--out", f"another process is measuring in {path}", hint=_ANOTHER) from None
        _keep_settings(path / SETTINGS_FILE, settings_of(request))
        # What a killed process left behind of runs that were under way.
        shutil.rmtree(folder.scratch, ignore_errors=True)
        folder.scratch.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder.scratch, ignore_errors=True)


def read_folder(path: Path) -> tuple[Mapping[str, Any], Results]:
    """Read the settings and all runs of a folder, finished or not.

    Raises:
        ConfigError: there is no suite in it, or a file is damaged.
    """
    settings = _read_settings(path / SETTINGS_FILE)
    if settings is None or settings.get("suite") not in list(SUITES):
        raise ConfigError(str(path), "holds no suite of this release")
    runs = {key: result for key, _, result in _runs(path / RUNS_FILE)}
    return settings, Results(SUITES[settings["suite"]], runs)


def result_line(result: RunResult) -> dict[str, Any]:
    """Return a result as plain values, rounded; None for a value that is not finite, or an accuracy that is none."""
    return {name: _rounded(value) for name, value in ({"accuracy": result.accuracy} | asdict(result)).items()}


def result_from(line: Mapping[str, Any]) -> RunResult:
    """Return the result in a line of ``runs.jsonl``."""
    loss = line["loss"]
    return RunResult(
        metrics=line["metrics"],
        loss=float("nan") if loss is None else loss,
        accuracies=tuple(line["accuracies"]),
        betas={source: tuple(betas) for source, betas in line["betas"].items()},
        delta_errors=tuple({**errors} for errors in line["delta_errors"]),
        rounds_by_rule=line["rounds_by_rule"],
        clipped=line["clipped"],
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if not isinstance(value, float):
        return value
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def settings_of(request: Request) -> dict[str, Any]:
    """Return what must be the same for all runs of a folder, with the digests of the data files."""
    common = common_settings(request)
    folders = {name: request.folder_of(name) for name in common}
    return {
        "suite": request.suite,
        "level": request.level,
        "release": __version__,
        "federations": common,
        "files": {name: _digests(folder) for name, folder in folders.items() if folder is not None},
    }


def _digests(folder: Path) -> dict[str, str]:
    """Return file name -> SHA-256 for the files of a data set, without those in sub-folders."""
    digests = {}
    try:
        for file in sorted(folder.iterdir()):
            if file.is_file():
                with file.open("rb") as stream:
                    digests[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError("--data-dir", f"{error.filename}: {error.strerror}") from error
    return digests


def _keep_settings(file: Path, asked: dict[str, Any]) -> None:
    """Refuse settings that differ from the stored ones; add new data sets to them."""
    runs = file.parent / RUNS_FILE
    kept = _read_settings(file)
    if kept is None and runs.exists():
        raise ConfigError("--out", f"{file.parent} holds runs of unknown settings", hint=_ANOTHER)
    if kept is None or not runs.exists():
        kept = {}
    for name, value in asked.items():
        if isinstance(value, Mapping):
            both = {data: table for data, table in value.items() if data in kept.get(name, {})}
            for data, table in both.items():
                _require_same(file.parent, kept[name][data], table)
        elif kept:
            _require_same(file.parent, {name: kept.get(name)}, {name: value})
    merged = {
        name: {**kept.get(name, {}), **value} if isinstance(value, Mapping) else value for name, value in asked.items()
    }
    if merged != kept:
        replace_file(file, json.dumps(merged, indent=1, ensure_ascii=False).encode() + b"\n")


def _require_same(folder: Path, kept: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    for key in dict.fromkeys((*kept, *asked)):
        if kept.get(key) != asked.get(key):
            why = f"{folder} was measured with {_shortened(kept.get(key))}, now it is {_shortened(asked.get(key))}"
            raise ConfigError(key, why, hint=_ANOTHER)


def _shortened(value: object) -> str:
    text = "nothing" if value is None else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:12]}...{text[-4:]}"


def _read_settings(file: Path) -> dict[str, Any] | None:
    return read_object(file, 1, read_whole(file), _SETTINGS) if file.exists() else None


def _runs(file: Path) -> Iterator[tuple[RunKey, str, RunResult]]:
    """Yield key, digest and result of each whole line; what follows the last line end was cut off by a crash."""
    whole = read_whole(file, None).split(b"\n")[:-1] if file.exists() else []
    for number, text in enumerate(whole, start=1):
        line = read_object(file, number, text, _RUN)
        key = RunKey(line["data"], line["column"], line["target"], line["rule"], line["seed"])
        yield key, line["digest"], result_from(line)
