"""T39: whatever the others choose, say again and mix, no message that an honest site has signed is evidence against it.

Federations of real sites play several runs, each in run folders of their own; the audit logs stay, as in a kit. The
attackers name runs, sessions and headers again, sites are restarted, and in the end every message that has left a site
is offered as evidence of every kind, alone, in pairs, in chains and in random company.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from depth import at_depth

from securefda.aggregator.store import AggregatorStore
from securefda.audit.reconcile import claims
from securefda.audit.reconcile.evidence import (
    Evidence,
    Exhibit,
    NoProof,
    judge_evidence,
    said_of_evidence,
    write_evidence,
)
from securefda.audit.reconcile.reconciled_runs import reconcile_folder
from securefda.audit.reconcile.suspicion import RunFinding
from securefda.audit.signed_notes import LogName
from securefda.audit.statements import ONCE, Statement, StatementReader
from securefda.protocol.messages import Header, MaskedInput, Parcel, ShareDelivery, Visibility
from securefda.protocol.roster import Roster
from securefda.rules import Strategy
from securefda.source.source_store import SourceStore
from securefda.training import Vector
from securefda.transport.in_memory import UnderWay
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.framing import Accuser, Framer, Hoard, Mixer, SessionAgain, add_false_records
from threat_model.adversaries.round_again import RoundAgain
from threat_model.adversaries.sources import MaliciousSource
from threat_model.sites import TARGET, roster_of, site_id_of
from threat_model.stage import MakesStage, Stage, honest_aggregator
from threat_model.switches import Replacement, Switch, replaced, switched_off

N, LIAR = 4, 4
ROSTER, LATER = roster_of(N), roster_of(N, epoch=2)
LEVELS = [Visibility.SUM, Visibility.INDIVIDUAL, Visibility.COHORT]
SOURCES = {site_id_of(index) for index in range(1, N + 1)}
SEEDS = range(at_depth(4, 60))
TUPLES = at_depth(300, 2000)
SESSION = bytes(range(32))

SAME_VIEW = replaced(
    "that two messages are of one view",
    claims,
    "same_view",
    lambda _: lambda one, other: one.session == other.session,
)
"""A source's messages count as a pair as soon as they have one session id, which the target chooses."""

OWN_RUN = replaced(
    "that a header is of the run and roster of the claim", claims, "is_of_run", lambda _: lambda *_: True
)
"""The target's headers are judged in the run and under the roster that their accuser names."""

ONLY_VIEWS = Switch(
    "that keys and updates in clear are of no view", lambda: [Replacement(claims, "ONCE_IN_A_VIEW", frozenset(ONCE))]
)
"""Two messages under one header count as a pair, whatever folders they were signed in."""


@pytest.fixture(autouse=True)
def join_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run books of these sources are lost with each folder, and nobody looks into their logs for the run."""
    monkeypatch.setattr(SourceStore, "require_recorded", lambda *_: None)


class NewFolders(Stage):
    """A play with run folders of its own, beside kits that stay; sites are restarted where the hoard says so.

    Every update is another one, as of a site that trains with noise.
    """

    def __init__(
        self, folder: Path, hoard: Hoard, *, restarts: float = 0.01, kappa: float = 0.0, **options: Any
    ) -> None:
        folder.mkdir(parents=True)
        self.hoard, self.restarts, self._kits = hoard, restarts, folder.parent / "kits"
        rounds = 2 if "sources" in options else 9  # the attackers' target comes to as many as it likes
        settings = {"strategy": Strategy(rule="source_only", rounds=rounds), "kappa": kappa}  # type: ignore[arg-type]
        super().__init__(folder, N, updates=self._noise, recorded=True, settings=settings, **options)

    def _noise(self, index: int, round_number: int, received: Vector) -> Vector:
        seed = self.hoard.draws.getrandbits(32)
        return np.random.default_rng(seed).uniform(-0.5, 0.5, received.size).astype(np.float32)

    def logs(self, index: int) -> Path:
        return self._kits / site_id_of(index)

    def put(self, parcel: UnderWay) -> None:
        self.hoard.said[parcel.data] = None
        super().put(parcel)

    def step(self) -> bool:
        if self.hoard.chance(self.restarts):
            self.restart(self.hoard.draws.randint(1, N))
        return super().step()


class HonestTarget(NewFolders):
    """The target is honest, and is restarted as well."""

    def step(self) -> bool:
        if self.hoard.chance(self.restarts / 2) and not self.aggregator.done:
            self.restart_target()
        return super().step()

    def restart_target(self) -> None:
        """The aggregator's process ends and begins anew; every source notices and reports again."""
        self.under_way.clear()
        self._sites[TARGET].witness.journal.close()
        self._aggregator_store.close()
        self._aggregator_store = AggregatorStore(self.folder / "target.sqlite")
        self.aggregator = honest_aggregator(self._seat(self.sources))
        self._record(TARGET, self.aggregator.run_id)
        for source in self.sources.values():
            source.forget()  # type: ignore[attr-defined]  # all of them are built on SourceRun
        self.open()


