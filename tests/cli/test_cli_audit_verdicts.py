"""The page and ``reconcile`` never disagree: one verdict, one list of findings, one exit code, over falsified logs."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from audit_party import audit_json
from depth import at_depth

from securefda.cli import main

sys.path.append(str(Path(__file__).parents[1] / "audit"))

from run_builder import ROSTER, SITES, HangsUp, Run, folder_of
from run_lies import A, B, Equivocates, Lie, but

Capture = pytest.CaptureFixture[str]
DRAWS = at_depth(2, 12)

pytestmark = pytest.mark.usefixtures("no_disk_sync")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Run(tmp_path_factory.mktemp("honest") / "run").write()


@pytest.fixture
def roster(tmp_path: Path) -> Path:
    file = tmp_path / "trusted.json"
    file.write_bytes(ROSTER.canonical_bytes())
    return file


def judged(folder: Path, roster: Path, capsys: Capture, *options: str) -> dict[str, Any]:
    """What both commands say, once they were found to say the same."""
    page = folder.parent / "page.html"
    code, reconciled = audit_json(capsys, "reconcile", folder, "--roster", roster, "--all", *options)
    same, reported = audit_json(capsys, "report", folder, "--roster", roster, "--out", page, *options)

    verdict, text = reconciled["data"]["verdict"], page.read_text()
    assert (same, reported["data"]["verdict"]) == (code, verdict)
    for key in ("status", "error_code", "message"):
        assert reported.get(key) == reconciled.get(key)
    found = [one["what"] for one in reconciled["data"]["findings"]]
    assert len(reported["data"]["findings"]) == len(found)
    assert all(what in line for what, line in zip(found, reported["data"]["findings"], strict=True))
    tones = {"fine": "done", "attention": "care", "unjudged": "unknown", "tampering": "failed"}
    assert re.findall(r'<div class="state (\w+)"', text)[0] == tones[verdict["severity"]]
    assert f"</span>{verdict['headline']}</p>" in text
    assert (code == 13) == any(point["finding"] for point in verdict["points"])
    assert (verdict["severity"] == "fine") == (verdict["points"] == [])
    severities = [one["severity"] for one in reconciled["data"]["findings"]]
    assert ("tampering" in severities) == (verdict["severity"] == "tampering")
    verdict["code"] = code
    return dict(verdict)


def files_of(folder: Path, rng: random.Random) -> Path:
    files = [file for file in folder_of(folder, rng.choice(SITES)).rglob("*") if file.is_file() and file.stat().st_size]
    return rng.choice(sorted(files))


def flipped_bit(folder: Path, rng: random.Random) -> None:
    file = files_of(folder, rng)
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def cut_file(folder: Path, rng: random.Random) -> None:
    file = files_of(folder, rng)
    file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])


def lost_file(folder: Path, rng: random.Random) -> None:
    files_of(folder, rng).unlink()


def garbage_behind(folder: Path, rng: random.Random) -> None:
    with files_of(folder, rng).open("ab") as file:
        file.write(rng.randbytes(rng.randrange(1, 80)))


def swapped_logs(folder: Path, rng: random.Random) -> None:
    one, other = (folder_of(folder, site) for site in rng.sample(SITES, 2))
    shutil.rmtree(one)
    shutil.copytree(other, one)


def lost_log(folder: Path, rng: random.Random) -> None:
    shutil.rmtree(folder_of(folder, rng.choice(SITES)))


@pytest.mark.parametrize("seed", range(DRAWS))
@pytest.mark.parametrize("falsify", [flipped_bit, cut_file, lost_file, garbage_behind, swapped_logs, lost_log])
def test_falsified_files_have_one_verdict(
    falsify: Callable[[Path, random.Random], None],
    seed: int,
    honest: Path,
    roster: Path,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    folder = Path(shutil.copytree(honest, tmp_path / "run"))
    falsify(folder, random.Random(f"{falsify.__name__} {seed}"))

    verdict = judged(folder, roster, capsys)

    if falsify in (swapped_logs, lost_log):
        assert (verdict["code"], verdict["severity"] != "fine") == (13, True)


def lie(kind: str, **changes: Any) -> Callable[[Path], Run]:
    def make(folder: Path) -> Run:
        run = Lie(folder)
        run.kind, run.sender, run.change = kind, B, but(**changes)  # type: ignore[method-assign]
        return run

    return make


class Spends(Run):
    def spent(self, site: str, number: int) -> dict[str, Any]:
        return {"epsilon": "0.001"} if (site, number) == (B, 2) else {}


class Alarms(Run):
    def end(self) -> None:
        self.event(A, "alarm", (3, 1, ""), check="MODEL", accused=[SITES[0]])
        super().end()


@pytest.mark.parametrize(
    ("make", "severity", "words"),
    [
        (Run, "fine", "The logs of all 4 sites verify"),
        (Equivocates, "tampering", "two different messages of type KeyList"),
        (lie("MaskedInput", logs_sent=False), "tampering", f"received a MaskedInput from {B}"),
        (lie("MaskedInput", keeps=False), "tampering", "has lost its evidence"),
        (lie("MaskedInput", disclosure=None), "tampering", "discloses nothing"),
        (Spends, "tampering", f"{B}, record"),
        (Alarms, "attention", f"{A}: 1 alarm: MODEL; it blames {SITES[0]}, by its own word."),
    ],
)
def test_lies_in_the_logs_have_one_verdict(
    make: Callable[[Path], Run], severity: str, words: str, roster: Path, tmp_path: Path, capsys: Capture
) -> None:
    verdict = judged(make(tmp_path / "run").write(), roster, capsys)

    assert verdict["severity"] == severity
    assert words in (tmp_path / "page.html").read_text()
    assert verdict["code"] == (13 if severity == "tampering" else 0)


def test_the_targets_conduct_is_in_both_verdicts(honest: Path, roster: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = Path(shutil.copytree(honest, tmp_path / "run"))
    for number, hours in (("ee", 3), ("dd", 4)):
        HangsUp(folder, number * 16, hours=hours).write()

    verdict = judged(folder, roster, capsys, "--run", "0001")

    assert (verdict["severity"], verdict["code"]) == ("attention", 13)
    assert sum("took something from" in point["what"] for point in verdict["points"]) == 3


def test_starting_again_behind_the_end_takes_no_end_away(roster: Path, tmp_path: Path, capsys: Capture) -> None:
    class StartsAgain(Run):
        def end(self) -> None:
            for site in SITES:
                self.event(site, "run-ended", outcome="completed", rounds=3)
            self.event(SITES[0], "restarted", lost_bytes=0)
            self.witness()
            self.close()

    verdict = judged(StartsAgain(tmp_path / "run").write(), roster, capsys)

    code = main(["audit", "reconcile", str(tmp_path / "run"), "--roster", str(roster), "--format", "json"])
    data = json.loads(capsys.readouterr().out)["data"]
    assert (code, verdict["severity"], verdict["points"]) == (0, "fine", [])
    assert {row["ended"] for row in data["runs"]} == {"completed"}
    assert not any("has no end" in notice for notice in data["notices"])
