"""The README and the manual: each link leads somewhere, each file and each command in them exists, none is stale."""

from __future__ import annotations

import ast
import errno
import importlib
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tutorial_runner import read_blocks
from typer.exceptions import TyperException

from securefda.cli.app import COMMAND

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)]
BUILT = ("docs/_build/",)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_FENCED = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1", flags=re.DOTALL | re.MULTILINE)
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")} - {"runs", "kits"}


def missing_links(page: Path, text: str) -> Iterator[str]:
    """Relative links of a page to a file that is not there, or to a heading that its page does not have."""
    for link in _LINK.findall(_FENCED.sub("", text)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target.read_text())):
            yield link


def anchors(text: str) -> set[str]:
    """Anchors of the headings of a page, as GitHub and MyST make them."""
    found: set[str] = set()
    for title in re.findall(r"^#+ +(.*?)\s*$", _FENCED.sub("", text), flags=re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        found.add(next(name for n in range(1000) if (name := f"{plain}-{n}" if n else plain) not in found))
    return found


def missing_files(text: str) -> Iterator[str]:
    """Paths in code font that begin with a folder of the repository and are not there."""
    for code in _CODE.findall(_FENCED.sub("", text)):
        path, _, _ = code.partition(":")
        named = re.fullmatch(r"[\w.-]+(/[\w.-]+)+/?", path) and path.split("/")[0] in FOLDERS
        if named and not (ROOT / path).exists() and not path.startswith(BUILT):
            yield code


def typed_commands(script: str) -> Iterator[list[str]]:
    """Arguments of each ``securefda`` that a block of sh calls."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;<>()")
        lexer.whitespace_split = True
        word: list[str] = []
        for token in [*lexer, ";"]:
            if not re.fullmatch(r"[|&;<>()]+", token):
                word.append(token)
                continue
            while word and re.fullmatch(r"\w+=.*", word[0]):
                word = word[1:]
            if word and Path(word[0]).name == "securefda":
                yield [re.sub(r"\$\w+", "1", argument) for argument in word[1:]]  # variables of the shell: any value
            word = ["(redirected to)"] if token in ("<", ">", ">>") else []


def fault(arguments: list[str], *, whole: bool) -> str | None:
    """What the command's own parser says against these arguments; ``whole`` false lets required ones be missing."""
    command: Any = COMMAND
    name = ["securefda"]
    while hasattr(command, "commands"):
        if not arguments or arguments[0].startswith("-"):
            return None if whole is False or arguments[:1] in (["--help"], ["--version"]) else "names no command"
        if arguments[0] not in command.commands:
            return f"{' '.join(name)} has no command {arguments[0]}"
        command, name, arguments = command.commands[arguments[0]], [*name, arguments[0]], arguments[1:]
    if arguments == ["--help"]:
        return None
    if not whole:
        options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        unknown = [word for word in arguments if word.startswith("--") and word.partition("=")[0] not in options]
        return f"{' '.join(name)} has no option {unknown[0]}" if unknown and unknown != ["--help"] else None
    try:
        # As the program's own does, since a command keeps the help option that it was first asked for.
        command.make_context(" ".join(name), list(arguments), help_option_names=["-h", "--help"])
    except TyperException as error:
        return error.format_message()
    return None


def wrong_commands(page: Path) -> Iterator[str]:
    """Command lines of a page, in its blocks and in code font, that the parser refuses."""
    for block in read_blocks(page):
        for arguments in typed_commands(block.text) if block.language == "sh" else ():
            if why := fault(arguments, whole=True):
                yield f"line {block.line}: securefda {' '.join(arguments)}: {why}"
    for code in _CODE.findall(_FENCED.sub("", page.read_text(encoding="utf-8"))):
        words = code.split()
        # `securefda COMMAND --help` is a form and no command; `audit verify|show` stands for several.
        if words[0] == "securefda" and re.fullmatch(r"[a-z]+", words[1] if len(words) > 1 else ""):
            for choice in words[2].split("|") if len(words) > 2 and "|" in words[2] else [None]:
                arguments = words[1:] if choice is None else [words[1], choice, *words[3:]]
                if why := fault([word for word in arguments if not re.fullmatch(r"[A-Z.]+|…", word)], whole=False):
                    yield f"{code}: {why}"


def missing_names(page: Path) -> Iterator[str]:
    """What the Python of a page imports of securefda that is not there."""
    for block in read_blocks(page):
        for node in ast.walk(ast.parse(block.text)) if block.language == "python" else ():
            if isinstance(node, ast.ImportFrom) and node.module and "securefda" in node.module:
                module = importlib.import_module(node.module)
                yield from (f"{node.module}.{alias.name}" for alias in node.names if not hasattr(module, alias.name))


def lines_of_the_runbook() -> Iterator[str]:
    """What the tables with a first column "line" say that a process prints, without what stands for anything."""
    text = (ROOT / "docs/how-to/when-something-fails.md").read_text(encoding="utf-8")
    for table in re.findall(r"^\| line \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, flags=re.MULTILINE):
        for row in table.splitlines():
            for code in _CODE.findall(row.split(" | ")[0]):
                yield from (part for part in map(str.strip, code.split("…")) if len(part) > 3)


def test_the_lines_of_the_runbook_are_lines_of_the_code() -> None:
    code = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "securefda").rglob("*.py"))
    printed = re.sub(r'"\n *f?"', "", code) + os.strerror(errno.ENOSPC)
    lines = list(lines_of_the_runbook())
    assert len(lines) > 40
    assert [line for line in lines if line not in printed] == []


def names_of_the_api() -> set[str]:
    """What the page of the API documents."""
    text = (ROOT / "docs/reference/api.md").read_text(encoding="utf-8")
    modules = re.findall(r"automodule:: (\S+)\n   :members:", text)
    whole = {name for module in modules for name in vars(importlib.import_module(module))}
    return {*re.findall(r"auto(?:function|class):: (?:\w+\.)*(\w+)", text), *whole}


def test_what_pages_import_of_securefda_is_on_the_page_of_the_api() -> None:
    imported = {
        alias.name: page.name
        for page in PAGES
        for block in read_blocks(page)
        if block.language == "python"
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "securefda"
        for alias in node.names
    }
    assert {name: page for name, page in imported.items() if name not in names_of_the_api()} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_files_commands_and_imports_of_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert list(missing_links(page, text)) == []
    assert list(missing_files(text)) == []
    assert list(wrong_commands(page)) == []
    assert list(missing_names(page)) == []


@pytest.mark.parametrize(
    "index", [page for page in PAGES if page.name == "index.md"], ids=lambda page: page.parent.name
)
def test_an_index_links_every_page_of_its_folder(index: Path) -> None:
    """The manual's navigation is made of these links."""
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(index.read_text())}
    assert {page for page in index.parent.glob("*.md") if page != index} - linked == set()
