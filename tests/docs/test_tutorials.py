"""Every command of the tutorials runs, and prints what the page says."""

from __future__ import annotations

import fcntl
import tempfile
from pathlib import Path

import pytest
from tutorial_runner import ROOT, TutorialError, TutorialRun, matches, read_blocks
from typed_commands import forked_line

PAGES = sorted(page for page in (ROOT / "docs" / "tutorials").glob("*.md") if page.name != "index.md")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_the_tutorial_runs(page: Path, tmp_path: Path) -> None:
    # One page at a time: pages may start federations on the same port.
    with (Path(tempfile.gettempdir()) / "securefda-tutorials.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        TutorialRun(page, tmp_path, command=forked_line()).run()


def run(folder: Path, text: str, deadline_s: float = 20.0) -> list[str]:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    (folder / "run").mkdir()
    return TutorialRun(page, folder / "run", deadline_s=deadline_s).run()


GOOD = {
    "plain": "```sh\ntrue\n```\n",
    "examples": "```sh\ncat examples/digits.toml\n```\n",
    "command": "```sh\nsecurefda --version\n```\n<!-- output -->\n```text\nsecurefda …\n```\n",
    "folder and variables go on": (
        "```sh\nmkdir a\ncd a\nexport WORD='two words'\n```\n\n```sh\ntouch b\necho $WORD\n```\n\n"
        "<!-- output -->\n\n```text\ntwo words\n```\n\n```sh\ntest -e ../a/b\n```\n"
    ),
    "python": "```python\nprint(6 * 7)\n```\n<!-- output -->\n```text\n42\n```\n",
    "file": (
        "<!-- file: mine.py -->\n```python\nanswer = 42\n```\n```python\nfrom mine import answer\nprint(answer)\n```\n"
        "<!-- output -->\n```text\n42\n```\n"
    ),
    "output announced before the command": "<!-- output -->\n```sh\necho a\n```\n\nIt prints:\n\n```text\na\n```\n",
    "output on stderr": "```sh\necho a\necho b >&2\n```\n<!-- output -->\n```text\nb\n```\n",
    "exit code": (
        "<!-- exit code 4 -->\n```sh\nsecurefda policy template none\n```\n<!-- output -->\n```text\n…hint: …\n```\n"
    ),
    "other languages": "```toml\nrounds = 3\n```\n\n```text\nanything\n```\n",
    "in a list": "1. First\n\n   ```sh\n   cat > x <<'END'\n   word\n   END\n   grep -x word x\n   ```\n",
    "comments in prose": "<!-- of no meaning -->\n\nSome words.\n\n```sh\ntrue\n```\n",
    "background": (
        "<!-- background -->\n```sh\nwhile [ ! -e flag ]; do sleep 0.1; done; echo > seen\n```\n"
        "```sh\ntouch flag\n```\n<!-- wait -->\n```sh\ntest -e seen\n```\n"
    ),
}
BAD = {
    "a failing command": ("```sh\nfalse\n```\n", "line 1: exit code 1, not 0"),
    "a failing command that others follow": ("```sh\nfalse\ntrue\n```\n", "line 1: exit code 1"),
    "a command that is missing": ("Words.\n\n```sh\nno-such-command\n```\n", "line 3: exit code 127"),
    "a failing script": ("```python\nraise SystemExit(3)\n```\n", "exit code 3, not 0"),
    "another exit code": ("<!-- exit code 2 -->\n```sh\nexit 1\n```\n", "exit code 1, not 2"),
    "success where failure was announced": ("<!-- exit code 2 -->\n```sh\ntrue\n```\n", "exit code 0, not 2"),
    "other output": ("```sh\necho a\n```\n<!-- output -->\n```text\nb\n```\n", "the command printed\na\n"),
    "more output": ("```sh\necho a; echo b\n```\n<!-- output -->\n```text\na\n```\n", "the command printed"),
    "output without a command": ("<!-- output -->\n```text\na\n```\n", "no command before"),
    "output that never comes": ("<!-- output -->\n```sh\ntrue\n```\n```sh\ntrue\n```\n", "is to come here"),
    "a failure in the background": ("<!-- background -->\n```sh\nexit 3\n```\n", "exit code 3, not 0"),
    "a failure in the background, waited for": (
        "<!-- background -->\n```sh\nexit 3\n```\n<!-- wait -->\n```sh\nfalse\n```\n",
        "line 2: exit code 3",
    ),
    "a block that does not end in time": ("```sh\nsleep 60\n```\n", "did not end within 1 s"),
    "a background block that does not end in time": ("<!-- background -->\n```sh\nsleep 60\n```\n", "did not end"),
    "a marker that is not spelt so": ("<!-- skip this -->\n```sh\ntrue\n```\n", "no marker: skip this"),
    "a block not run without a reason": ("<!-- not run -->\n```sh\ntrue\n```\n", "no marker: not run"),
    "a marker without a block": ("<!-- background -->\n\nWords.\n", "no block after the marker background"),
    "a marker at the end": ("<!-- output -->\n", "no block after the marker output"),
    "a marker on a block that is not run": ("<!-- background -->\n```toml\na = 1\n```\n", "takes no marker"),
    "another name for sh": ("```bash\ntrue\n```\n", "write sh"),
    "a block without an end": ("```sh\ntrue\n", "does not end"),
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
def test_a_page_that_holds_passes(text: str, tmp_path: Path) -> None:
    assert run(tmp_path, text) == []


@pytest.mark.parametrize(("text", "why"), BAD.values(), ids=BAD.keys())
def test_a_page_that_does_not_hold_fails(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(TutorialError) as found:
        run(tmp_path, text, deadline_s=1.0 if "in time" in why or "did not end" in why else 20.0)
    assert why in str(found.value)


def test_what_is_not_run_is_named_with_its_reason(tmp_path: Path) -> None:
    assert run(tmp_path, "<!-- not run: takes an hour -->\n```sh\nfalse\n```\n") == ["takes an hour"]


def test_nothing_is_left_running(tmp_path: Path) -> None:
    sleeper = "<!-- background -->\n```sh\necho $$ > pid\nsleep 60\n```\n"
    with pytest.raises(TutorialError):
        run(tmp_path, f"{sleeper}```sh\nuntil [ -s pid ]; do sleep 0.1; done\nfalse\n```\n")
    pid = (tmp_path / "run" / "work" / "pid").read_text().strip()
    status = Path(f"/proc/{pid}/status")
    assert not status.exists() or "State:\tZ" in status.read_text()


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\n", "a  \n\n", True),
        ("a…c\n", "a\nb\nc\n", True),
        ("…", "", True),
        ("a.c", "abc", False),
        ("a…", "ba", False),
    ],
)
def test_the_wildcard_stands_for_anything(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) is same


def test_blocks_are_found_with_their_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```sh\na\n```\n\n~~~python\nb\n~~~\n")
    assert [(block.line, block.language, block.text) for block in read_blocks(page)] == [
        (3, "sh", "a\n"),
        (7, "python", "b\n"),
    ]
