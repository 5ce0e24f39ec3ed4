"""The verdict on what was disclosed: noise, N or nothing, by the weakest of what a site's own log says."""

from __future__ import annotations

import pytest

from securefda.audit.log_records import Disclosure, DpSpent, Entry, Record
from securefda.audit.report.disclosure import DisclosureVerdict, disclosure_of, disclosure_verdict
from securefda.audit.report.party_tables import PartyTables, read_party

SUM, ALONE, MODEL = (
    Disclosure("sum", "update", 3),
    Disclosure("individual", "update", 1),
    Disclosure("individual", "model", 1),
)
G_T = Disclosure("individual", "model-and-target-update", 1)
ROLES = {"target": "target", "a": "source", "b": "source"}


def charged(number: int, epsilon: str = "0.5") -> Entry:
    dp = DpSpent("dp-sgd", "rdp", "1.1", "0.05", "1.0", "1e-05", epsilon, 20, number, "ab" * 32)
    return Entry("event", "ledger-updated", number, dp=dp)


def sent(number: int, disclosure: Disclosure, to: str = "target") -> Entry:
    return Entry("sent", "Message", number, peer=to, digest="cd" * 32, disclosure=disclosure)


def log_of(party: str, *entries: Entry) -> PartyTables:
    time = "2026-11-21T12:00:00.000000Z"
    return read_party(party, [Record(number, time, party, "run", entry) for number, entry in enumerate(entries)])


def verdict(*logs: PartyTables, senders: tuple[str, ...] = ()) -> DisclosureVerdict:
    return disclosure_verdict(logs, ROLES, senders)


TARGET_WITH_NOISE = log_of("target", charged(1), sent(1, MODEL, "a"))
NOISY = log_of("a", charged(1), sent(1, SUM), charged(2), sent(2, SUM))


def test_noise_in_every_round_of_every_site_is_the_only_green_one() -> None:
    found = verdict(TARGET_WITH_NOISE, NOISY, log_of("b", charged(1), sent(1, ALONE)))
    assert (found.bound, found.tone, found.headline) == ("noise", "done", "Bounded by noise")
    assert ". a, b, each: noise with epsilon 0.5000 at delta 1e-05." in found.text


@pytest.mark.parametrize(
    ("entries", "bound", "tone"),
    [
        ([sent(1, SUM)], "sums", "care"),
        ([charged(1), sent(1, SUM), sent(2, SUM)], "sums", "care"),
        ([charged(1), sent(1, SUM), sent(2, ALONE)], "nothing", "failed"),
        ([sent(1, SUM), sent(2, ALONE)], "nothing", "failed"),
        ([], "none", "none"),
    ],
)
def test_the_weakest_bound_of_a_site_is_its_bound(entries: list[Entry], bound: str, tone: str) -> None:
    site = disclosure_of(log_of("b", *entries), is_target=False)
    assert (site.bound, site.tone) == (bound, tone)
    assert verdict(TARGET_WITH_NOISE, NOISY, log_of("b", *entries)).bound == ("noise" if bound == "none" else bound)


def test_n_is_that_of_the_smallest_sum_without_noise() -> None:
    site = disclosure_of(log_of("b", sent(1, SUM), sent(2, Disclosure("cohort", "update", 2))), is_target=False)
    assert (site.fewest, site.bare) == (2, 2)
    assert "2 contributions left only in sums over at least N = 2 sites." in site.text


@pytest.mark.parametrize("target", [log_of("target", sent(1, MODEL, "a")), log_of("target", sent(1, G_T, "a"))])
def test_a_target_without_noise_keeps_the_verdict_from_being_green(target: PartyTables) -> None:
    found = verdict(target, NOISY, log_of("b", charged(1), sent(1, SUM)))
    assert (found.bound, found.tone) == ("noise", "care")
    assert found.headline == "Bounded by noise, but not the target's rows"


def test_noise_at_all_sources_is_not_green_where_the_targets_log_is_not_here() -> None:
    found = verdict(NOISY, log_of("b", charged(1), sent(1, SUM)))
    assert (found.bound, found.tone, found.headline) == (
        "noise",
        "care",
        "Bounded by noise, the target's log is not here",
    )


def test_noise_of_no_use_is_not_green() -> None:
    found = verdict(TARGET_WITH_NOISE, log_of("a", charged(1, "21.0"), sent(1, SUM)), log_of("b"))
    assert (found.tone, found.headline) == ("care", "Bounded by noise of no use")
    assert "So large an epsilon bounds nothing of use." in found.text


def test_a_source_without_a_log_is_unknown_unless_the_targets_log_has_nothing_of_it() -> None:
    assert verdict(TARGET_WITH_NOISE, NOISY, senders=("b",)).bound == "unknown"
    assert verdict(TARGET_WITH_NOISE, NOISY).bound == "noise"
    assert verdict(NOISY).bound == "unknown"


def test_what_has_no_row_in_the_tables_counts_as_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("securefda.audit.report.party_tables.MOST_ROUNDS", 1)
    site = disclosure_of(log_of("a", charged(1), sent(1, SUM), charged(2), sent(2, SUM)), is_target=False)
    assert (site.messages, site.bare, site.bound) == (2, 1, "sums")
