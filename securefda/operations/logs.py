"""Operational logs: plain text and JSON lines in rotating files that only their owner can read.

A line is written and flushed before the call returns. If a line cannot be written here, it is lost with one warning on
the console. The audit log is different: nothing happens that it could not record.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from securefda.disk import open_patiently
from securefda.errors import ConfigError
from securefda.operations.notes import Level
from securefda.site.config import LoggingSection

OWNER_ONLY = 0o600
MOST_CHARACTERS = 2000
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


@dataclass(frozen=True, slots=True)
class Place:
    """The run, round, phase and peer that a line belongs to."""

    run: str = ""
    """Id of the run; empty until it is known."""

    round: int = 0
    """Number of the round, from 1; 0 outside rounds."""

    phase: str = ""
    """Phase of the round; empty where there is none."""

    peer: str = ""
    """Site id of the peer that the line is about; empty where there is none."""


class OperationalLog:
    """The logs of one site's process: the text file, the JSON lines, or both.

    Args:
        settings: which files, how large, from which level on.
        folder: the site's run folder, for relative names; made where it is missing.
        site: site id.
        warn: shows one line to the operator, once for each file that cannot be written any more.

    Raises:
        ConfigError: a file cannot be opened.
    """

    def __init__(self, settings: LoggingSection, folder: Path, site: str, warn: Callable[[str], None]) -> None:
        self._site = site
        self._logger = logging.Logger("securefda.operations", _LEVELS[settings.level])  # known to no other logger
        files = (("logging.file", settings.file, _Text()), ("logging.json-file", settings.json_file, _JsonLines()))
        for key, name, form in files:
            if name:
                file = _open(key, folder / Path(name).expanduser(), settings, warn)
                file.setFormatter(form)
                self._logger.addHandler(file)

    def write(self, level: Level, message: str, place: Place) -> None:
        """Add a line; characters that would control a terminal or break the format are escaped."""
        extra = {"site": self._site, **asdict(place)}
        self._logger.log(_LEVELS[level], "%s", escaped(message), extra=extra)

    def close(self) -> None:
        """Close the files."""
        for handler in list(self._logger.handlers):
            self._logger.removeHandler(handler)
            with suppress(OSError):
                handler.close()


def escaped(text: str) -> str:
    r"""Return text on one line of printable characters, others as ``\x1b`` and the like; at most 2000 characters."""
    parts = (
        letter if letter.isprintable() and letter != "\\" else letter.encode("unicode_escape").decode("ascii")
        for letter in text[:MOST_CHARACTERS]
    )
    shown = "".join(parts)
    return shown if len(shown) <= MOST_CHARACTERS and len(text) <= MOST_CHARACTERS else shown[:MOST_CHARACTERS] + "..."


def _open(key: str, path: Path, settings: LoggingSection, warn: Callable[[str], None]) -> _OwnFile:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return _OwnFile(path, settings, warn)
    except OSError as error:
        why = f"{path} cannot be written: {error.strerror}"
        raise ConfigError(key, why, hint="name another file, or none") from error


class _OwnFile(RotatingFileHandler):
    """A rotating file of mode 0600 that starts a new line after a torn one and survives a full disk."""

    def __init__(self, path: Path, settings: LoggingSection, warn: Callable[[str], None]) -> None:
        self._tell: Callable[[str], None] | None = warn
        super().__init__(path, maxBytes=settings.max_bytes, backupCount=settings.backups, encoding="utf-8")

    def _open(self) -> TextIOWrapper:
        stream = open(self.baseFilename, "a", encoding="utf-8", newline="\n", opener=_owners_alone)  # noqa: SIM115
        if _ends_torn(self.baseFilename):
            stream.write("\n")
        return stream

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is the library's
        """Drop the line and warn once; the next line tries to open the file again."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        stream, self.stream = self.stream, None  # as the library leaves it after a rotation
        with suppress(OSError):
            if stream is not None:
                stream.close()
        tell, self._tell = self._tell, None
        if tell is not None:
            tell(f"{self.baseFilename} cannot be written ({error.strerror}); the run goes on without these lines")


def _owners_alone(path: str, flags: int) -> int:
    """Open a file for its owner alone; O_NONBLOCK keeps a FIFO without a reader from blocking the process."""
    descriptor = open_patiently(path, flags | os.O_NONBLOCK, OWNER_ONLY)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.fchmod(descriptor, OWNER_ONLY)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _ends_torn(path: str) -> bool:
    """Return whether the last line is torn, because the process was killed or the disk was full."""
    file = Path(path)
    if not file.is_file() or not file.stat().st_size:
        return False
    with file.open("rb") as stream:
        stream.seek(-1, os.SEEK_END)
        return stream.read(1) != b"\n"


def _time(record: logging.LogRecord) -> str:
    """Return the record's time as RFC 3339, UTC, milliseconds."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _JsonLines(logging.Formatter):
    """Formats a record as one JSON object per line, always with the same fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {"time": _time(record), "level": record.levelname.lower()}
        fields |= {name: getattr(record, name) for name in ("site", "run", "round", "phase", "peer")}
        return json.dumps(fields | {"message": record.getMessage()})


class _Text(logging.Formatter):
    """Formats a record as time, level, site, any run, round, phase and peer, and the message."""

    def format(self, record: logging.LogRecord) -> str:
        names = ("run", "round", "phase", "peer")
        known = [f"{name}={str(value).replace(' ', '-')}" for name in names if (value := getattr(record, name))]
        place = " ".join([_time(record), f"{record.levelname:<7}", f"site={getattr(record, 'site', '')}", *known])
        return f"{place} | {record.getMessage()}"
