"""A malicious aggregator over mutual TLS: each source is a process, refuses by name, and ends as its operator is told."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from e2e_processes import assert_one_clear_line, kits

from securefda.errors import ExitCode
from securefda.protocol.messages import Advertise, MaskedInput
from threat_model.adversaries.run_after_run import RunAfterRun
from threat_model.over_tls import OverTls

BIAS = 1


@pytest.mark.threat("T38")
def test_second_run_on_a_new_connection_gets_no_answer(tmp_path: Path) -> None:
    settings = ("strategy.rule=fedgp", "strategy.warm-up-rounds=0", "strategy.rounds=1")
    with (
        kits(tmp_path, settings=settings) as federation,
        OverTls(federation.kit("target"), tmp_path / "target.sqlite", partial(RunAfterRun, layer=BIAS)) as attacker,
    ):
        sources = [federation.start(site) for site in federation.names]
        for source in sources:
            assert_one_clear_line(source, ExitCode.CONFIG, "belongs to run", hint="--out FOLDER")
    assert [len(attacker.said(index, Advertise)) for index in (1, 2, 3)] == [1, 1, 1]
    assert [len(attacker.said(index, MaskedInput)) for index in (1, 2, 3)] == [0, 0, 0]
