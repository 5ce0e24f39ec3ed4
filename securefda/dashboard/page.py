"""The page as HTML: a whole document, or its sections one by one for a page that is open already."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from securefda.dashboard import charts
from securefda.dashboard.parts import Page, State
from securefda.dashboard.reading import Seen
from securefda.dashboard.source import source_page
from securefda.dashboard.target import target_page
from securefda.dashboard.words import problem_section

SIGNS: Final = {"going": "▶", "waiting": "…", "done": "✓", "failed": "✕", "none": "–"}


@dataclass(frozen=True, slots=True)
class Rendered:
    """A page ready to send.

    Attributes:
        title: of the browser's window.
        state: the state's word, for those to whom the page is read.
        sections: key, digest and HTML of each, in order; the first is the head of the page.
    """

    title: str
    state: str
    sections: tuple[tuple[str, str, str], ...]


def page_of(seen: Seen) -> Page:
    """Return the page of what was seen."""
    match seen.place.role:
        case "target":
            return target_page(seen)
        case "source":
            return source_page(seen)
        case _:
            folder = seen.place.asked
            text = f"There is no run in {folder} yet. This page shows it as soon as it begins."
            sections = [one for one in [problem_section(seen.problems)] if one.parts]
            return Page("No run yet", str(folder), State("none", "Not begun", text), sections)


def rendered(page: Page) -> Rendered:
    """Render the parts of a page as HTML. Every text in it is escaped."""
    templates = _environment()
    head = templates.get_template("head.html.j2").render(page=page, sign=SIGNS[page.state.tone])
    section = templates.get_template("section.html.j2")
    parts = [
        ("head", head),
        *((one.key, section.render(section=one, charts=charts, signs=SIGNS)) for one in page.sections),
    ]
    word = page.state.word
    return Rendered(f"{word}: {page.title} – securefda", word, tuple((key, _digest(html), html) for key, html in parts))


def document(page: Rendered) -> str:
    """Return the whole document. It loads nothing but the events of this server."""
    templates = _environment()
    return templates.get_template("document.html.j2").render(page=page, style=style(), script=script())


def policy_of_content() -> str:
    """Return the Content-Security-Policy of a document: this style, this script, events of this server, its icon."""
    return "; ".join(
        [
            "default-src 'none'",
            f"style-src '{_source_hash(style())}'",
            f"script-src '{_source_hash(script())}'",
            "connect-src 'self'",
            "img-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


@cache
def style() -> Markup:
    """Return the style sheet."""
    return _own_file("style.css")


@cache
def script() -> Markup:
    """Return the script."""
    return _own_file("script.js")


@cache
def icon() -> str:
    """Return an icon for the window, as SVG."""
    return str(_own_file("icon.svg"))


def _own_file(name: str) -> Markup:
    return Markup(resources.files("securefda.dashboard").joinpath("templates", name).read_text("utf-8"))  # noqa: S704 - ours


def _source_hash(text: str) -> str:
    return f"sha256-{b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}"


def _digest(html: str) -> str:
    return hashlib.sha256(html.encode("utf-8")).hexdigest()[:16]


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("securefda.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
