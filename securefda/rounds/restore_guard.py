"""Finds a state file that is a copy, or that was put back from a backup: it has forgotten what left since.

Two things about the file are kept where a copy does not take them along. The file system's own number of the file is
written into it: a copy is another file. And the count of releases stands in the *name* of a marker beside it: copying
an old folder over a newer one brings back old contents, and cannot take away a newer name.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from securefda.disk import sync_folder
from securefda.errors import ConfigError

_DOUBT = ", so it may not know of every update that left"
_HINT = "name a new --out folder and take part in a new run with it, never again in the run of this one"


class ReleaseMarker:
    """An empty file beside the state, in whose name stands how many releases the state knows of."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def begin(self) -> None:
        """Make the marker of a new state file.

        Raises:
            ConfigError: a state file lay here before and knew of releases.
            OSError: it cannot be made.
        """
        if any(self._counts()):
            raise self._refusal("was deleted or emptied after updates had left its folder")
        os.close(os.open(self._path(0), os.O_CREAT | os.O_WRONLY, 0o600))
        sync_folder(self._state.parent)

    def check(self, count: int, number_then: str, number_now: str) -> None:
        """Compare a state file that knows of ``count`` releases with what lies around it.

        Raises:
            ConfigError: it is a copy, or older than its marker, or its marker is gone.
            OSError: the marker cannot be read or moved on.
        """
        if number_then != number_now:
            raise self._refusal(f"is a copy, or was put back from a backup{_DOUBT}")
        known = self._counts()
        if not known:
            raise self._refusal(f"lies here without its marker{_DOUBT}")
        if max(known) > count:
            raise self._refusal(f"is older than its folder: it knows of {count} releases of {max(known)}")
        if max(known) < count:  # killed between the two writes of a release
            self.advance(count)

    def advance(self, count: int) -> None:
        """Say that the state knows of ``count`` releases; on the disk when this returns. Raises OSError."""
        self._path(max(self._counts(), default=0)).rename(self._path(count))
        sync_folder(self._state.parent)

    def _counts(self) -> list[int]:
        name = re.compile(re.escape(self._state.name) + r"\.releases-([0-9]{1,9})")
        matches = (name.fullmatch(entry) for entry in os.listdir(self._state.parent))  # noqa: PTH208 - names alone
        return [int(match.group(1)) for match in matches if match]

    def _path(self, count: int) -> Path:
        return self._state.with_name(f"{self._state.name}.releases-{count}")

    def _refusal(self, why: str) -> ConfigError:
        return ConfigError(str(self._state), why, hint=_HINT)
