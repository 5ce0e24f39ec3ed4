"""Every command of the tutorials, and of some how-to guides, runs, and prints what the page says."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
from tutorial_runner import ROOT, TutorialError, TutorialRun, one_page_at_a_time
from typed_commands import forked_line

STAND_IN = Path(__file__).with_name("encoder_stand_in")
"""Modules named as a page's encoder and its weights; they give numbers of their own."""
HOW_TO = ("certificates", "your-pytorch-project")
PAGES = [
    *sorted(page for page in (ROOT / "docs" / "tutorials").glob("*.md") if page.name != "index.md"),
    *(ROOT / "docs" / "how-to" / f"{name}.md" for name in HOW_TO),
]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_the_tutorial_runs(page: Path, tmp_path: Path) -> None:
    encodes = page.stem == "pretrained-encoder"  # other processors, other features, and other rows are drawn
    with one_page_at_a_time():
        run = TutorialRun(page, tmp_path, command=forked_line(), any_numbers=encodes)
        if encodes and importlib.util.find_spec("efficientnet_lite_pytorch") is None:
            shutil.copytree(STAND_IN, tmp_path / "work", dirs_exist_ok=True)
        run.run()


def run(folder: Path, text: str, deadline_s: float = 20.0) -> list[str]:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    (folder / "run").mkdir()
    return TutorialRun(page, folder / "run", deadline_s=deadline_s).run()


BAD = {
    "a failing command": ("```sh\nfalse\n```\n", "line 1: exit code 1, not 0"),
    "a failing command that others follow": ("```sh\nfalse\ntrue\n```\n", "line 1: exit code 1"),
    "another exit code": ("<!-- exit code 2 -->\n```sh\nexit 1\n```\n", "exit code 1, not 2"),
    "other output": ("```sh\necho a\n```\n<!-- output -->\n```text\nb\n```\n", "the command printed\na\n"),
    "a failure in the background": ("<!-- background -->\n```sh\nexit 3\n```\n", "exit code 3, not 0"),
}


@pytest.mark.parametrize(("text", "why"), BAD.values(), ids=BAD.keys())
def test_a_page_that_does_not_hold_fails(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(TutorialError) as found:
        run(tmp_path, text)
    assert why in str(found.value)