def framed_sources(folder: Path, seed: int, plays: int = 3) -> Hoard:
    """Some runs of honest sources with a target that would frame them; those at one level, so that headers fit."""
    hoard = Hoard(Random(seed))
    made = partial(Framer, hoard=hoard)
    for play in range(plays):
        roster = LATER if seed % 4 == 3 and play == 1 else ROSTER
        options = {"visibility": LEVELS[seed % 3], "kappa": float((seed + 1) % 2), "roster": roster}
        with closing(NewFolders(folder / f"play-{play}", hoard, aggregator=made, **options)) as stage:
            stage.play()
    return hoard


def framed_target(folder: Path, seed: int, plays: int = 2) -> Hoard:
    """Some runs of an honest target with a source that says things again, and twice."""
    hoard = Hoard(Random(seed))
    for play in range(plays):
        options = {"visibility": LEVELS[seed % 3], "kappa": float((seed + 1) % 2), "roster": (ROSTER, LATER)[play % 2]}
        liars = {LIAR: partial(Mixer, hoard=hoard)}
        with closing(HonestTarget(folder / f"play-{play}", hoard, sources=liars, **options)) as stage:
            stage.play()
            hoard.runs.append(bytes.fromhex(stage.aggregator.run_id))
    return hoard


def accuser(hoard: Hoard, rosters: tuple[Roster, ...] = (ROSTER, LATER)) -> Accuser:
    return Accuser(list(hoard.said), rosters, hoard.runs)


def said_of(findings: Collection[RunFinding], honest: Collection[str]) -> list[tuple[str, tuple[str, ...]]]:
    """The findings that accuse an honest site alone."""
    return [(one.kind, one.accused) for one in findings if len(one.accused) == 1 and one.accused[0] in honest]


def read_together(folder: Path, hoard: Hoard, liar: int) -> Iterator[tuple[RunFinding, ...]]:
    """Return the findings in the logs of each run: all, or the liar's and one other; as kept, or made up."""
    kits, draws = folder / "kits", Random(1)
    trusted = [folder / f"roster-{roster.epoch}.json" for roster in (ROSTER, LATER)]
    for file, roster in zip(trusted, (ROSTER, LATER), strict=True):
        file.write_bytes(roster.canonical_bytes())
    runs = sorted({path.name for path in kits.glob("*/*")})
    for lies in (False, True):
        for run in runs:
            if lies:
                log = LogName(ROSTER.federation_id, site_id_of(liar), run)
                add_false_records(log, liar, kits / log.party, said=hoard.said, roster=ROSTER, draws=draws)
            for file in trusted:
                yield reconcile_folder(kits, run, file).outcome.findings
            pair = folder / f"pair-{run}-{lies}"
            for site in (liar, draws.choice([index for index in range(N + 1) if index != liar])):
                kept = kits / site_id_of(site) / run
                if kept.exists():
                    shutil.copytree(kept, pair / site_id_of(site) / run)
            yield reconcile_folder(pair, run, trusted[0]).outcome.findings


@pytest.mark.threat("T39")
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_an_honest_source_signed_is_evidence_against_it(seed: int, tmp_path: Path) -> None:
    hoard = framed_sources(tmp_path, seed)
    assert accuser(hoard).proved(SOURCES, Random(seed), TUPLES) == set()


@pytest.mark.threat("T39")
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_an_honest_target_signed_is_evidence_against_it(seed: int, tmp_path: Path) -> None:
    hoard = framed_target(tmp_path, seed)
    assert accuser(hoard).proved({site_id_of(TARGET)}, Random(seed), TUPLES) == set()


@pytest.mark.threat("T39")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("play", "liar"), [(framed_sources, TARGET), (framed_target, LIAR)], ids=["target", "source"])
def test_no_honest_site_is_accused_alone_by_the_logs_of_a_liar(
    play: Callable[[Path, int], Hoard], liar: int, seed: int, tmp_path: Path
) -> None:
    hoard = play(tmp_path, seed)
    honest = {site_id_of(index) for index in range(N + 1) if index != liar}
    outcomes = list(read_together(tmp_path, hoard, liar))
    assert [accused for findings in outcomes for accused in said_of(findings, honest)] == []
    assert any(findings for findings in outcomes)


def two_inputs_of_one_session(hoard: Hoard) -> tuple[Statement, Statement]:
    """Masked inputs of one honest source in one session of the target's, under two headers."""
    first: dict[tuple[str, str], Statement] = {}
    for one in map(StatementReader(ROSTER).read, hoard.said):
        other = first.setdefault((one.sender, one.session), one) if one.type == "MaskedInput" else one
        if other.context != one.context:
            return other, one
    raise AssertionError("no source was sent a session id twice")


