"""A page as HTML: a whole document, or its sections one by one for a page that is open already."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from securefda.pages.charts import drawn, legend
from securefda.pages.parts import Cell, Page
from securefda.text import printable

_SIGNS: Final = {
    "": "•",
    "strong": "•",
    "going": "▶",
    "waiting": "…",
    "done": "✓",
    "care": "!",
    "unknown": "?",
    "failed": "✕",
    "none": "–",
}
_LONG_WORD: Final = 32


def sections_of(page: Page) -> list[tuple[str, Markup]]:
    """Return key and HTML of each section, in order; the first one is the head of the page."""
    shown = [section for section in page.sections if section.parts]
    head = _environment().get_template("head.html.j2").render(page=page, sections=shown)
    template = _environment().get_template("section.html.j2")
    rendered = [("head", head), *((section.key, template.render(section=section)) for section in shown)]
    return [(key, Markup(html)) for key, html in rendered]  # noqa: S704 - the templates have escaped every text


def static_page(page: Page, title: str, generator: str, *, sheet: bool = False) -> str:
    """Return a document for a file. It loads nothing and runs nothing: its own policy (CSP) forbids it.

    Args:
        page: what it says.
        title: of the browser's window.
        generator: the command that made it.
        sheet: whether it is to be printed and signed: on paper, print is small and rows to be filled in are high.
    """
    sections = sections_of(page)
    given = {"generator": generator, "policy": content_policy(), "script": "", "skip": (sections[1:] or sections)[0][0]}
    kind = "sheet" if sheet else ""
    return _document(title=title, sections=[(key, "", html) for key, html in sections], kind=kind, **given)


def live_page(title: str, sections: Sequence[tuple[str, str, Markup]]) -> str:
    """Return a document whose script renews the sections: key, digest and HTML of each."""
    return _document(title=title, sections=sections, generator="", policy="", script=script(), skip="page", kind="live")


def content_policy(*more: str) -> str:
    """Return the Content-Security-Policy of a document: its style sheet, and what ``more`` permits."""
    return "; ".join(
        ["default-src 'none'", f"style-src {source_hash(style())}", "base-uri 'none'", "form-action 'none'", *more]
    )


def source_hash(text: str) -> str:
    """Return the expression by which a policy permits one style sheet or script."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


@cache
def style() -> Markup:
    """Return the style sheet."""
    return own_file("chart.css") + own_file("style.css")


@cache
def script() -> Markup:
    """Return the script of a page that is renewed."""
    return own_file("live.js")


def own_file(name: str) -> Markup:
    """Return a file of this package as it is."""
    return Markup(resources.files("securefda.pages").joinpath("templates", name).read_text("utf-8"))  # noqa: S704 - ours


def _document(**values: object) -> str:
    return _environment().get_template("page.html.j2").render(style=style(), **values)


@cache
def _environment() -> Environment:
    """Return the template environment, which compiles each template once."""
    environment = Environment(
        loader=PackageLoader("securefda.pages"),
        autoescape=True,
        finalize=_without_controls,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(drawn=drawn, legend=legend, signs=_SIGNS)
    environment.tests["long"] = _has_long_word
    return environment


def _has_long_word(cell: Cell) -> bool:
    """Return whether a cell holds a word that is to break where the line ends: no other word does."""
    texts = [cell] if isinstance(cell, str) else [text for _, text in cell]
    return any(len(word) >= _LONG_WORD for text in texts for word in re.split(r"[\s/-]", text))


def _without_controls(value: object) -> object:
    """Return text without characters that would control a terminal or the direction of writing."""
    return printable(value) if type(value) is str else value
