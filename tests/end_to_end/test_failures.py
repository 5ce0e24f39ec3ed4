"""Which of several failures of a run is its cause."""

from __future__ import annotations

from typing import Any

import pytest

from securefda.errors import ExitCode
from securefda.local.children import ProcessFailed
from securefda.local.launcher import _CAUSE_S, Failures


def failed(site: str, exit_code: ExitCode, name: str = "") -> ProcessFailed:
    result: dict[str, Any] = {"message": "why", "hint": "", "exit_code": int(exit_code), "error_code": name}
    return ProcessFailed(site, result)


OWN = failed("hospital-a", ExitCode.CONFIG)
COMPLAINT = failed("clinic", ExitCode.QUORUM)
SECOND_COMPLAINT = failed("hospital-b", ExitCode.CONNECTION)
FOLLOWS = failed("hospital-c", ExitCode.FAILED, "RunEnded")


@pytest.mark.parametrize(
    ("heard", "cause"),
    [
        ((COMPLAINT, OWN), OWN),
        ((FOLLOWS, COMPLAINT, SECOND_COMPLAINT), COMPLAINT),
        ((FOLLOWS,), FOLLOWS),
        ((FOLLOWS, COMPLAINT, OWN), OWN),
    ],
)
def test_what_a_site_says_of_itself_comes_first_and_what_follows_last(
    heard: tuple[ProcessFailed, ...], cause: ProcessFailed
) -> None:
    failures = Failures()
    assert all(failures.add(one, 0.0) for one in heard)
    assert failures.first_cause is cause


def test_a_complaint_gives_the_others_time_and_a_second_one_gives_no_more() -> None:
    failures = Failures()
    assert failures.add(FOLLOWS, 0.0)
    assert not failures.have_waited(10 * _CAUSE_S)
    assert failures.add(COMPLAINT, 1.0)
    assert failures.add(SECOND_COMPLAINT, 1.0 + _CAUSE_S)
    assert not failures.add(COMPLAINT, 1.0 + _CAUSE_S)
    assert not failures.have_waited(1.0 + _CAUSE_S)
    assert failures.have_waited(1.1 + _CAUSE_S)
    assert failures.complaints == [COMPLAINT, SECOND_COMPLAINT]
