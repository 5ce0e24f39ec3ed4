"""A site's operator at the command line, for the tests of the budget commands."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from securefda.audit.charges import logged_charges
from securefda.audit.journal import Journal, RunInfo, logs_folder
from securefda.cli import main
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import Budget, DpEvent
from securefda.samples import sample
from securefda.site.budget import BudgetSite, load_site

WIDE = Budget(1000.0, 1e-5)
ROUND = (1.1, 0.2, 10)
"""Noise multiplier, sampling rate and steps of a source's round: 144 rows in batches of 32, twice."""


def found_noisy(root: Path) -> Path:
    """Found the sample federation, whose sites train with noise."""
    noise = ["--set", "training.source.dp.noise-multiplier=1.1", "--set", "training.target.dp.noise-multiplier=1.2"]
    assert main(["federation", "init", str(sample("digits")), "--out", str(root), *noise]) == 0
    return root


@dataclass
class Owner:
    """A site's operator at the command line."""

    kit: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def settings(self) -> Path:
        return self.kit / "local" / "settings.toml"

    @property
    def ledger(self) -> Path:
        return self.kit / "local" / "ledgers" / "training-rows.sqlite"

    @property
    def site(self) -> BudgetSite:
        from securefda.bootstrap import rows_of_site  # here, since torch takes seconds to import

        return load_site(self.settings, [], {}, datetime.now(UTC), rows_of_site, logged=logged_charges)

    def run(self, command: str, *arguments: str) -> tuple[int, str, str]:
        self.capsys.readouterr()
        code = main(["budget", command, "--config", str(self.settings), *arguments])
        out, err = self.capsys.readouterr()
        return code, " ".join(out.split()), err

    def data(self, command: str, *arguments: str) -> dict[str, Any]:
        code, out, err = self.run(command, *arguments, "--format", "json")
        assert (code, err) == (0, "")
        found: dict[str, Any] = json.loads(out)["data"]
        return found

    def refused(self, command: str, *arguments: str) -> tuple[int, str]:
        """Exit code and the one line; nothing was printed beside it and its hint, and the ledgers are as before."""
        before = self.ledgers()
        code, out, err = self.run(command, *arguments)
        line, *hint = err.splitlines()
        assert out == ""
        assert line.startswith("error: ")
        assert [text[:6] for text in hint] == ["hint: "]
        assert self.ledgers() == before
        return code, err

    def ledgers(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.ledger.parent.glob("*")}

    def train_with_log(self, *rounds: int, run: str = "run-a") -> None:
        """Charge rounds, and record them in the site's audit log, as its process does."""
        site = self.site
        kit = site.kit
        how = (logs_folder(self.kit), kit.roster, kit.site_id, kit.signing_key)
        with closing(Journal(*how, info=RunInfo("1", "digits", "source_only"))) as journal:
            journal.begin(run)
            for number in rounds:
                event = DpEvent(run, number, 0, *ROUND, max_grad_norm=1.0)
                journal.charged(WIDE, event, site.ledger.reserve(event, WIDE, now=int(time.time())))

    def train(self, *rounds: int, run: str = "run-a", finish: bool = True, later_s: int = 0) -> None:
        """Charge rounds as the site's process does, but for the log."""
        site, now = self.site, int(time.time()) + later_s
        for number in rounds:
            event = DpEvent(run, number, 0, *ROUND, max_grad_norm=1.0)
            reservation = site.ledger.reserve(event, WIDE, now=now)
            if finish:
                site.ledger.commit(reservation, steps=event.steps, now=now)

    def change(self, old: str, new: str, file: str = "settings.toml") -> None:
        path = self.kit / "local" / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def change_policy(self, old: str, new: str) -> None:
        self.change(old, new, "policy.toml")
        assert main(["policy", "sign", str(self.kit)]) == 0


def spent(rounds: int) -> float:
    """Epsilon of so many rounds of a source, by the default budget."""
    return epsilon([DpEvent("r", 1, 0, *ROUND, max_grad_norm=1.0)] * rounds, 1e-5)
