"""What a site that leaves has released so far, by run and in words, and what stays with others.

It follows from the site's own logs, whose signatures are checked first, and from its ledgers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from securefda.audit.journal import logs_folder
from securefda.audit.reading import find_logs
from securefda.audit.report.overview import alike
from securefda.audit.report.party_tables import PartyTables, read_party
from securefda.audit.report.words import CONTRIBUTIONS, contributions_in, level_text, rounds_text, span_text, what_text
from securefda.audit.verification import Question, check_logs, error_of
from securefda.pages.parts import Cell, Facts, Line, Lines, Page, Section, State, Table, cell
from securefda.site.dossier import Spent, guessed_right, spent_of
from securefda.site.kit import Kit
from securefda.site.left import Claim, LeavingCertificate
from securefda.site.policy import SourcePolicy
from securefda.text import bound_text, counted, names


@dataclass(frozen=True, slots=True)
class Release:
    """A run as the site's own log has it.

    Attributes:
        run: its id, in hex.
        tables: of all records of the log.
        signed: how many of them the newest checkpoint signs; its root is ``root``, 32 bytes.
        witnesses: the sites that cosigned that.
    """

    run: str
    tables: PartyTables
    signed: int
    root: bytes
    witnesses: tuple[str, ...]

    @property
    def rounds(self) -> frozenset[int]:
        """The rounds in which an update, or what stands in its place, left."""
        return frozenset(
            number
            for number, flows in self.tables.by_round.items()
            if any(flow.what in CONTRIBUTIONS for flow in flows)
        )

    @property
    def without_noise(self) -> frozenset[int]:
        """Those of them that no ledger was charged for."""
        return self.rounds - {point.round for point in self.tables.epsilons}


def releases_in(logs: Path, site: str, roster: Path | None = None) -> tuple[Release, ...]:
    """Verify the logs of a site and read what it released, in the order of the runs' beginnings.

    Args:
        logs: the folder with a log for each run; it need not exist.
        site: whose logs; others that lie there are verified and left out.
        roster: to check them with; None: that of the kit around them.

    Raises:
        AuditFinding, EvidenceLost: a log is not what the site signed.
        AuditError: a log cannot be read.
    """
    if not logs.is_dir() or not find_logs(logs):
        return ()
    checked = check_logs(Question((logs,), roster, witnesses=0))
    if (error := error_of(checked)) is not None:
        raise error
    found = [
        Release(one.log.run, read_party(site, one.log.records()), one.verification.covered, one.verification.root,
                one.verification.witnesses)
        for one in checked
        if one.log.party == site
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda release: release.tables.first))


def leaving_page(kit: Kit, policy: SourcePolicy, now: datetime) -> Page:
    """Return the page for a source that leaves. Raises what :func:`releases_in` does, and LedgerError."""
    return page_of_releases(
        releases_in(logs_folder(kit.root), kit.site_id), spent_of(kit.root, policy), kit=kit, policy=policy, now=now
    )


def leaving_certificate(kit: Kit, now: datetime) -> LeavingCertificate:
    """Return the certificate with which a source revokes its keys. Raises what :func:`releases_in` does."""
    claims = [claim_of(release) for release in releases_in(logs_folder(kit.root), kit.site_id)]
    return LeavingCertificate.make(kit.entry, kit.roster, kit.signing_key, now, claims)


def claim_of(release: Release) -> Claim:
    """Return what a certificate of leaving states of a run."""
    epsilons = release.tables.epsilons
    spent = bound_text(epsilons[-1].epsilon) if epsilons else ""
    return Claim(release.run, len(release.rounds), spent, release.signed, release.root.hex())


def page_of_releases(
    releases: Sequence[Release], spent: Sequence[Spent], *, kit: Kit, policy: SourcePolicy, now: datetime
) -> Page:
    """Return the page from what logs and ledgers hold."""
    site = kit.site_id
    rounds = sum(len(release.rounds) for release in releases)
    kinds = contributions_in(flow for release in releases for flow in release.tables.flows)
    left = f"{kinds.capitalize()} of {counted(rounds, 'round')} in {counted(len(releases), 'run')} left"
    text = "As its own logs say, whose signatures were checked. Nothing was ended by this page."
    return Page(
        f"What {site} has released",
        (f"Federation {kit.federation_id}, {kit.entry.legal_entity}, as of {now.astimezone(UTC):%Y-%m-%d %H:%M} UTC",),
        State("care" if rounds else "done", left if rounds else "No update left", text),
        (
            Section("left", "What left, by run", (_runs(releases),)),
            Section("means", "What that means", (Lines(list(_means(releases, spent, policy))),)),
            Section("others", "What stays with others", (Facts(tuple(_others(kit, policy))),)),
            Section("next", "What to do now", (Lines([("", line) for line in _next(kit, policy)]),)),
            Section("signatures", "Signatures", (Table(("name", "role", "date", "signature"), [[""] * 4] * 2),)),
        ),
    )


def _runs(releases: Sequence[Release]) -> Table:
    rows: list[list[Cell]] = []
    for release in releases:
        tables = release.tables
        flows = [
            f"{what_text(flow.what)} to {names(flow.receivers)}; {level_text(flow)}; {counted(flow.messages, 'time')}"
            for flow in alike(tables.flows)
        ]
        spent = bound_text(tables.epsilons[-1].epsilon) if tables.epsilons else "no noise" if release.rounds else "–"
        log = f"{counted(release.signed, 'signed record')}, root {release.root.hex()[:16]}…"
        open_records = tables.records - release.signed
        more = f", and {open_records} not signed yet" if open_records else ""
        rows.append(
            [
                release.run[:12],
                span_text(tables.first, tables.last),
                rounds_text(release.rounds) or "none",
                cell(*flows) if flows else "nothing",
                spent,
                f"{log}{more}; cosigned by {names(release.witnesses) or 'nobody'}",
            ]
        )
    head = ("run", "when, UTC", "rounds", "what left, to whom, in which form", "ε so far", "its log")
    return Table(
        head, rows, broad=(3,), note="ε so far counts all rounds with noise on the same rows, of earlier runs too."
    )


def _means(releases: Sequence[Release], spent: Sequence[Spent], policy: SourcePolicy) -> Iterator[Line]:
    bare = sum(len(release.without_noise) for release in releases)
    if bare:
        yield (
            "care",
            f"{counted(bare, 'round')} left without noise. No number bounds what their sums, and every later model, "
            "reveal about a row.",
        )
    for one in spent:
        yield (
            "",
            f"Data set {one.data_set}: rounds with noise cost ε = {bound_text(one.epsilon)} at δ = "
            f"{policy.dp.target_delta:g}. Someone who knows all other rows and guesses, at even odds, whether one row "
            f"was used, is right in at most {guessed_right(one.epsilon):g} of 100 cases.",
        )
    if releases:
        yield (
            "",
            "Beside an update left its number of rows; without noise, loss and accuracy too; all in the same form.",
        )
    if any(flow.level == "individual" for release in releases for flow in release.tables.flows):
        yield "care", "Updates left in clear: the target has each of them by itself."
    if not releases:
        yield "", "There is no log in this kit: no run began here, or its logs were taken away."


def _others(kit: Kit, policy: SourcePolicy) -> Iterator[tuple[str, str]]:
    others = [entry.legal_entity for entry in kit.roster.sources if entry.site_id != kit.site_id]
    days = policy.agreement.keep_models_days
    yield kit.roster.target.legal_entity, "every sum that it opened, every model, and its own log"
    yield names(others), "every model that they trained from, the size of this site's contributions, and their own logs"
    yield "those who cosigned", "checkpoints of this site's log, with which they would see it rewritten"
    agreed = f"agreed: {counted(days, 'day')} after the run; no process deletes them" if days else "not agreed"
    yield "how long models are kept", agreed
    yield "cannot be undone", "no row can be taken out of a sum or a model. Nobody can make others delete copies"


def _next(kit: Kit, policy: SourcePolicy) -> Iterator[str]:
    yield "Stop the process of this site. Nothing leaves after that."
    yield (
        "Revoke the keys: securefda source leave KIT --certificate FILE. Send the file to every other site and to the "
        "authority. Sites that take it (securefda site left KIT FILE) refuse these keys when they start again."
    )
    yield (
        f"Ask the authority to strike the site off the list (securefda federation revoke FOLDER {kit.site_id}). Its "
        "keys then open nothing at sites that have the new list."
    )
    yield "Ask those who keep models to say in writing which, for what, and until when."
    days = policy.agreement.keep_logs_days
    until = f"for the {counted(days, 'day')} that were agreed" if days else "as long as claims may come"
    yield f"Keep KIT/local/audit and KIT/local/ledgers here {until}: they are the proof of what this page says."
