"""What a log is called: the origin of its checkpoints, and the name under which a site cosigns them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

FORMAT: Final = 1

_NAME: Final = re.compile("[a-z0-9][a-z0-9-]{0,62}")


@lru_cache(maxsize=4096)  # a log has a few of them, in every record
def is_name(text: object) -> bool:
    """Tell whether ``text`` can name a federation, a site or a run: 1 to 63 characters of ``a-z 0-9 -``."""
    return type(text) is str and _NAME.fullmatch(text) is not None


def witness_name(federation: str, party: str) -> str:
    """The name under which a party cosigns the logs of others."""
    return f"securefda/{FORMAT}/{federation}/{party}"


@dataclass(frozen=True, slots=True)
class LogName:
    """Whose log of which run: each of them has a tree of its own.

    Attributes:
        federation: federation id, 1 to 63 characters of ``a-z 0-9 -``, not beginning with a hyphen.
        party: site id of the site that writes the log, of the same form.
        run: run id, of the same form.

    Raises:
        ValueError: a name has another form.
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
