"""Parsing of TOML and JSON from others within bounds; everything else is refused with one line.

Python's parsers recurse for every level of nesting, as does most code that walks over their result. Even before that
fails, ``tomllib`` takes minutes for a dotted key of 100,000 parts. So one pass over the text, without recursion, counts
brackets and dots first. Nothing in this project is nested more than eight levels deep. No other module of the package
parses with ``tomllib`` or ``json``; a test checks that.

The module also has JSON for bytes that get signed: one encoding per value, and readers that accept no other type. Pure.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, Final

MAX_NESTING: Final = 32
"""Levels of tables and arrays, the outermost one included."""

_TOO_DEEP = f"is nested more than {MAX_NESTING} levels deep"
_TOO_LARGE = "holds an integer of more than 64 bits"
_MOST_BITS = 63
_JSON_MARK = re.compile(r'"(?:[^"\\]++|\\.)*+"?|(?P<open>[\[{])|(?P<close>[\]}])', re.DOTALL)
_TOML_MARK = re.compile(
    r'''"""(?:[^"\\]++|\\.|"(?!""))*+(?:"{3,5})?'''
    r"""|'''(?:[^']++|'(?!''))*+(?:'{3,5})?"""
    r"""|"(?:[^"\\\n]++|\\.)*+"?|'[^'\n]*+'?|#[^\n]*+"""
    r"|(?P<open>[\[{])|(?P<close>[\]}])|(?P<dot>\.)|(?P<end>[=,\n])",
    re.DOTALL,
)
# A text that does not end is a text up to the end of the file: to begin again behind each quote would take n^2 steps.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class BeyondBounds(ValueError):
    """The text is well-formed as far as it was read, but exceeds a bound of this project; the message says which."""


def json_value(data: str | bytes) -> Any:
    """Parse JSON in UTF-8. ``NaN`` and the infinities are let through, as Python writes them.

    Raises:
        BeyondBounds: it is nested more than ``MAX_NESTING`` deep, an integer does not fit 64 bits, an object has a
            key twice, or a text holds half of a surrogate pair, which nothing could print or write.
        ValueError: it is no JSON, or not UTF-8.
    """
    text = data.decode("utf-8") if isinstance(data, bytes) else data
    _require_printable(text)
    _count(_JSON_MARK.finditer(text))
    value = _DECODER.decode(text)
    if _SURROGATE.search(text):
        _require_printable(json.dumps(value, ensure_ascii=False))
    return value


def toml_table(data: str | bytes) -> dict[str, Any]:
    """Parse TOML in UTF-8, also behind the byte order mark that some editors put first.

    Raises:
        BeyondBounds: it is nested more than ``MAX_NESTING`` deep, or an integer does not fit 64 bits.
        tomllib.TOMLDecodeError: it is no TOML; the text says where.
        UnicodeDecodeError: it is not UTF-8.
    """
    text = data.decode("utf-8-sig") if isinstance(data, bytes) else data
    _require_printable(text)
    _count(_TOML_MARK.finditer(text))
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except ValueError:  # Python converts no more than 4300 digits
        raise BeyondBounds(_TOO_LARGE) from None
    _require_bounded(table)
    return table


def _count(marks: Iterator[re.Match[str]]) -> None:
    """Raise BeyondBounds at the bracket, or the dot of a key, that is one too many."""
    depth = dots = 0
    for mark in marks:
        match mark.lastgroup:
            case "open":
                depth += 1
            case "close":
                depth -= 1
            case "dot":
                dots += 1
            case "end":
                dots = 0
        if depth > MAX_NESTING or dots > MAX_NESTING:
            raise BeyondBounds(_TOO_DEEP)


def _require_bounded(table: Mapping[str, Any]) -> None:
    """Check the values of a table. Nesting by brackets and by dots adds up, so the sum can exceed the bound."""
    left: list[tuple[object, int]] = [(table, 1)]
    while left:
        value, level = left.pop()
        if isinstance(value, dict | list) and level > MAX_NESTING:
            raise BeyondBounds(_TOO_DEEP)
        if isinstance(value, dict):
            left += [(part, level + 1) for part in value.values()]
        elif isinstance(value, list):
            left += [(part, level + 1) for part in value]
        elif isinstance(value, int) and value.bit_length() > _MOST_BITS:
            raise BeyondBounds(_TOO_LARGE)


def _require_printable(text: str) -> None:
    try:
        text.isascii() or text.encode("utf-8")
    except UnicodeEncodeError:
        raise BeyondBounds("holds half of a surrogate pair") from None


def _integer(digits: str) -> int:
    if len(digits) > len(str(-(2**_MOST_BITS))) or (value := int(digits)).bit_length() > _MOST_BITS:
        raise BeyondBounds(_TOO_LARGE)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise BeyondBounds("holds an object with a key twice")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer)


def canonical_json(fields: Mapping[str, object]) -> bytes:
    """Return ASCII JSON with sorted keys and no blanks. The caller keeps floats out."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def load_object(data: bytes, *keys: str) -> dict[str, object]:
    """Parse an ASCII JSON object with exactly these keys.

    Raises:
        ValueError: anything else, however deeply nested.
    """
    return object_with(json_value(data.decode("ascii")), *keys)


def object_with(value: object, *keys: str) -> dict[str, object]:
    """Return ``value`` if it is an object with exactly these keys. Raises ValueError."""
    if not isinstance(value, dict) or set(value) != set(keys):
        raise ValueError("an object with exactly these keys is needed: " + ", ".join(keys))
    return value


def texts(value: object) -> dict[str, str]:
    """Return ``value`` if it is an object with string values only. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError("an object is needed")
    return {key: text(item) for key, item in value.items()}


def items(value: object) -> list[object]:
    """Return ``value`` if it is a list. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError("a list is needed")
    return value


def text(value: object) -> str:
    """Return ``value`` if it is a string. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError("a string is needed")
    return value


def number(value: object) -> int:
    """Return ``value`` if it is an integer; ``true`` and ``1.0`` are none. Raises ValueError."""
    if type(value) is not int:
        raise ValueError("an integer is needed")
    return value


def dotted(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted key and value of everything in nested tables; ``prefix`` is the name of the outermost."""
    for key, value in table.items():
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, Mapping):
            yield from dotted(value, name)
        else:
            yield name, value
