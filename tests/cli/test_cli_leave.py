"""``securefda source leave``: what a site has released, by run, as its own verified logs and its ledgers have it."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from securefda.audit.verification import AuditFinding
from securefda.cli import main
from securefda.errors import ExitCode
from securefda.pages.html import static_page
from securefda.site.dossier import Spent
from securefda.site.kit import Kit, load_kit
from securefda.site.left import LeavingCertificate
from securefda.site.policy import SourcePolicy
from securefda.site.policy.schema import Agreement
from securefda.source.leaving import Release, claim_of, page_of_releases, releases_in

sys.path.append(str(Path(__file__).parents[1] / "audit"))

from run_builder import SUM, Run

SITE = "hospital-a"
NOW = datetime(2026, 12, 1, 9, tzinfo=UTC)


class Quiet(Run):
    """A run at ``sum`` in which no ledger is charged."""

    levels = (SUM, SUM)

    def charge(self, site: str, number: int, attempt: int) -> None:
        pass


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("founded") / "kits"
    assert main(["federation", "init", "three_hospitals", "--out", str(root)]) == 0
    return root


@pytest.fixture
def kit(founded: Path, tmp_path: Path) -> Kit:
    return load_kit(Path(shutil.copytree(founded, tmp_path / "kits")) / SITE, datetime.now(UTC))


def released(folder: Path) -> tuple[Release, ...]:
    (roster,) = (folder / "sites" / SITE / "local" / "audit").glob("*/roster.json")
    return releases_in(folder / "sites" / SITE / "local" / "audit", SITE, roster)


def said(kit: Kit, releases: tuple[Release, ...], spent: tuple[Spent, ...] = (), **agreed: int) -> str:
    policy = SourcePolicy(agreement=Agreement(**agreed))
    html = static_page(page_of_releases(releases, spent, kit=kit, policy=policy, now=NOW), "title", "a test")
    return " ".join(re.sub(r"<[^>]+>", " ", html.partition("<main")[2]).replace("&#39;", "'").split())


def test_each_run_is_named_with_rounds_form_and_noise(kit: Kit, tmp_path: Path) -> None:
    (noisy,), (quiet,) = released(Run(tmp_path / "noisy").write()), released(Quiet(tmp_path / "quiet").write())
    assert (noisy.rounds, noisy.without_noise) == ({1, 2, 3}, frozenset())
    assert (quiet.rounds, quiet.without_noise) == ({1, 2}, {1, 2})
    text = said(kit, (noisy, replace(quiet, run="ff" * 16)), (Spent("hearts", 300, 1.0),), keep_models_days=90)
    for words in (
        "Updates of 5 rounds in 2 runs left",
        "update to hospital-t; sum: as a term of one sum over at least 3 sources; 1 time",
        "update to hospital-t; cohort: as a term of a cohort's sum over at least 3 sources; 1 time",
        "update to hospital-t; individual: in clear, readable by the receiver; 1 time",
        "2 rounds left without noise. No number bounds",
        "Data set hearts: rounds with noise cost ε = 1.0000 at",
        "in at most 73.11 of 100 cases",
        "Updates left in clear",
        "agreed: 90 days after the run; no process deletes them",
        "no row can be taken out of a sum or a model",
        "federation revoke FOLDER hospital-a",
    ):
        assert words in text
    flows = tuple(replace(flow, what="moments") for flow in quiet.tables.flows)
    assert "Messages of second moments of 2 rounds in 1 run left" in said(
        kit, (replace(quiet, tables=replace(quiet.tables, flows=flows)),)
    )
    alone = said(kit, (quiet,))
    assert "in clear, readable" not in alone
    assert "Data set" not in alone
    assert "not agreed" in alone


def test_a_log_that_is_not_what_was_signed_is_refused(tmp_path: Path) -> None:
    folder = Run(tmp_path).write()
    (log,) = (folder / "sites" / SITE / "local" / "audit").glob("*")
    bundle = next(file for file in sorted(log.rglob("*")) if file.is_file() and b"MaskedInput" in file.read_bytes())
    bundle.chmod(0o600)
    bundle.write_bytes(bundle.read_bytes().replace(b'"update"', b'"nothin"', 1))
    with pytest.raises(AuditFinding):
        released(folder)


def test_a_site_without_logs_has_released_nothing(kit: Kit, tmp_path: Path) -> None:
    out = tmp_path / "leaving.html"
    assert main(["source", "leave", str(kit.root), "--out", str(out)]) == 0
    page = out.read_text()
    assert "No update left" in page
    assert "There is no log in this kit" in page
    assert main(["source", "leave", str(kit.root), "--out", str(out)]) == ExitCode.CONFIG
    assert out.read_text() == page


def test_logs_of_another_federation_in_the_kit_are_refused_and_no_page_is_written(kit: Kit, tmp_path: Path) -> None:
    Run(tmp_path / "run").write()
    shutil.copytree(tmp_path / "run" / "sites" / SITE / "local" / "audit", kit.local / "audit")
    out = tmp_path / "leaving.html"
    assert main(["source", "leave", str(kit.root), "--out", str(out)]) == ExitCode.AUDIT
    assert not out.exists()


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, " ".join(out.split()), err


def test_a_site_revokes_its_keys_and_another_takes_the_certificate(
    kit: Kit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, file, other = tmp_path / "leaving.html", tmp_path / "leaving.json", kit.root.parent / "hospital-b"
    how = ("source", "leave", str(kit.root), "--out", str(page), "--certificate", str(file))

    code, out, err = printed(capsys, *how)

    assert (code, err) == (0, "")
    assert "the keys of hospital-a are revoked from" in out
    assert "which runs: securefda site left KIT leaving.json" in out
    code, out, err = printed(capsys, "site", "left", str(other), str(file))
    assert (code, err) == (0, "")
    assert "hospital-a left federation three-hospitals on" in out
    assert "it states that nothing left it" in out
    assert f"kept as {other}" in out
    second = LeavingCertificate.make(kit.entry, kit.roster, kit.signing_key, datetime.now(UTC) + timedelta(hours=1), ())
    file.write_bytes(second.to_bytes())
    again = printed(capsys, "site", "left", str(other), str(file))[1]
    assert "kept as" not in again
    assert f"these keys are refused already, by {other}" in again
    for site in (kit.root, other):
        assert " left hospital-a " in printed(capsys, "kit", "inspect", str(site))[1]
        assert "hospital-a left three-hospitals" in printed(capsys, "policy", "sign", str(site))[1]
    assert "N = 2: none opens" in printed(capsys, "policy", "explain", str(other), "--full")[1]
    assert "of at least 3 (there are 2) sources" in printed(capsys, "policy", "explain", str(other))[1]
    code, out, _ = printed(capsys, "preflight", str(other), "--offline")
    assert code == ExitCode.CONFIG
    assert "min-others: hospital-b asks for min-others = 2, so for 3 sources in every sum" in out
    assert "and the federation has 2, since hospital-a left" in out
    code, _, err = printed(capsys, "source", "start", "--config", str(other / "local" / "settings.toml"))
    assert code == ExitCode.CONFIG
    assert "since hospital-a left" in err
    settings = kit.local / "settings.toml"
    code, _, err = printed(capsys, "source", "start", "--config", str(settings))
    assert code == ExitCode.CERTIFICATE
    assert err.startswith("error: hospital-a left the federation on")


def test_neither_page_nor_certificate_replaces_a_file_and_then_nothing_is_revoked(
    kit: Kit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, file = tmp_path / "leaving.html", tmp_path / "leaving.json"
    file.write_text("mine")

    code, out, err = printed(capsys, "source", "leave", str(kit.root), "--out", str(page), "--certificate", str(file))

    assert (code, out) == (ExitCode.CONFIG, "")
    assert err.startswith("error: --certificate: ")
    assert (file.read_text(), page.exists(), (kit.local / "left").exists()) == ("mine", False, False)


def test_one_file_is_not_page_and_certificate_and_then_nothing_is_revoked(
    kit: Kit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, same = tmp_path / "leaving", tmp_path / "." / "leaving"

    code, out, err = printed(capsys, "source", "leave", str(kit.root), "--out", str(page), "--certificate", f"{same}")

    assert (code, out) == (ExitCode.CONFIG, "")
    assert err.startswith("error: --certificate: ")
    assert (page.exists(), (kit.local / "left").exists()) == (False, False)


def test_a_file_that_is_no_certificate_is_refused_by_its_name(
    kit: Kit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "leaving.json"
    file.write_text("{}")

    code, out, err = printed(capsys, "site", "left", str(kit.root), str(file))

    assert (code, out) == (ExitCode.CONFIG, "")
    assert err.startswith(f"error: {file}: is not a site's certificate of leaving")
    assert not (kit.local / "left").exists()


def test_the_certificate_states_what_left_by_run_as_the_logs_have_it(tmp_path: Path) -> None:
    (release,) = released(Run(tmp_path / "noisy").write())

    claim = claim_of(release)

    assert (claim.run, claim.rounds, claim.records, claim.root) == (
        release.run,
        len(release.rounds),
        release.signed,
        release.root.hex(),
    )
    assert float(claim.epsilon) >= release.tables.epsilons[-1].epsilon
