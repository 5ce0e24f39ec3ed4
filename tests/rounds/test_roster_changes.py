"""The roster in a run: who is out of date is neither asked nor joined with, and a key that was struck signs nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rounds_federation import TARGET, UNIX_S, Federation, is_header, roster_of, signer, site_id, until

from securefda.errors import ConfigError
from securefda.protocol.messages import Abort, Header, KeyList, Parcel, Refusal, Signer, Survivors
from securefda.protocol.roster import Roster
from securefda.source.source_run import SourceRun
from securefda.transport import wire

N, ME, OTHER = 4, 2, 3
THIEF = Ed25519PrivateKey.generate()


def roster_with(index: int, **changes: Any) -> Roster:
    """The usual roster's next epoch, with the entry of one site changed."""
    roster = roster_of(N)
    entries = tuple(replace(e, **changes) if e.index == index else e for e in roster.entries)
    return replace(roster, epoch=roster.epoch + 1, entries=entries)


def struck(index: int) -> Roster:
    """The usual roster's next epoch without one site; those behind it move up."""
    left = [entry for entry in roster_of(N).entries if entry.index != index]
    return Roster("study", 2, tuple(replace(entry, index=place) for place, entry in enumerate(left)))


def participants(federation: Federation) -> list[tuple[int, ...]]:
    """Who was asked, header by header."""
    headers = {m.envelope.session_id: m.body for *_, m in federation.passed if is_header(m)}
    return [header.participants for header in headers.values()]


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path, N, rounds=2).open()


def newer(federation: Federation, roster: Roster) -> SourceRun:
    """The source's new process, whose kit has this roster; the aggregator goes on with the old one.

    It counts its peers by the older roster: by the newer one its policy would refuse under ``trusted-peers`` before the
    session's checks are asked.
    """
    limits = federation.sources[ME]._site.limits
    old, federation.roster = federation.roster, roster
    federation.sources[ME] = federation.source(ME)
    federation.roster = old
    object.__setattr__(federation.sources[ME]._site, "limits", limits)
    return federation.sources[ME]


def answers_of(source: SourceRun, parcel: Parcel) -> list[Any]:
    return [answer.message.body for answer in source.handle(parcel)]


@pytest.mark.parametrize("roster", [struck(OTHER), roster_with(OTHER, signing_key=bytes(31) + b"\1")])
def test_a_source_with_a_newer_roster_refuses_a_run_of_the_older_one(federation: Federation, roster: Roster) -> None:
    header = until(federation, ME, Header)
    assert answers_of(newer(federation, roster), header) == [Refusal("HEADER_ROSTER")]
    assert federation.watch.checks(ME) == ["HEADER_ROSTER"]


def test_a_lying_digest_brings_no_struck_source_back(federation: Federation) -> None:
    """The aggregator names the source's own roster, and a participant that is not in it any more."""
    header = until(federation, ME, Header)
    roster = struck(N)
    body = replace(header.message.body, roster_digest=roster.digest())
    assert N in body.participants
    lie = Parcel(signer(TARGET).sign(bytes(32), b"", body), header.vectors)
    assert answers_of(newer(federation, roster), lie) == [Refusal("HEADER_PARTICIPANTS")]


def test_a_stolen_key_that_was_replaced_signs_no_advertisement(tmp_path: Path) -> None:
    """The thief answers in the owner's place; the aggregator helps it. Every honest source finds it."""
    roster = roster_with(OTHER, signing_key=THIEF.public_key().public_bytes_raw())
    federation = Federation(tmp_path, N, rounds=1, roster=roster)
    federation.sources[OTHER] = _signing_with(federation, Signer(OTHER, THIEF, wire.encode))
    key_list = until(federation.open(), ME, KeyList)
    stolen = [
        signer(OTHER).sign(ad.envelope.session_id, ad.envelope.context, ad.body) if ad.sender == OTHER else ad
        for ad in key_list.message.body.advertisements
    ]
    envelope = key_list.message.envelope
    lie = signer(TARGET).sign(envelope.session_id, envelope.context, KeyList(tuple(stolen)))
    (answer,) = answers_of(federation.sources[ME], Parcel(lie))
    assert (type(answer), answer.check) == (Abort, "KEY_SIGNATURE")
    assert site_id(OTHER) in str(federation.watch.alarms[ME][0])


