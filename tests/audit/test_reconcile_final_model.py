"""The end of a run: a model that a source kept, and the target left it, is that of the last result, or is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_builder import SOURCES, TARGET, Passing, Run, digest, read_together, sign
from run_lies import A, B, first

from securefda.audit.log_records import Disclosure
from securefda.protocol import messages as m

pytestmark = pytest.mark.usefixtures("no_disk_sync")

LAST = digest("model", 3)
MODEL = Disclosure("individual", "model", 1)


class Keeps(Run):
    """A run that leaves its sources the final model. Fields of class hold what B keeps and is left."""

    promised = m.SourcesKeep.FINAL
    kept, left, named = LAST, LAST, 3
    logs_sent, disclosed = True, MODEL

    def header_changes(self, number: int, attempt: int) -> dict[str, Any]:
        return {"sources_keep": self.promised}

    def finish(self, header: m.Signed[m.Header], place: tuple[int, int, str], level: m.Visibility) -> None:
        super().finish(header, place, level)
        self.results = {**getattr(self, "results", {}), place[0]: self.result}

    def say_goodbye(self, site: str) -> None:
        named, left = (self.named, self.left) if site == B else (3, LAST)
        goodbye = sign(TARGET, m.Goodbye(True, 3, "", self.results.get(named, digest("no result")), left))
        is_logged = self.logs_sent or site != B
        disclosed = self.disclosed if site == B else MODEL
        self.send(Passing(TARGET, site, goodbye, disclosure=disclosed, logs_sent=is_logged))
        self.event(site, "model-kept", model=(self.kept if site == B else LAST).hex())


def keeping(folder: Path, sites: tuple[str, ...] = (TARGET, *SOURCES), **changes: Any) -> Any:
    run = Keeps(folder)
    for name, value in changes.items():
        setattr(run, name, value)
    return read_together(run.write(), sites)


def test_the_model_of_the_last_result_is_no_finding(tmp_path: Path) -> None:
    outcome = keeping(tmp_path)

    assert outcome.findings == ()
    assert outcome.counts["final models compared with the last result"] == 3


def test_a_source_that_keeps_another_model_than_it_was_left_is_accused(tmp_path: Path) -> None:
    findings = keeping(tmp_path, kept=digest("model", 2)).findings

    assert first(findings) == ("wrong-model", "model-kept", 0, (B,), False)
    assert findings[0].what == f"{B} kept another final model than that of the last result, of round 3"
    assert len(findings) == 1


def test_a_source_that_keeps_a_model_which_the_headers_leave_to_none_is_accused(tmp_path: Path) -> None:
    findings = keeping(tmp_path, promised=m.SourcesKeep.NONE).findings

    assert {(one.kind, one.accused) for one in findings} == {("wrong-model", (site,)) for site in SOURCES}
    assert findings[0].what == f"{A} kept the final model, which the headers of the run leave to no source"


def test_a_target_that_leaves_a_source_an_older_model_is_accused(tmp_path: Path) -> None:
    older = digest("model", 2)
    findings = keeping(tmp_path, kept=older, left=older, named=2).findings

    assert first(findings) == ("wrong-model", "model-kept", 0, (TARGET,), False)
    assert findings[0].what == (
        f"{TARGET} left {B} a final model that is not that of its last result, of round 3, but names that of round 2"
    )
    assert len(findings) == 1


@pytest.mark.parametrize("sites", [SOURCES, (B, A)])
def test_without_the_targets_log_an_older_model_is_a_disagreement(sites: tuple[str, ...], tmp_path: Path) -> None:
    older = digest("model", 2)
    findings = keeping(tmp_path, sites, kept=older, left=older, named=2).findings

    assert first(findings) == ("wrong-model", "model-kept", 0, tuple(sorted((B, TARGET))), False)


def test_a_model_of_a_result_that_no_site_has_is_a_note_that_asks_for_attention(tmp_path: Path) -> None:
    unknown = digest("model 4")
    outcome = keeping(tmp_path, kept=unknown, left=unknown, named=4)

    assert outcome.findings == ()
    assert [(one.what, one.site, one.care) for one in outcome.notices if "final model" in one.what] == [
        ("it kept the final model of a result that no site here has kept; the last here is of round 3", B, True)
    ]


@pytest.mark.parametrize(("left", "disclosed"), [(LAST, None), (b"", MODEL)])
def test_a_goodbye_whose_record_says_of_the_model_what_is_not_so_accuses_the_target(
    left: bytes, disclosed: Disclosure | None, tmp_path: Path
) -> None:
    class Bare(Keeps):
        def say_goodbye(self, site: str) -> None:
            if left or site != B:
                super().say_goodbye(site)
            else:
                self.send(Passing(TARGET, site, sign(TARGET, m.Goodbye(True, 3, "")), disclosure=disclosed))

    run = Bare(tmp_path)
    run.disclosed = disclosed  # type: ignore[assignment]
    findings = read_together(run.write()).findings

    assert first(findings) == ("disclosure-differs", "Goodbye", 0, (TARGET,), False)
    assert len(findings) == 1
