"""The run report in Chromium: nothing is cut off, broken or faint, at every width, light, dark and printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import BROKEN_WORDS, CHROMIUM, CUT_TEXTS, LOW_CONTRAST, MIDDLE, NARROW, OVERFLOW, WIDE, browser

from securefda.operations.records import RoundLine, SiteLine, summarise
from securefda.operations.report import render_report
from securefda.operations.run_folder import RunRecord

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium")

PHASES = (
    *("train_target", "training and R0 advertise", "R1 shares", "R2 masked input", "R3 survivors", "R4 unmask"),
    *("rule", "evaluate", "witness"),
)
PAPER = 718
"""Width of a printed A4 page without its margins, in pixels of the style sheet."""
NAMES = "[...document.querySelectorAll('.legend li')].map(text => text.textContent)"


LONG = [
    f"{'regional-hospital-of-the-sisters-of-mercy' * (place == 1)}-site-{place}".strip("-") for place in range(1, 6)
]


def run_of(folder: Path, sites: list[str], numbers: range) -> RunRecord:
    """A finished run with everything on its page."""
    seen = [{"level": "sum", "members": sites, "rows": 900, "loss": 1.0, "accuracy": 0.5}]
    lines = tuple(
        RoundLine(
            round=number,
            rule="fedgp_auto",
            accuracy=0.5,
            metrics={"accuracy": 0.5, "balanced_accuracy": 0.5, "auroc": 0.7},
            loss=12345.678,
            status="finished",
            seconds=dict.fromkeys(PHASES, 0.25),
            source_share=0.4,
            target_cosine=0.5,
            survivors=sites,
            dropped=sites[:1],
            refused={sites[-1]: "privacy.max-visibility"},
            levels=dict.fromkeys(sites, "sum"),
            seen=seen,  # type: ignore[typeddict-item]
            bytes_up=dict.fromkeys(sites, 10_000),
            bytes_down=dict.fromkeys(sites, 90_000),
            model_digest="ab" * 32,
        )
        for number in numbers
    )
    own = {site: tuple(SiteLine(round=line["round"], beta=0.5) for line in lines) for site in sites}
    summary = summarise(
        lines,
        run_id="cd" * 16,
        task="package.module:Task",
        strategy={"rule": "fedgp_auto", "rounds": 30, "beta": 0.5},
        visibility=dict.fromkeys(sites, "sum"),
        rounds_planned=len(numbers),
        status="finished",
    )
    return RunRecord(folder, summary.as_json(), lines, own)


@pytest.mark.parametrize(
    ("sites", "numbers"),
    [
        (LONG[:2], range(1, 2)),
        (LONG, range(12_340, 12_360)),
        ([f"source-{place}" for place in range(1, 41)], range(1, 41)),
    ],
)
def test_a_page_is_whole_and_legible_at_every_width_and_in_print(
    tmp_path: Path, sites: list[str], numbers: range
) -> None:
    page = tmp_path / "report.html"
    page.write_text(render_report(run_of(tmp_path, sites, numbers)))
    with browser() as tab:
        for scheme in ("light", "dark"):
            for width in (WIDE, MIDDLE, NARROW):
                tab.use(scheme=scheme)
                tab.open(page, width)
                tab.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
                assert tab.evaluate(OVERFLOW) == 0
                assert tab.evaluate(BROKEN_WORDS) == []
                assert tab.evaluate(CUT_TEXTS) == []
                assert tab.evaluate(LOW_CONTRAST) == []
        tab.use(scheme="dark", media="print")
        tab.resize(PAPER)
        assert tab.evaluate(OVERFLOW) == 0
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert tab.complaints == []


def test_the_names_of_all_phases_are_whole(tmp_path: Path) -> None:
    rounds = tuple(
        RoundLine(round=number, accuracy=0.5, status="finished", seconds=dict.fromkeys(PHASES, 0.25))
        for number in range(1, 9)
    )
    page = tmp_path / "report.html"
    page.write_text(render_report(RunRecord(tmp_path, None, rounds, {})))
    with browser() as tab:
        for width in (WIDE, NARROW):
            tab.open(page, width)
            assert "collecting signatures of who is in the sum" in tab.evaluate(NAMES)
            assert tab.evaluate(CUT_TEXTS) == []


def test_every_part_is_reached_by_keyboard_and_the_focus_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(render_report(run_of(tmp_path, [f"source-{place}" for place in range(1, 41)], range(1, 41))))
    with browser() as tab:
        tab.open(page)
        stops, outlines = [], set()
        for _ in range(15):
            stops.append(tab.press_tab())
            outlines.add(tab.evaluate("getComputedStyle(document.activeElement).outlineStyle"))
        contents = ("result", "protection", "charts", "rounds", "sources", "seen", "settings", "about")
        assert stops[:9] == ["a #result", *(f"a #{name}" for name in contents)]
        assert stops[9:15] == [
            *("div models", "summary 40 round", "summary 40 sourc", "div seen-heading", "div settings-heading"),
            "summary 1 settin",
        ]
        assert outlines == {"solid"}
