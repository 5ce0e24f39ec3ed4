"""The site's own policy in a run: the aggregator gets a key, the site keeps all, and nothing leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rounds_federation import Federation, changed, until, without_schedules

from securefda.errors import PolicyRefusal, SecureFdaError
from securefda.operations.records import SiteLine, refused_line
from securefda.operations.run_folder import METRICS_FILE, RunFolder
from securefda.protocol.messages import (
    Header,
    Parcel,
    Refusal,
    Signed,
    Visibility,
)
from securefda.site.policy import WorkLimits
from securefda.site.policy.schema import MetadataPolicy
from securefda.source.source_run import SourceRun
from securefda.transport.wire import decode_signed, encode_signed

ME = 2


class Keeper:
    """A source's reporter that keeps what was refused, as the services' does."""

    def __init__(self, folder: RunFolder, site: str) -> None:
        self._folder, self._site = folder, site
        self.alarms: list[SecureFdaError] = []

    def round_started(self, round_number: int, visibility: str, rule: str) -> None: ...

    def round_finished(self, record: SiteLine) -> None:
        self._folder.append_site_round(self._site, record)

    def refused(self, refusal: PolicyRefusal, header: Signed[Header]) -> None:
        self._folder.keep_refused(self._site, refused_line(refusal, header), encode_signed(header))

    def alarm(self, error: SecureFdaError) -> None:
        self.alarms.append(error)


def tighten(federation: Federation, index: int, **changes: Any) -> None:
    """Replace a site's policy, which its process never does, so that it refuses what it would have permitted."""
    policy = federation.policy(index, **changes)
    site = federation.sources[index]._site
    object.__setattr__(site, "policy", policy)


def has_burnt(federation: Federation, header: Signed[Header]) -> bool:
    """Whether this site's store says that an update of the round may have left."""
    body = header.body
    return federation.stores[ME].history(header.envelope.session_id, body.run_id, body.round).released


def test_a_refused_header_is_kept_with_what_was_asked_and_allowed_and_the_aggregator_gets_the_key(
    tmp_path: Path,
) -> None:
    federation = Federation(tmp_path, rounds=1)
    out = RunFolder(tmp_path / "out")
    policy = federation.policy(ME, limits=WorkLimits(learning_rate_max=0.001))
    federation.sources[ME] = SourceRun(federation.source(ME, policy=policy)._site, Keeper(out, "source-2"))
    header = until(federation.open(), ME, Header)
    (answer,) = federation.sources[ME].handle(header)
    assert answer.message.body == Refusal("limits.learning-rate-max")
    assert answer.vectors == ()
    assert b"0.001" not in answer.message.signed_bytes
    kept = out.site("source-2") / "refused" / "limits.learning-rate-max.header"
    assert decode_signed(kept.read_bytes()) == header.message
    (line,) = [json.loads(text) for text in (out.site("source-2") / METRICS_FILE).read_text().splitlines()]
    assert (line["round"], line["attempt"], line["rule"]) == (1, 1, "fedgp_auto")
    assert line["refused"] == {"key": "limits.learning-rate-max", "asked": "0.05", "allowed": "at most 0.001"}


def test_an_update_in_clear_is_checked_before_its_fuse_burns(tmp_path: Path) -> None:
    """Should the policy list less than the message holds, nothing leaves."""
    federation = Federation(tmp_path, visibility=Visibility.INDIVIDUAL, rounds=1)
    tighten(federation, ME, metadata=MetadataPolicy(may_leave=()))
    header = until(federation.open(), ME, Header)
    answers = federation.sources[ME].handle(header)
    assert [answer.message.body for answer in answers] == [Refusal("metadata.may-leave")]
    assert not has_burnt(federation, header.message)  # type: ignore[arg-type]


def test_a_header_that_does_not_name_this_site_is_a_fault_and_no_matter_of_policy(tmp_path: Path) -> None:
    federation = Federation(tmp_path, 4, rounds=1)
    federation.sources[ME] = federation.source(ME, policy=federation.policy(ME, allowed_rules=()))
    federation.link = without_schedules
    header = until(federation.open(), ME, Header)
    body: Any = header.message.body
    lie = changed(header.message, participants=(1, 3, 4), levels=body.levels[:3])
    (answer,) = federation.sources[ME].handle(Parcel(lie, header.vectors))
    assert answer.message.body == Refusal("HEADER_PARTICIPANTS")
