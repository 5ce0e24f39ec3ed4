"""What differs between two policies: the keys, their values before and now, and what each key means."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

from securefda.settings import declared_keys
from securefda.site.policy.schema import SourcePolicy


@dataclass(frozen=True, slots=True)
class Change:
    """A key whose value differs.

    Attributes:
        key: its dotted name.
        old: its value before.
        new: its value now.
        meaning: what the key decides, in one sentence.
    """

    key: str
    old: Any
    new: Any
    meaning: str


def changes(old: SourcePolicy, new: SourcePolicy) -> tuple[Change, ...]:
    """Return the keys in which two policies differ, in the order of the file; how a file is written does not count."""
    found = []
    for key, field in declared_keys(SourcePolicy):
        before, now = _at(old, key), _at(new, key)
        if before != now:
            meaning = (field.description or "").splitlines()[0].partition(". ")[0].rstrip(".")
            found.append(Change(key, before, now, f"{meaning}."))
    return tuple(found)


def _at(policy: SourcePolicy, key: str) -> Any:
    return reduce(getattr, key.replace("-", "_").split("."), policy)
