"""The page of one look at a site's files, ready to send."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from markupsafe import Markup

from securefda.dashboard.shared_parts import problem_section
from securefda.dashboard.site_reader import Seen
from securefda.dashboard.source_page import source_page
from securefda.dashboard.target_page import target_page
from securefda.pages.html import content_policy, live_page, script, sections_of, source_hash
from securefda.pages.parts import Page, State


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
    sections: tuple[tuple[str, str, Markup], ...]


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
            return Page("No run yet", [str(folder)], State("none", "Not begun", text), [problem_section(seen.problems)])


def rendered(page: Page) -> Rendered:
    """Render the parts of a page as HTML. Every text in it is escaped."""
    word, sections = page.state.word, sections_of(page)
    digests = (hashlib.sha256(html.encode("utf-8")).hexdigest()[:16] for _, html in sections)
    parts = tuple((key, digest, html) for (key, html), digest in zip(sections, digests, strict=True))
    return Rendered(f"{word}: {page.title} – securefda", word, parts)


def document(page: Rendered) -> str:
    """Return the whole document. It loads nothing but the events of this server."""
    return live_page(page.title, page.sections)


def policy_of_content() -> str:
    """Return the Content-Security-Policy of a document: its style, its script, events of this server, its icon."""
    script_src = f"script-src {source_hash(script())}"
    return content_policy(script_src, "connect-src 'self'", "img-src 'self'", "frame-ancestors 'none'")
