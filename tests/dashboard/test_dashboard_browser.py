"""The page in Chromium: both widths, light and dark, by keyboard, live, and without a request to anyone else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from browser import BROKEN_WORDS, CHROMIUM, CUT_TEXTS, LOW_CONTRAST, MIDDLE, NARROW, OVERFLOW, WIDE, Tab, browser
from dashboard_process import Served, event, serving
from watched_sites import SOURCES, Site

from securefda.dashboard.page_server import MOST_STREAMS
from securefda.samples import sample

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium")

_LIVE = "document.getElementById('link').textContent === 'Live'"
_STATE = "document.querySelector('.word').textContent"
_UNNAMED = """
[...document.querySelectorAll('section')].filter(
  one => !document.getElementById(one.getAttribute('aria-labelledby'))?.textContent.trim()).map(one => one.id)
"""
_FOCUS = "document.activeElement.id || document.activeElement.getAttribute('href')"


@pytest.fixture
def tab() -> Iterator[Tab]:
    with browser() as opened:
        yield opened


def _full_target(target: Site, source: Site) -> None:
    """A run with everything on its page."""
    with target.log() as append:
        for site in SOURCES:
            append("received", "Join", peer=site)
        append("event", "alarm", 2, peer=SOURCES[1], facts={"check": "c" * 64, "accused": [SOURCES[1]]})
    for number in range(1, 61):
        target.target_round(number, target_epsilon=number / 20)
    target.target_round(61, status="lost", dropped=[SOURCES[1]], survivors=[])
    for name in SOURCES:
        for number in range(1, 61):
            source.source_round(number)
        shutil.move(source.run, target.run / "sites" / name)
    (target.run / "metrics.jsonl").open("ab").write(b"not json\n")


def _full_source(source: Site) -> None:
    with source.log() as append:
        for number in range(1, 41):
            source.update_left(append, number, epsilon=number / 6)
            source.source_round(number)
        append("event", "refused", 41, facts={"check": "limits.max-epochs"})


def _only_this_server_was_asked(tab: Tab, served: Served) -> bool:
    return {urlsplit(url).netloc for url in tab.asked} == {served.host}


@pytest.mark.parametrize("of", ["target", "source", "nothing"])
def test_nothing_overflows_or_is_faint_and_no_one_else_is_asked(
    tab: Tab, target: Site, source: Site, tmp_path: Path, of: str
) -> None:
    if of == "target":
        _full_target(target, source)
    elif of == "source":
        _full_source(source)
    folder = {"target": target.kit, "source": source.kit, "nothing": tmp_path / "nothing"}[of]
    with serving(folder) as served:
        for width in (WIDE, MIDDLE, NARROW):
            for scheme in ("light", "dark"):
                tab.use(scheme=scheme)
                tab.open(served.url, width)
                tab.wait_until(_LIVE)
                tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
                assert tab.evaluate(OVERFLOW) == 0
                assert tab.evaluate(BROKEN_WORDS) == []
                assert tab.evaluate(CUT_TEXTS) == []
                assert tab.evaluate(LOW_CONTRAST) == []
                assert tab.evaluate(_UNNAMED) == []
        assert tab.complaints == []
        assert _only_this_server_was_asked(tab, served)


def test_every_part_is_reached_and_opened_by_keyboard(tab: Tab, source: Site) -> None:
    _full_source(source)
    with serving(source.kit) as served:
        tab.open(served.url)
        tab.wait_until(_LIVE)
        stops = []
        for _ in range(10):
            tab.press_tab()
            stops.append(tab.evaluate(_FOCUS))
        summaries = [
            f"policy-{key}-summary" for key in ("learns", "hidden", "noise", "pays", "keeps", "agreed", "rests")
        ]
        assert stops == ["#page", "left-table", "rounds-table", *summaries]
        tab.evaluate("document.getElementById('policy-hidden-summary').focus()")
        tab.press_enter()
        tab.wait_until("document.getElementById('policy-hidden').open")
        assert tab.complaints == []


def test_what_a_reader_opened_and_focused_stays_when_new_figures_come(tab: Tab, source: Site) -> None:
    _full_source(source)
    with serving(source.kit) as served:
        tab.open(served.url)
        tab.wait_until(_LIVE)
        tab.evaluate("document.getElementById('policy-noise').open = true")
        tab.evaluate("document.getElementById('rounds-table').focus()")
        tab.evaluate("document.getElementById('rounds-table').scrollTop = 40")
        source.source_round(77)
        file = source.kit / "local" / "policy.toml"
        file.write_text(file.read_text() + "\n")
        tab.wait_until("document.getElementById('rounds').textContent.includes('77')")
        tab.wait_until("document.getElementById('policy').textContent.includes('changed after it was signed')")
        assert tab.evaluate("document.getElementById('policy-noise').open")
        assert tab.evaluate(_FOCUS) == "rounds-table"
        assert tab.evaluate("document.getElementById('rounds-table').scrollTop") == 40


def test_a_page_that_is_turned_away_says_so_and_tries_again_by_itself(tab: Tab, target: Site) -> None:
    with serving(target.kit) as served:
        with ExitStack() as stack:
            for _ in range(MOST_STREAMS):
                event(stack.enter_context(served.stream()))
            tab.open(served.url)
            tab.wait_until("document.getElementById('link').textContent.startsWith('Connection lost')")
            target.target_round(1)
        tab.wait_until(_LIVE)
        tab.wait_until("document.querySelector('.tile .value')?.textContent === '1'")


def test_a_page_whose_server_has_ended_says_so_and_keeps_its_figures(tab: Tab, target: Site) -> None:
    target.target_round(1)
    with serving(target.kit) as served:
        tab.open(served.url)
        tab.wait_until(_LIVE)
    tab.wait_until("document.getElementById('link').textContent.startsWith('Connection lost')")
    assert "round of 12" in tab.evaluate("document.body.innerText")


def test_another_hosts_page_cannot_read_it(tab: Tab, target: Site, tmp_path: Path) -> None:
    with serving(target.kit) as served, serving(tmp_path / "other") as other:
        tab.open(other.url)
        tab.wait_until(_LIVE)
        for url in (served.url, f"{served.url}events"):
            read = f"fetch({url!r}).then(answer => answer.text()).then(() => 'read').catch(() => 'refused')"
            tab.evaluate(f"{read}.then(found => window.found = found)")
            tab.wait_until("window.found")
            assert tab.evaluate("window.found") == "refused"
            tab.evaluate("window.found = ''")


def test_a_run_is_watched_from_before_it_begins_to_its_end(tab: Tab, tmp_path: Path) -> None:
    example = sample("digits")
    out = tmp_path / "run"
    with serving(out) as served:
        tab.open(served.url, NARROW)
        tab.wait_until(_LIVE)
        assert "Not begun" in tab.evaluate(_STATE)
        options = ["--set", "strategy.rounds=3", "--set", "strategy.warm-up-rounds=1"]
        command = [sys.executable, "-m", "securefda.cli", "run", str(example), "--out", str(out), *options]
        subprocess.run(command, check=True, capture_output=True)
        tab.wait_until(f"{_STATE}.includes('Finished')")
        assert "3 of 3 rounds" in tab.evaluate("document.querySelector('.state').innerText")
        assert tab.evaluate("document.getElementById('announce').textContent") == "Finished"
        assert tab.complaints == []
        assert _only_this_server_was_asked(tab, served)
