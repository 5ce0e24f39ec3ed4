"""Runs the code blocks of a tutorial, in order, as a reader would type them.

Each page has a fresh folder with a copy of ``examples/``. A block of ``sh`` is run by ``sh -e``; its folder and its
exported variables go on into the next block, as in one terminal. A block of ``python`` is a script of its own, run in
that folder. Other blocks are not run. Each block must end with exit code 0.

Markers are HTML comments on a line of their own, before a block; blank lines between do not matter, and several may
stand before one block:

``<!-- not run: REASON -->``
    The block is skipped, for this reason.
``<!-- exit code N -->``
    The block must end with exit code N.
``<!-- Ctrl-C after: TEXT -->``
    The block of ``sh`` is one command. Once a line that it prints begins with TEXT, it is interrupted as by Ctrl-C.
``<!-- background -->``
    The block of ``sh`` is started as in a terminal of its own, and the page goes on at once.
``<!-- wait -->``
    Stands alone. All blocks in the background must have ended with exit code 0, or the one they are marked with. The
    end of a page waits likewise.
``<!-- output -->``
    Before a block of ``text``: it is what the block that ran last printed, on stdout or on stderr, or on the one and
    then the other. ``…`` stands for anything, also several lines; spaces at the end of a line do not count. The marker
    may also stand before the command; then the block of ``text`` comes next.
``<!-- file: NAME -->``
    The block, of any language, is written to this file in the current folder of the page, and not run.

A comment that is none of these, right before a block, is an error; so is a block of ``bash``, ``shell`` or ``console``.
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import typed_commands

ROOT = Path(__file__).parents[2]
RUN = ("sh", "python")
_NOT_SH = ("bash", "shell", "console", "zsh")
_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->")
_MARKER = re.compile(r"(not run|file|Ctrl-C after): (\S.*)|(exit code) ([0-9]+)|(background|wait|output)")
_FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,}|~{3,})(?P<language>[^\s`]*)[^`]*")


class TutorialError(AssertionError):
    """A page is not as it says: what, at which line."""

    def __init__(self, page: Path, line: int, what: str) -> None:
        super().__init__(f"{page.name}, line {line}: {what}")


@dataclass(frozen=True)
class Block:
    """A code block with its markers; with language ``wait`` the marker that stands alone. ``line`` counts from 1."""

    line: int
    language: str
    text: str
    markers: Mapping[str, str] = field(default_factory=dict)


def read_blocks(page: Path) -> Iterator[Block]:
    """Every code block of a page and every ``wait``, in order.

    Raises:
        TutorialError: a marker is unknown or has no block, or a block does not end.
    """
    markers: dict[str, str] = {}
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), start=1))
    strange: tuple[int, str] | None = None
    for number, line in lines:
        if comment := _COMMENT.fullmatch(line.strip()):
            marker = _MARKER.fullmatch(comment[1])
            if marker is None:
                strange = (number, comment[1])
            elif marker[5] == "wait":
                yield Block(number, "wait", "")
            else:
                markers[marker[1] or marker[3] or marker[5]] = marker[2] or marker[4] or ""
        elif fence := _FENCE.fullmatch(line):
            if strange is not None:
                raise TutorialError(page, strange[0], f"no marker: {strange[1]}")
            text = []
            for _, inner in lines:
                if re.fullmatch(rf" *{re.escape(fence['ticks'])}{fence['ticks'][0]}* *", inner):
                    break
                text.append(inner.removeprefix(fence["indent"]))
            else:
                raise TutorialError(page, number, "the block does not end")
            yield Block(number, fence["language"], "\n".join(text) + "\n", markers)
            markers = {}
        elif line.strip():
            strange = None
            if markers:
                raise TutorialError(page, number, f"no block after the marker {', '.join(markers)}")
    if markers:
        raise TutorialError(page, number, f"no block after the marker {', '.join(markers)}")


@contextmanager
def one_page_at_a_time() -> Iterator[None]:
    """Wait until no other test runs a page: pages may start federations on the same port."""
    with (Path(tempfile.gettempdir()) / f"securefda-tutorials-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass
class _Job:
    """A block that runs: ``out`` and ``err`` are the files that hold what it prints."""

    block: Block
    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def wait(self, page: Path, deadline_s: float) -> tuple[str, str]:
        """Wait for its end, check its exit code, and return what it printed on stdout and on stderr."""
        until = time.monotonic() + deadline_s
        try:
            if begins := self.block.markers.get("Ctrl-C after"):
                self._interrupt_after(begins, until)
            code = self.process.wait(timeout=max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            code = None
        printed = tuple(file.read_text(encoding="utf-8", errors="replace") for file in (self.out, self.err))
        wanted = int(self.block.markers.get("exit code", "0"))
        if code != wanted:
            ended = f"did not end within {deadline_s:.0f} s" if code is None else f"exit code {code}, not {wanted}"
            said = "".join(printed)[-3000:]
            raise TutorialError(page, self.block.line, f"{ended}\n{self.block.text}printed:\n{said}")
        return printed[0], printed[1]

    def _interrupt_after(self, begins: str, until: float) -> None:
        """Interrupt it once a line on stderr begins so; one that ends before or says nothing is left as it is."""
        while f"\n{begins}" not in "\n" + self.err.read_text(encoding="utf-8", errors="replace"):
            if self.process.poll() is not None or time.monotonic() > until:
                return
            time.sleep(0.01)
        self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End it and all that it started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self.process.wait()


class TutorialRun:
    """One page in one folder.

    Args:
        page: the page.
        folder: empty; the reader's folder becomes ``folder/work``, and helpers lie beside it.
        deadline_s: how long a block may take, and how long a wait.
        command: the shell's line that runs ``securefda`` with ``"$@"``, by default as the installed command does.
        any_numbers: whether each number that the page shows stands for any.
    """

    def __init__(
        self, page: Path, folder: Path, *, deadline_s: float = 300.0, command: str = "", any_numbers: bool = False
    ) -> None:
        self._page, self._deadline_s, self._any_numbers = page, deadline_s, any_numbers
        self._work, self._state, tools = (folder / name for name in ("work", "state", "bin"))
        for made in (self._work, self._state, tools):
            made.mkdir()
        shutil.copytree(ROOT / "examples", self._work / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        python = f'exec {shlex.quote(sys.executable)} "$@"'
        for name, line in (("securefda", command or typed_commands.exec_line()), ("python", python)):
            tool = tools / name
            path = f'PYTHONPATH={shlex.quote(str(ROOT))}"${{PYTHONPATH:+:$PYTHONPATH}}"'
            tool.write_text(f"#!/bin/sh\n{path} {line}\n")
            tool.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SECUREFDA_", "PYTEST_"))}
        kept.pop("PYTHONPATH", None)
        self._environment = kept | {"PATH": f"{tools}:{kept.get('PATH', '')}"}
        self._background: list[_Job] = []
        self._jobs = 0

    def run(self) -> list[str]:
        """Run every block of the page; returns why some were not run.

        Raises:
            TutorialError: a block fails, prints something else than the page says, or a marker is wrong.
        """
        skipped: list[str] = []
        printed: tuple[str, str] | None = None
        expects_output = False
        try:
            for block in read_blocks(self._page):
                if expects_output and block.language != "text":
                    raise TutorialError(self._page, block.line, "the output of the command before is to come here")
                if block.language in _NOT_SH:
                    raise TutorialError(self._page, block.line, f"a block of {block.language}; write sh")
                if block.language == "wait":
                    self._wait()
                elif "not run" in block.markers:
                    skipped.append(block.markers["not run"])
                    printed = None
                elif "file" in block.markers:
                    (self._folder() / block.markers["file"]).write_text(block.text, encoding="utf-8")
                elif block.language == "text" and (expects_output or "output" in block.markers):
                    expects_output = False
                    self._compare(block, printed)
                elif block.language in RUN and "background" in block.markers:
                    self._background.append(self._start(block))
                    printed = None
                elif block.language in RUN:
                    printed = self._start(block).wait(self._page, self._deadline_s)
                    expects_output = "output" in block.markers
                elif block.markers:
                    what = f"a block of {block.language or 'no language'} takes no marker {', '.join(block.markers)}"
                    raise TutorialError(self._page, block.line, what)
            self._wait()
        finally:
            for job in self._background:
                job.kill()
        return skipped

    def _start(self, block: Block) -> _Job:
        """Start a block; of a block that does not run in the background, folder and variables are kept at its end."""
        self._jobs += 1
        out, err = (self._state / f"{self._jobs}.{name}" for name in ("out", "err"))
        variables, folder = (shlex.quote(str(self._state / name)) for name in ("variables", "folder"))
        lines = [f"[ ! -e {variables} ] || . {variables}"]
        if block.language == "python":
            script = self._state / f"{self._jobs}.py"
            script.write_text(block.text, encoding="utf-8")
            lines.append(f'PYTHONPATH=".${{PYTHONPATH:+:$PYTHONPATH}}" exec python {shlex.quote(str(script))}')
        else:
            if "background" not in block.markers:
                lines.append(f"trap 'export -p > {variables}; pwd > {folder}' EXIT")
            lines.append(f"exec {block.text}" if "Ctrl-C after" in block.markers else block.text)
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                ["sh", "-e", "-c", "\n".join(lines)],
                cwd=self._folder(),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        return _Job(block, process, out, err)

    def _folder(self) -> Path:
        """The page's current folder."""
        kept = self._state / "folder"
        return Path(kept.read_text(encoding="utf-8").rstrip("\n")) if kept.exists() else self._work

    def _wait(self) -> None:
        """Wait for all blocks in the background; a failure that comes first is reported, and not what it causes."""
        until = time.monotonic() + self._deadline_s
        while self._background:
            ended = next((job for job in self._background if job.process.poll() is not None), None)
            if ended is None and time.monotonic() < until:
                time.sleep(0.05)
                continue
            job = ended or self._background[0]
            job.wait(self._page, 0.1)
            self._background.remove(job)

    def _compare(self, block: Block, printed: Sequence[str] | None) -> None:
        if printed is None:
            raise TutorialError(self._page, block.line, "no command before this output ran to its end")
        wanted = re.sub(r"[0-9]+([.,][0-9]+)*", "…", block.text) if self._any_numbers else block.text
        if not any(matches(wanted, text) for text in (*printed, "".join(printed))):
            shown = "".join(printed)
            raise TutorialError(self._page, block.line, f"the page shows\n{block.text}and the command printed\n{shown}")


def matches(shown: str, printed: str) -> bool:
    """Whether ``printed`` is what a page shows, in which ``…`` stands for anything."""
    parts = (re.escape(part) for part in _plain(shown).split("…"))
    return re.fullmatch(".*?".join(parts), _plain(printed), flags=re.DOTALL) is not None


def _plain(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")
