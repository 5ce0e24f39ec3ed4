"""The audit page in Chromium, on machines that have one: both widths, light and dark, keyboard, print, no complaint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from audit_report_logs import Logs
from audit_report_pages import Page, page_of
from browser import BROKEN_WORDS, CHROMIUM, CUT_TEXTS, LOW_CONTRAST, NARROW, OVERFLOW, WIDE, Tab, browser

_BOXES_BEYOND = """
[...document.querySelectorAll('.scroll')].filter(box => box.getBoundingClientRect().right > innerWidth).length
"""
_TABLES_NOT_SHOWN = """
[...document.querySelectorAll('table')].filter(table => !table.offsetHeight).map(
  table => table.getAttribute('aria-labelledby'))
"""
_SIGNOFF = "getComputedStyle(document.querySelector('#signoff')).display"
_SCROLL_WITHOUT_A_WORD = """
[...document.querySelectorAll('.box')].filter(box => {
  const scroll = box.querySelector('.scroll'), hint = box.querySelector('.hint');
  return scroll.scrollWidth > scroll.clientWidth && hint && getComputedStyle(hint).display === 'none';
}).map(box => box.querySelector('.caption').id)
"""
_UNFOLDED = """
[...document.querySelectorAll('details')].map(part => getComputedStyle(part, '::details-content').contentVisibility)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with everything on it, long names and folders among it."""
    folder = tmp_path_factory.mktemp("audit")
    logs = Logs(folder / "run", sources=5, bare=("source-5",), entities={"source-1": "Hospital " + "x" * 150})
    logs.begin()
    for number in (1, 2, 3):
        logs.round(number)
        logs.event("source-1", "alarm", number, check="c" * 64, accused=sorted(logs.sites))
        logs.witness()
    page_of(logs.close())
    return folder / "page.html"


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browser() as opened:
        yield opened


class InChromium:
    @pytest.mark.parametrize("width", [WIDE, NARROW])
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_nothing_overflows_nothing_is_faint_and_the_browser_has_no_complaint(
        self, tab: Tab, file: Path, width: int, scheme: str
    ) -> None:
        tab.use(scheme=scheme)
        tab.open(file, width)
        tab.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
        assert tab.evaluate(OVERFLOW) == 0
        assert tab.evaluate(BROKEN_WORDS) == []
        assert tab.evaluate(CUT_TEXTS) == []
        assert tab.evaluate(_BOXES_BEYOND) == 0
        assert tab.evaluate(_TABLES_NOT_SHOWN) == []
        assert tab.evaluate(LOW_CONTRAST) == []
        assert tab.complaints == []

    def test_the_keyboard_reaches_every_part_in_the_order_of_the_page(self, tab: Tab, file: Path) -> None:
        tab.use()
        tab.open(file)
        stops = [tab.press_tab() for _ in range(40)]
        tables = [name for name in Page(file).tables if name not in ("events", "by-round")]  # these are folded
        assert stops[0] == "a #figures"
        assert stops[1:13] == [
            f"a #{name}"
            for name in (
                *("said", "proves", "federation", "all-runs", "disclosures", "timeline", "privacy"),
                *("weights", "bytes", "trouble", "verification", "glossary"),
            )
        ]
        assert [stop.split()[1] for stop in stops if stop.startswith("div ")][: len(tables)] == tables
        assert any(stop.startswith("summary ") for stop in stops)

    def test_the_skip_link_shows_itself_when_it_has_the_focus(self, tab: Tab, file: Path) -> None:
        tab.use()
        tab.open(file)
        left = "document.querySelector('.skip').getBoundingClientRect().left"
        assert tab.evaluate(left) < 0
        tab.press_tab()
        assert tab.evaluate(left) >= 0

    def test_what_is_folded_on_the_screen_is_printed(self, tab: Tab, file: Path) -> None:
        tab.use()
        tab.open(file)
        assert set(tab.evaluate(_UNFOLDED)) == {"hidden"}
        tab.use(media="print")
        assert set(tab.evaluate(_UNFOLDED)) == {"visible"}
        assert tab.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
        assert tab.evaluate(_SIGNOFF) == "block"
        tab.use()
        assert tab.evaluate(_SIGNOFF) == "none"

    def test_a_table_that_scrolls_says_so(self, tab: Tab, file: Path) -> None:
        tab.use()
        for width in (WIDE, NARROW):
            tab.open(file, width)
            assert tab.evaluate(_SCROLL_WITHOUT_A_WORD) == []

    def test_a_page_that_does_what_is_forbidden_is_complained_of(self, tab: Tab, file: Path, tmp_path: Path) -> None:
        bad = tmp_path / "bad.html"
        planted = f"<script>1</script><pre class='scroll'>{'x' * 500}</pre></main>"
        bad.write_text(file.read_text().replace("</main>", planted))
        tab.use()
        before = len(tab.complaints)
        tab.open(bad, NARROW)
        assert tab.evaluate("document.querySelector('pre.scroll').scrollWidth") > NARROW
        assert len(tab.complaints) > before
        tab.complaints.clear()


if CHROMIUM is not None:
    TestInChromium = InChromium
