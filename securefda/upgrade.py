"""What this release makes of the files in a site's or a run's folder, and the migration of those that have one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from securefda import formats
from securefda.audit.log_records import Record, RecordError
from securefda.audit.reading import LogFolder
from securefda.disk import read_file, read_start, write_file
from securefda.errors import ConfigError, SecureFdaError
from securefda.formats import FileFormat
from securefda.site.policy.signed import with_policy_text

_NAMED = {
    "kit.json": formats.KIT,
    "roster.json": formats.ROSTER,
    "rosters.json": formats.SEEN_ROSTERS,
    "request.json": formats.REQUEST,
    "policy.sig": formats.POLICY,
    "runs.sqlite": formats.RUN_BOOK,
    "state.sqlite": formats.RUN_STATE,
    "settings.json": formats.RUN_SETTINGS,
    "status.json": formats.PROCESS_STATE,
    "summary.json": formats.SUMMARY,
    "model-card.json": formats.MODEL_CARD,
    "checkpoint": formats.LOG,
}
_LEDGERS = "ledgers"

Migration = Callable[[Path, bytes], bytes]
"""Makes the next format of a file; its path is for the files beside it. Raises ConfigError if it cannot."""


def _policy_from_0(file: Path, data: bytes) -> bytes:
    return with_policy_text(file, data, read_file(file.with_suffix(".toml")).data)


MIGRATIONS: Mapping[tuple[FileFormat, int], Migration] = {(formats.POLICY, 0): _policy_from_0}
"""By format and number, the step to the next number."""


class Verdict(StrEnum):
    """What this release makes of a file."""

    READ = "read"
    MIGRATE = "to migrate"
    NOT_READ = "not read"


@dataclass(frozen=True, slots=True)
class Found:
    """A file by its path below the folder. ``why`` says why it is not read as it is; ``number`` is None without one."""

    file: str
    what: str
    number: int | None
    verdict: Verdict
    why: str = ""


class NotOfThisRelease(SecureFdaError):
    """Files of a folder have to be migrated, or belong to another release."""


def examine(folder: Path) -> tuple[Found, ...]:
    """What this release makes of each file with a format at or below a folder, by path, except behind links to folders.

    Raises:
        ConfigError: it is no folder, or there is no such file.
    """
    if not folder.is_dir():
        raise ConfigError(str(folder), "is no folder", hint="name a startup kit, a run folder, or a folder of these")
    found = tuple(_found(folder, path, form) for path, form in _files(folder))
    if not found:
        raise ConfigError(str(folder), "holds no file with a format", hint="name a startup kit or a run folder")
    return found


def migrate(folder: Path) -> list[tuple[Path, Path]]:
    """Migrate what can be, one file after the other; returns each with the copy of it that is kept beside it.

    Raises:
        ConfigError: as :func:`examine`; or a file could not be migrated, which is as it was.
        OSError: it cannot be written.
    """
    done = []
    for path, form in [*_files(folder)]:
        one = _found(folder, path, form)
        if one.verdict is Verdict.MIGRATE and one.number is not None:
            done.append((path, _migrate(path, form, one.number)))
    return done


def _migrate(path: Path, form: FileFormat, number: int) -> Path:
    content, kept = read_file(path), path.with_name(f"{path.name}.format-{number}")
    if kept.exists() and read_file(kept).data != content.data:  # the same where an earlier migration was interrupted
        raise ConfigError(str(kept), "exists already, and is not a copy of that file", hint="move it away")
    data = content.data
    for step in range(number, form.number):
        data = MIGRATIONS[form, step](path, data)
    write_file(kept, content.data, content.mode)
    write_file(path, data, content.mode)
    return kept


def outcome(found: tuple[Found, ...]) -> NotOfThisRelease | None:
    """The error with which a check of these files ends; None where this release reads them all."""
    of = {verdict: sum(one.verdict is verdict for one in found) for verdict in Verdict}
    if of[Verdict.NOT_READ]:
        hint = "each line says which release reads it, and docs/how-to/upgrade.md what stays readable"
        return NotOfThisRelease(f"this release does not read {of[Verdict.NOT_READ]} of {len(found)} files", hint=hint)
    if of[Verdict.MIGRATE]:
        hint = "securefda upgrade DIR migrates them, and keeps a copy of each"
        return NotOfThisRelease(f"{of[Verdict.MIGRATE]} of {len(found)} files have to be migrated", hint=hint)
    return None


def _files(folder: Path) -> Iterator[tuple[Path, FileFormat]]:
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            ledger = Path(place).name == _LEDGERS and name.endswith(".sqlite")
            form = formats.LEDGER if ledger else _NAMED.get(name)
            if form is not None:
                yield Path(place, name), form


def _found(folder: Path, path: Path, form: FileFormat) -> Found:
    file = str(path.relative_to(folder))
    try:
        by_its_start = path.suffix == ".sqlite" or form is formats.LOG  # a checkpoint may exceed what read_file takes
        content = read_start(path, formats.SQLITE_HEAD_BYTES) if by_its_start else read_file(path)
        number = form.find(content.data)
    except ConfigError as error:
        return Found(file, form.what, None, Verdict.NOT_READ, error.why)
    except ValueError:
        return Found(file, form.what, None, Verdict.NOT_READ, "does not say of which format it is")
    why = form.why_not(number) or (_why_no_record(path.parent) if form is formats.LOG else "")
    if not why:
        return Found(file, form.what, number, Verdict.READ)
    steps = range(number, form.number)
    migrates = bool(steps) and all((form, step) in MIGRATIONS for step in steps)
    return Found(file, form.what, number, Verdict.MIGRATE if migrates else Verdict.NOT_READ, why)


def _why_no_record(folder: Path) -> str:
    """Why this release does not read the records of a log, by the first; `securefda audit verify` looks at all."""
    try:
        entry = LogFolder(folder, "", "", "").entry(0)
        if entry is not None:
            Record.parse(entry)
    except (RecordError, SecureFdaError) as error:
        return str(error)
    return ""
