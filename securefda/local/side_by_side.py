"""Runs to be compared, each simulated by a separate process, all at once."""

from __future__ import annotations

import selectors
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from securefda.local.children import Child, Starter, stop
from securefda.operations.progress import Reporter
from securefda.operations.records import Summary
from securefda.operations.run_folder import RunFolder, finished_summary

_POLL_S = 0.1


class SideBySide:
    """Runs that have begun, by name."""

    def __init__(self, out: Path, children: Sequence[Child]) -> None:
        self._out, self._children = out, children

    def summaries(self, reporter: Reporter) -> dict[str, Summary]:
        """Report which runs are still going until all are over, then return their summaries.

        Raises:
            ProcessFailed: the first that failed.
        """
        going_on = [child.name for child in self._children]
        with selectors.DefaultSelector() as selector:
            for child in self._children:
                selector.register(child.link, selectors.EVENT_READ, child)
            while going_on:
                reporter.phase("compare", going_on, len(self._children))
                for key, _ in selector.select(_POLL_S):
                    child = cast(Child, key.data)
                    child.events()
                    if child.has_ended:
                        selector.unregister(child.link)
                        child.process.wait()
                        going_on.remove(child.name)
                    if (failure := child.failure()) is not None:
                        raise failure
        return {child.name: finished_summary(self._out / child.name) for child in self._children}


@contextmanager
def side_by_side(commands: Mapping[str, Sequence[str]], out: Path, starter: Starter) -> Iterator[SideBySide]:
    """Start ``securefda simulate`` once per command, all at once; each gives the same result as alone, to the last bit.

    Where the block ends before they do, they are ended, and their folders hold the rounds until then.

    Args:
        commands: name of a run -> arguments of ``simulate`` but its ``--out``, which is the folder of that name in
            ``out``. Settings in this process's environment count for each.
        out: folder of the run folders; ``processes/NAME/`` in it has what each process said.
        starter: of the processes.
    """
    children: list[Child] = []
    try:
        for name, command in commands.items():
            said = RunFolder(out / "processes" / name).path
            arguments = ["simulate", *command, "--out", str(out / name)]
            children.append(Child.start(name, arguments, said, starter, with_settings=True))
        yield SideBySide(out, children)
    finally:
        stop(children, at_once=True)
