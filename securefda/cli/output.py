"""The output of a command on stdout: text for people, or one JSON envelope for programs. Errors go to stderr."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum, StrEnum
from itertools import pairwise
from typing import Any, TextIO

from securefda.errors import ConfigErrors, ExitCode, SecureFdaError
from securefda.text import fitted, printable, wrapped

ENVELOPE_VERSION = 1


class Verbosity(IntEnum):
    """How much a command prints beside its result."""

    QUIET = 0
    """Errors alone."""

    NORMAL = 1
    """Progress, too."""

    VERBOSE = 2
    """Progress in every phase, and what caused an error."""


_USUAL_WIDTH, _NARROWEST, _WIDEST_PROSE = 80, 20, 100
_verbosity = Verbosity.NORMAL
_COLOURS = {"ok": "32", "warn": "33", "fail": "31", "error:": "31", "hint:": "36", "warning:": "33"}
"""First words of lines -> how a terminal shows them; the word says the same without colour."""

_MARKED = re.compile(rf"(?m)^({'|'.join(map(re.escape, _COLOURS))})(?=\s)")


def set_verbosity(level: Verbosity) -> None:
    """Set how much is printed from now on."""
    global _verbosity  # noqa: PLW0603 - of this process, as its streams are
    _verbosity = level


def verbosity() -> Verbosity:
    """Return how much this command prints beside its result."""
    return _verbosity


def painted(text: str, stream: TextIO) -> str:
    """Return ``text`` with coloured verdicts if ``stream`` is a terminal and NO_COLOR is not set."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty()
    return text if plain else _MARKED.sub(lambda word: f"\x1b[{_COLOURS[word[1]]}m{word[1]}\x1b[0m", text)


def width_of(stream: TextIO) -> int | None:
    """Return the characters per line if ``stream`` is a terminal; else None, for lines of any length."""
    if not stream.isatty():
        return None
    given = os.environ.get("COLUMNS", "")
    try:
        columns = int(given) if given.isdecimal() else os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return max(columns, _NARROWEST) if columns else _USUAL_WIDTH


def filled(lines: Iterable[str], indent: str = "") -> str:
    """Return lines of prose for stdout, wrapped where they are longer than a line there or than 100 characters."""
    width = min(_WIDEST_PROSE, width_of(sys.stdout) or _WIDEST_PROSE)
    return "\n".join(wrapped(line, width, indent) for line in lines)


def shown(text: str, stream: TextIO) -> str:
    """Return ``text`` as ``stream`` shows it: on a terminal with colours, and wrapped between words."""
    width = width_of(stream)
    return painted(text if width is None else fitted(text, width), stream)


def print_text(text: str, stream: TextIO | None = None) -> None:
    """Print text for people, to stdout by default.

    Without what would control a terminal: a folder's words may be anybody's.
    """
    stream = sys.stdout if stream is None else stream
    lines = "\n".join(map(printable, text.split("\n")))
    stream.write(shown(f"{lines}\n", stream))
    stream.flush()


class Format(StrEnum):
    """The output formats of a command."""

    TXT = "txt"
    JSON = "json"


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether the arguments ask for JSON, even if they cannot be parsed."""
    given = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    if "--format=json" in given:
        return True
    return any(pair == ("--format", "json") for pair in pairwise(given))


def print_result(output: Format, data: Mapping[str, Any], text: str) -> None:
    """Print a result: ``data`` inside the envelope, or ``text``."""
    if output is Format.JSON:
        _print_envelope({"status": "ok", "exit_code": 0, "data": data})
    else:
        print_text(text)


def print_outcome(output: Format, data: Mapping[str, Any], text: str, error: SecureFdaError | None) -> int:
    """Print what a command found, and its error if it ends with one; returns the exit code."""
    if error is None:
        print_result(output, data, text)
        return ExitCode.OK
    if output is Format.TXT and text:
        print_text(text)
    return print_error(error, as_json=output is Format.JSON, data=data)


def print_error(error: SecureFdaError, *, as_json: bool, data: Mapping[str, Any] | None = None) -> int:
    """Print an error and return its exit code. ``data`` is what was found all the same (JSON only)."""
    code, errors = int(error.exit_code), error.errors if isinstance(error, ConfigErrors) else (error,)
    if as_json:
        envelope = {"status": "error", "exit_code": code, "error_code": error.code, "message": str(error)}
        each = [{"message": str(one), "hint": one.hint} for one in errors]
        several = {"errors": each} if len(each) > 1 else {}
        _print_envelope(envelope | {"hint": error.hint} | several | ({} if data is None else {"data": data}))
    else:
        for one in errors:
            sys.stderr.write(shown(f"error: {_one_line(str(one))}\n", sys.stderr))
            if one.hint:
                sys.stderr.write(shown(f"hint: {_one_line(one.hint)}\n", sys.stderr))
        if _verbosity is Verbosity.VERBOSE:
            for cause in _causes(error):
                sys.stderr.write(shown(f"caused by {type(cause).__name__}: {_one_line(str(cause))}\n", sys.stderr))
        sys.stderr.flush()
    return code


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the causes of an error, except other libraries' errors, whose text could quote what they read."""
    cause = error.__cause__
    while cause is not None:
        if isinstance(cause, SecureFdaError | OSError):
            yield cause
        cause = cause.__cause__


def say(text: str) -> None:
    """Write a line for people to stderr, beside a result; not with ``--quiet``."""
    if _verbosity is Verbosity.QUIET:
        return
    sys.stderr.write(shown(f"{_one_line(text)}\n", sys.stderr))
    sys.stderr.flush()


def _print_envelope(fields: Mapping[str, Any]) -> None:
    json.dump({"schema_version": ENVELOPE_VERSION, **fields}, sys.stdout, default=str)
    sys.stdout.write("\n")
    sys.stdout.flush()


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))