def reused_session(folder: Path) -> tuple[Path, Path]:
    """Two honest runs in two folders, the target's sessions with one id; evidence of a double release, and the roster.

    Every source followed the protocol to the end in both.
    """
    hoard = Hoard(Random(0))
    for play in range(2):
        made = partial(SessionAgain, session_id=SESSION)
        with closing(NewFolders(folder / f"play-{play}", hoard, restarts=0, aggregator=made)) as stage:
            stage.play()
            assert [stage.accepted(index) for index in range(1, N + 1)] == [1] * N
            hoard.runs.append(stage.adversary.run)
    pair = two_inputs_of_one_session(hoard)
    assert bytes.fromhex(pair[0].session) == SESSION
    exhibit = Exhibit(
        "double-release", pair[0].sender, "two updates", 1, 1, pair[0].session, tuple(one.data for one in pair), ()
    )
    file, trusted = folder / "evidence.json", folder / "roster.json"
    run = hoard.runs[0].hex()
    file.write_bytes(Evidence(ROSTER.federation_id, run, ROSTER.canonical_bytes(), (exhibit,)).to_bytes())
    trusted.write_bytes(ROSTER.canonical_bytes())
    return file, trusted


@pytest.mark.threat("T39")
def test_session_id_of_two_honest_runs_is_no_double_release(tmp_path: Path) -> None:
    evidence, (judged,) = judge_evidence(*reused_session(tmp_path))
    assert (judged.proved, judged.why_not) == ("", "the two messages are of different views, which others chose")
    assert isinstance(said_of_evidence(evidence, [judged]).error, NoProof)


@pytest.mark.threat("T39")
@pytest.mark.control
def test_session_id_of_two_honest_runs_is_a_double_release_where_views_do_not_count(tmp_path: Path) -> None:
    with switched_off(SAME_VIEW, roster=ROSTER):
        evidence, judged = judge_evidence(*reused_session(tmp_path))
        assert judged[0].proved
        assert said_of_evidence(evidence, judged).error is None


@pytest.mark.threat("T39")
@pytest.mark.control
def test_honest_sources_are_framed_where_views_do_not_count(tmp_path: Path) -> None:
    hoard = framed_sources(tmp_path, 0)
    with switched_off(SAME_VIEW, roster=ROSTER):
        proved = accuser(hoard).proved(SOURCES, Random(0), 0)
    assert {kind for kind, _ in proved} == {"double-release", "equivocation"}


@pytest.mark.threat("T39")
@pytest.mark.control
@pytest.mark.parametrize("seed", [0, 1], ids=["keys", "updates"])
def test_honest_sources_are_framed_where_two_messages_under_one_header_count(seed: int, tmp_path: Path) -> None:
    hoard = framed_sources(tmp_path, seed)
    with switched_off(ONLY_VIEWS, roster=ROSTER):
        proved = accuser(hoard).proved(SOURCES, Random(0), 0)
    assert {kind for kind, _ in proved} == {"equivocation"}


@pytest.mark.threat("T39")
@pytest.mark.control
def test_honest_target_is_framed_where_its_accuser_names_the_run(tmp_path: Path) -> None:
    hoard = framed_target(tmp_path, 1)
    with switched_off(OWN_RUN, roster=ROSTER):
        proved = accuser(hoard).proved({site_id_of(TARGET)}, Random(0), 0)
    assert {"bad-checkpoint", "equivocation", "broken-chain"} <= {kind for kind, _ in proved}


# Those who really do what evidence is of are still proved to have done it.


class ReleasesTwice(MaliciousSource):
    """Masks one vector, and sends another one in the same view as well."""

    threat = "T39"

    def answers(self, parcel: Parcel, honest: list[Parcel]) -> list[Parcel]:
        if not isinstance(parcel.message.body, ShareDelivery):
            return honest
        body, vector = honest[0].message.body, bytes(len(honest[0].vectors[0]))
        return [*honest, self.resigned(honest[0], MaskedInput(sha256(vector).digest(), body.length_bytes), vector)]


class TwoHeaders(MaliciousAggregator):
    """Signs another header for the last source, in the same session."""

    threat = "T39"

    def header_for(self, index: int) -> Header | None:
        header = super().header_for(index)
        return header and replace(header, n_max=header.n_max + (index == N))


@pytest.mark.threat("T39")
@pytest.mark.parametrize(
    ("options", "kind", "accused"),
    [
        ({"sources": {LIAR: ReleasesTwice}}, "double-release", LIAR),
        ({"aggregator": TwoHeaders}, "equivocation", TARGET),
        ({"aggregator": partial(RoundAgain, victim=1, way="place")}, "equivocation", TARGET),
    ],
    ids=["two inputs", "two headers of a session", "two headers of an attempt"],
)
def test_who_did_it_is_proved_to_have_done_it(
    staged: MakesStage, options: dict[str, Any], kind: str, accused: int, tmp_path: Path
) -> None:
    stage = staged(N, recorded=True, **options).play()
    stage.close()
    found = reconcile_folder(stage.folder / "logs")
    assert write_evidence(tmp_path / "evidence.json", [found])
    (tmp_path / "roster.json").write_bytes(ROSTER.canonical_bytes())

    evidence, judged = judge_evidence(tmp_path / "evidence.json", tmp_path / "roster.json")

    assert (kind, site_id_of(accused)) in {(one.exhibit.kind, one.exhibit.accused) for one in judged}
    assert {one.exhibit.accused for one in judged} == {site_id_of(accused)}
    assert said_of_evidence(evidence, judged).error is None
