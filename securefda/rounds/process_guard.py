"""A copy of a process, made by fork, must not go on with what the original began.

Both hold the same session secrets and the same place in the same state file. Two that go on would mask two inputs
with one set of masks, whose difference is then in clear.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from weakref import WeakMethod, WeakSet

from securefda.errors import SecureFdaError


class CopiedProcess(SecureFdaError):
    """This process is a copy of the one that began the work; only the original may go on with it."""


class ProcessGuard:
    """Ties its owner to the process that made it.

    Args:
        what: what is tied, in words, for the error.
        forget: a method of the owner, which the guard does not keep alive. It is called in every copy of the process
            that Python's ``os.fork`` makes, before any other code runs there: the place to erase secrets.
    """

    __slots__ = ("__weakref__", "_forget", "_is_marked", "_pid", "_what")

    def __init__(self, what: str, forget: Callable[[], None]) -> None:
        self._what = what
        self._pid = os.getpid()
        self._is_marked = False
        self._forget = WeakMethod(forget)
        _GUARDS.add(self)

    @property
    def is_copy(self) -> bool:
        """Whether this is another process than the one that made the guard, however it was made."""
        # The mark too: a copy of a copy can be given the number of an original that has ended.
        return self._is_marked or os.getpid() != self._pid

    def require_original(self) -> None:
        """Refuse to go on in a copy.

        Raises:
            CopiedProcess: this is one.
        """
        if self.is_copy:
            raise CopiedProcess(
                f"{self._what} belongs to process {self._pid}; process {os.getpid()} is a copy of it",
                hint="code of the task must not fork a process that goes on with the site's work: start a new one",
            )

    def _mark(self) -> None:
        self._is_marked = True
        forget = self._forget()
        if forget is not None:
            forget()


_GUARDS: WeakSet[ProcessGuard] = WeakSet()


def _in_a_copy() -> None:
    for guard in list(_GUARDS):
        guard._mark()


os.register_at_fork(after_in_child=_in_a_copy)
