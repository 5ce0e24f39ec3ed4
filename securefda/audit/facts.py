"""What each kind of event says beside the fields that all records have, and the forms that values may have. Pure.

What a log is called: the origin of its checkpoints and the name of its witnesses. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

FORMAT: Final = 1
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@lru_cache(maxsize=4096)  # a log has a few of them, in every record
def is_name(text: str) -> bool:
    """Tell whether ``text`` can name a federation, a site or a run: 1 to 63 characters of ``a-z 0-9 -``."""
    return _NAME.fullmatch(text) is not None


def witness_name(federation: str, party: str) -> str:
    """The name under which a party cosigns the logs of others."""
    return f"securefda/{FORMAT}/{federation}/{party}"


@dataclass(frozen=True, slots=True)
class LogName:
    """Whose log of which run: each of them has a tree of its own.

    Attributes:
        federation: federation id, 1 to 63 characters of ``a-z 0-9 -``, not beginning with a hyphen.
        party: site id of who writes the log, of the same form.
        run: run id, of the same form.

    Raises:
        ValueError: one is not so.
    """

    federation: str
    party: str
    run: str

    def __post_init__(self) -> None:
        for key in ("federation", "party", "run"):
            if not is_name(getattr(self, key)):
                raise ValueError(f"{key} {getattr(self, key)!r} has other than 1 to 63 characters of a-z, 0-9 and -")

    @property
    def origin(self) -> str:
        """First line of every checkpoint of this log, and the name of the key that signs them."""
        return f"{witness_name(self.federation, self.party)}/{self.run}"

    @classmethod
    def parse(cls, origin: str) -> LogName:
        """Read an origin. Raises ValueError for anything that ``origin`` does not say."""
        words = origin.split("/")
        if len(words) != 5 or words[:2] != ["securefda", str(FORMAT)]:
            raise ValueError(f"{origin[:80]!r} is no origin of a log of this format")
        return cls(*words[2:])


MAX_INTEGER: Final = 2**53 - 1
"""The largest that every reader of JSON takes."""
MAX_ITEMS: Final = 1024
"""Of a list: as many as a roster has sites."""

Facts = Mapping[str, int | str | list[int] | list[str]]
_DIGEST = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_ORIGIN = re.compile(r"[!-~]{1,255}")
_DECIMAL = re.compile(r"[0-9][0-9.e+-]{0,31}")


class RecordError(ValueError):
    """A record is not of the one form that it must have; the text names the field and holds no value of it."""


def require(condition: bool, what: str) -> None:
    """Raise RecordError unless the condition holds; ``what`` names the field."""
    if not condition:
        raise RecordError(f"{what} is not of the form that a record has")


def is_digest(value: object) -> bool:
    """32 bytes as hex digits in lower case."""
    return type(value) is str and _DIGEST.fullmatch(value) is not None


def is_word(value: object) -> bool:
    """1 to 64 letters, digits, points, hyphens and underscores: a name that the code gives."""
    return type(value) is str and _WORD.fullmatch(value) is not None


@lru_cache(maxsize=4096)  # most are settings, which repeat
def is_decimal(value: object) -> bool:
    """A finite number >= 0 in the shortest text that reads back as the same float."""
    if type(value) is not str or not _DECIMAL.fullmatch(value):
        return False
    try:
        number = float(value)
    except ValueError:
        return False
    return math.isfinite(number) and repr(number) == value


def is_count(value: object) -> bool:
    """An integer from 0 to ``MAX_INTEGER``."""
    return type(value) is int and 0 <= value <= MAX_INTEGER


def is_sites(value: object) -> bool:
    """A list of site ids, sorted, none twice."""
    return (
        _is_list(value) and all(type(item) is str and is_name(item) for item in value) and value == sorted(set(value))  # type: ignore[attr-defined, call-overload]
    )


def _is_list(value: object) -> bool:
    return type(value) is list and len(value) <= MAX_ITEMS


def _is_origin(value: object) -> bool:
    return type(value) is str and _ORIGIN.fullmatch(value) is not None


_Check = Callable[[object], bool]
_ACCUSED: Final[Mapping[str, _Check]] = {"check": is_word, "accused": is_sites}
_HEAD: Final[Mapping[str, _Check]] = {"size": is_count, "root": is_digest}

EVENTS: Final[Mapping[str, Mapping[str, _Check]]] = MappingProxyType(
    {
        "run-began": {"release": is_word, "task": is_word, "strategy": is_word, "roster": is_digest},
        "run-ended": {"outcome": is_word, "rounds": is_count},
        "restarted": {"lost_bytes": is_count},
        "policy-loaded": {"policy": is_digest},
        "refused": {"check": is_word},
        "message-not-kept": {"check": is_word},
        "release-fuse-burnt": {},
        "survivors-signed": {"survivors": is_sites},
        "unmask-shares-released": {"survivors": is_sites, "dropped": is_sites},
        "caps-computed": {"caps": is_digest, "layers": is_count, "capped": is_count, "zeroed": is_count},
        "ledger-updated": {},
        "aborted": _ACCUSED,
        "alarm": _ACCUSED,
        "checkpoint-signed": _HEAD,
        "checkpoint-cosigned": {"origin": _is_origin, **_HEAD},
    }
)
"""Kinds of events, and what each says: exactly these keys.

``check`` is the stable name of the check that failed, ``accused`` whom it blames, if anybody; ``message-not-kept`` has
the peer and the digest of a message that was received, and as its check ``SIGNATURE`` where its sender did not sign it,
``BOUND`` where that site has sent more in one attempt than is kept of it (`kept.MOST_KEPT_BYTES`). ``policy`` and
``roster`` are SHA-256 of the files; ``lost_bytes`` is what a crash left of a record that was not whole; ``caps`` is the
SHA-256 of the norm cap's caps as little-endian float64, the same at every source, of which ``layers`` there are,
``capped`` of them scale this source's part down and ``zeroed`` leave nothing of it.
"""
