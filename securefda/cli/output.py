"""What a command prints: text for people, or one JSON envelope for programs, on stdout; errors on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Any

from securefda.errors import ConfigErrors, SecureFdaError
from securefda.text import printable

ENVELOPE_VERSION = 1


class Format(StrEnum):
    """How a command prints its result."""

    TXT = "txt"
    JSON = "json"


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether the arguments ask for JSON; also right where they are too wrong to be parsed."""
    given = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    if "--format=json" in given:
        return True
    return any(pair == ("--format", "json") for pair in pairwise(given))


def print_result(output: Format, data: Mapping[str, Any], text: str) -> None:
    """Print a result: ``data`` inside the envelope, or ``text``."""
    if output is Format.JSON:
        _print_envelope({"status": "ok", "exit_code": 0, "data": data})
    else:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


def print_error(error: SecureFdaError, *, as_json: bool, data: Mapping[str, Any] | None = None) -> int:
    """Print an error and return its exit code. ``data`` is what was found out nevertheless (JSON only)."""
    code, errors = int(error.exit_code), error.errors if isinstance(error, ConfigErrors) else (error,)
    if as_json:
        envelope = {"status": "error", "exit_code": code, "error_code": error.code, "message": str(error)}
        each = [{"message": str(one), "hint": one.hint} for one in errors]
        several = {"errors": each} if len(each) > 1 else {}
        _print_envelope(envelope | {"hint": error.hint} | several | ({} if data is None else {"data": data}))
    else:
        for one in errors:
            sys.stderr.write(f"error: {_one_line(str(one))}\n")
            if one.hint:
                sys.stderr.write(f"hint: {_one_line(one.hint)}\n")
        sys.stderr.flush()
    return code


def say(text: str) -> None:
    """Write a line for people to stderr, beside a result."""
    sys.stderr.write(f"{_one_line(text)}\n")
    sys.stderr.flush()


def _print_envelope(fields: Mapping[str, Any]) -> None:
    json.dump({"schema_version": ENVELOPE_VERSION, **fields}, sys.stdout, ensure_ascii=False, default=str)
    sys.stdout.write("\n")
    sys.stdout.flush()


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))