def test_a_replaced_key_of_the_target_opens_no_round(tmp_path: Path) -> None:
    roster = roster_with(TARGET, signing_key=THIEF.public_key().public_bytes_raw())
    federation = Federation(tmp_path, N, rounds=1).open()
    header = until(federation, ME, Header)
    body = replace(header.message.body, roster_digest=roster.digest())
    lie = Parcel(signer(TARGET).sign(bytes(32), b"", body), header.vectors)
    assert answers_of(newer(federation, roster), lie) == [Refusal("SIGNATURE")]


def _signing_with(federation: Federation, key: Signer) -> SourceRun:
    source = federation.source(key.index)
    source._site.witness.journal.close()
    witness = federation.witness_of(key.index, federation.stores[key.index], key.private_key)
    return SourceRun(replace(source._site, signer=key, witness=witness), source._reporter)


@pytest.mark.parametrize("changes", [{"not_after": UNIX_S - 1}, {"not_before": UNIX_S + 1}])
def test_a_source_that_is_out_of_date_is_not_waited_for(tmp_path: Path, changes: dict[str, int]) -> None:
    federation = Federation(tmp_path, N, rounds=1, roster=roster_with(OTHER, **changes)).open().go()
    assert federation.statuses == ["finished"]
    assert participants(federation) == [(1, 2, 4)]
    assert f"{site_id(OTHER)}: join refused (by this clock its roster entry is not valid now)" in federation.watch.text
    assert all(alarms == [] for alarms in federation.watch.alarms.values())


def test_a_source_whose_time_ends_in_a_run_leaves_it_after_the_round(tmp_path: Path) -> None:
    federation = Federation(tmp_path, N, rounds=2, roster=roster_with(OTHER, not_after=UNIX_S)).open()

    def time_passes(sender: int, recipient: int, message: Any) -> Any:
        federation.unix_s += isinstance(message.body, Survivors)
        return message

    federation.link = time_passes
    federation.go()
    assert federation.statuses == ["finished", "finished"]
    assert participants(federation) == [(1, 2, 3, 4), (1, 2, 4)]
    assert all(alarms == [] for alarms in federation.watch.alarms.values())


def test_an_aggregator_that_asks_one_out_of_date_all_the_same_is_refused_by_the_others(tmp_path: Path) -> None:
    federation = Federation(tmp_path, N, rounds=1, roster=roster_with(OTHER, not_after=UNIX_S)).open()
    header = until(federation, ME, Header)
    assert OTHER in header.message.body.participants
    federation.unix_s += 1
    assert answers_of(federation.sources[ME], header) == [Refusal("HEADER_VALIDITY")]
    assert site_id(OTHER) in str(federation.watch.alarms[ME][0])


def left(index: int, unix_s: int = UNIX_S, n: int = N) -> Roster:
    """The usual roster at a site that holds a certificate of leaving: its bytes are the same."""
    entries = (replace(e, left_at=unix_s) if e.index == index else e for e in roster_of(n).entries)
    return replace(roster_of(n), entries=tuple(entries))


def test_a_target_that_holds_the_certificate_of_a_source_goes_on_without_it_and_names_it(tmp_path: Path) -> None:
    federation = Federation(tmp_path, N, rounds=1, roster=left(OTHER)).open().go()
    assert federation.statuses == ["finished"]
    assert participants(federation) == [(1, 2, 4)]
    line = f"{site_id(OTHER)}: join refused (it has left the federation and revoked its keys)"
    assert line in federation.watch.text


def test_where_too_few_are_left_a_target_ends_and_asks_nobody_to_start_what_left(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 3, rounds=1, roster=left(3, n=3)).open().go()
    error = federation.run.error
    assert isinstance(error, ConfigError)
    assert "a sum needs 3 sources" in str(error)
    assert error.hint == "more sources have to take part, or a site's owner permits more"


def test_a_source_that_holds_it_refuses_each_header_that_names_the_other_and_accuses_nobody(tmp_path: Path) -> None:
    federation = Federation(tmp_path, N, rounds=1).open()
    header = until(federation, ME, Header)
    assert OTHER in header.message.body.participants

    source = newer(federation, left(OTHER))

    assert answers_of(source, header) == [Refusal("HEADER_VALIDITY")]
    (alarm,) = federation.watch.alarms[ME]
    assert f"{site_id(OTHER)} has left the federation and revoked its keys" in str(alarm)
    assert not getattr(alarm, "blames", True)


def test_it_holds_at_once_whatever_hour_it_names(tmp_path: Path) -> None:
    federation = Federation(tmp_path, N, rounds=1, roster=left(OTHER, UNIX_S + 10_000)).open().go()
    assert participants(federation) == [(1, 2, 4)]
