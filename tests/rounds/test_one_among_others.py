"""What would take one source out of the sum: a second run over others, saturated updates, a weight that is a lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_federation import TARGET, AnySigned, Federation, changed, signer, site_id, until
from rounds_fixed import Fixed
from rounds_liars import SAMPLES, Liar

from securefda.audit.reading import find_logs, open_log
from securefda.errors import ConfigError
from securefda.protocol.header_checks import quantisation
from securefda.protocol.messages import NO_CONTEXT, Header, Parcel, Refusal, ShareBundle, Visibility
from securefda.site.policy import WorkLimits
from securefda.training import LocalResult, Vector

ME, LIAR = 2, 1
OTHER_RUN, OTHER_SESSION = b"r" * 16, b"s" * 32


def body_of(header: Parcel) -> Any:
    """The header's body."""
    return header.message.body


def in_another_run(header: Parcel) -> Parcel:
    """The header as the first of a new run, which all have joined, in a new session."""
    body = replace(body_of(header), run_id=OTHER_RUN)
    return Parcel(signer(TARGET).sign(OTHER_SESSION, NO_CONTEXT, body), header.vectors)


def boundless(federation: Federation) -> None:
    """The site's own policy bounds no learning rate: what is left are the checks on what would leave."""
    policy = federation.policy(ME, limits=WorkLimits(learning_rate_max=1e301, learning_rate_min=1e-301))
    federation.sources[ME] = federation.source(ME, policy=policy)


def keys(answers: list[Parcel]) -> list[Any]:
    return [answer.message.body for answer in answers]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_folder_takes_part_in_no_other_run(tmp_path: Path, restarted: bool) -> None:
    """Training repeats to the last bit, so two sums over sets that differ by me would have my update as difference."""
    federation = Federation(tmp_path, 4, rounds=1)
    header = until(federation.open(), ME, Header)
    for answer in federation.sources[ME].handle(header):
        federation.submit(ME, answer)
    federation.go()
    assert federation.statuses == ["finished"]
    if restarted:
        federation.sources[ME] = federation.source(ME)
    assert keys(federation.sources[ME].handle(in_another_run(header))) == [Refusal("HEADER_RUN")]
    with pytest.raises(ConfigError, match=f"belongs to run .*, and the aggregator is in run {OTHER_RUN.hex()[:12]}"):
        federation.sources[ME].join(OTHER_RUN.hex())


def test_a_folder_belongs_to_a_run_from_its_first_header_on(tmp_path: Path) -> None:
    """Nothing has been released yet, but what leaves before a release was asked for too."""
    federation = Federation(tmp_path)
    header = until(federation.open(), ME, Header)
    federation.sources[ME].handle(header)
    assert keys(federation.sources[ME].handle(in_another_run(header))) == [Refusal("HEADER_RUN")]


def test_a_header_that_is_refused_binds_no_folder(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    header = until(federation.open(), ME, Header)
    rule = replace(body_of(header).rule, learning_rate_factor=1000.0)
    lie = Parcel(changed(header.message, rule=rule), header.vectors)
    assert keys(federation.sources[ME].handle(lie)) == [Refusal("HEADER_RATE")]
    federation.stores[ME].require_open(OTHER_RUN)


def test_an_update_that_the_header_drives_to_the_clip_does_not_leave(tmp_path: Path) -> None:
    """Every coordinate would be n_i times a sign, and where sites differ in size the sum has all their signs."""
    federation = Federation(tmp_path, 4, rule="fedda", beta=1.0)
    boundless(federation)
    header = until(federation.open(), ME, Header)
    target = replace(body_of(header).target, learning_rate=1e6)
    lie = Parcel(changed(header.message, target=target), header.vectors)
    federation.sources[ME].handle(lie)
    assert keys(federation.sources[ME].train()) == [Refusal("CLIPPED")]
    assert federation.sources[ME].current is None
    fault = federation.sources[ME].standing.fault
    assert fault is not None
    assert str(fault).startswith("check CLIPPED fails, which accuses no site: ")  # honest rounds may come to it too
    assert "session.clip" in fault.hint
    logs = find_logs(tmp_path / "audit" / site_id(ME))
    events = [record.entry for log in logs for record in open_log(log).records()]
    assert [(event.facts["check"], event.facts["accused"]) for event in events if event.type == "alarm"] == [
        ("CLIPPED", [])
    ]


@pytest.mark.parametrize("learning_rate", [1e300, 1e-300])
def test_an_update_in_clear_that_cannot_be_aligned_is_refused_and_does_not_leave(
    tmp_path: Path, learning_rate: float
) -> None:
    federation = Federation(tmp_path, visibility=Visibility.INDIVIDUAL, rule="fedda")
    boundless(federation)
    header = until(federation.open(), ME, Header)
    target = replace(body_of(header).target, learning_rate=learning_rate)
    lie = Parcel(changed(header.message, target=target), header.vectors)
    assert keys(federation.sources[ME].handle(lie)) == [Refusal("HEADER_TARGET")]
    assert federation.sources[ME].standing.failure is None


def negative_weight(encoded: Any, header: Header) -> None:
    """Nothing in the layers, and a weight that takes those of the three others away, but for a thousandth."""
    others = 3 * 24 / header.max_samples
    encoded[:] = 0
    encoded[SAMPLES] = 2**32 - round((others - 0.001) * quantisation(header).statistic_q_max)


def honest(encoded: Any, header: Header) -> None:
    """Keeps the vector as it is."""


@pytest.mark.parametrize(("lie", "status"), [(negative_weight, "lost"), (honest, "finished")])
def test_one_source_cannot_move_the_model_beyond_the_clip_with_a_false_weight(
    tmp_path: Path, lie: Callable[[Any, Header], None], status: str
) -> None:
    federation = Federation(tmp_path, 4, rule="source_only", rounds=1)
    federation.sources[LIAR] = Liar(federation.sources[LIAR], lie)
    federation.open()
    before = federation.run.model.copy()
    federation.go()
    assert federation.statuses == [status]
    assert np.abs(federation.run.model - before).max() <= federation.settings.clip
    assert ("alarm: a source lied about its contribution" in federation.watch.text) == (status == "lost")
    assert ("Result" in federation.names(to=ME)) == (status == "finished")


def test_who_deals_a_box_that_does_not_open_is_accused_and_not_only_its_victim(tmp_path: Path) -> None:
    """The victim leaves the round, which one source can bring about every time; but its alarm says by whom."""
    federation = Federation(tmp_path, 4, rounds=1)

    def spoil(sender: int, recipient: int, message: AnySigned) -> AnySigned:
        if sender != LIAR or not isinstance(message.body, ShareBundle):
            return message
        boxes = tuple(
            replace(box, box=box.box[:-1] + bytes([box.box[-1] ^ 1])) if box.peer == ME else box
            for box in message.body.boxes
        )
        body = replace(message.body, boxes=boxes)
        return signer(LIAR).sign(message.envelope.session_id, message.envelope.context, body)

    federation.link = spoil
    federation.open().go()
    assert federation.store.records()[0]["dropped"] == ["source-2"]
    assert "source source-2 aborted at shares: check SHARE_BOX failed; it accuses source-1" in federation.watch.text


def test_a_layer_that_the_header_drives_to_the_clip_does_not_leave_though_most_of_the_model_is_free(
    tmp_path: Path,
) -> None:
    """Clips differ by layer, and so does what a sum over them tells: half of the model could be bare signs."""
    federation = Federation(tmp_path, 4, rule="source_only")
    header = until(federation.open(), ME, Header)
    first, *others = body_of(header).layers
    layers = (replace(first, clip=0.1, range=0.1), *(replace(layer, clip=10.0, range=10.0) for layer in others))
    lie = Parcel(changed(header.message, layers=layers), header.vectors)
    federation.sources[ME].handle(lie)
    assert keys(federation.sources[ME].train()) == [Refusal("CLIPPED")]


class AtItsClipInOddRounds(Fixed):
    """Its update is beyond every clip in rounds 1, 3, 5, ..., and small in the others."""

    def train(self, received: Vector, round_number: int, factor: float, **options: Any) -> LocalResult:
        self._update = np.full(received.size, 100.0 if round_number % 2 else 0.01, np.float32)
        return super().train(received, round_number, factor, **options)


def test_round_that_a_source_kept_back_at_its_clip_is_paid_for_by_no_result(tmp_path: Path) -> None:
    """Whether a part is at the clip depends on the rows. A target that asks for it again and again is left."""
    federation = Federation(tmp_path, 4, rule="source_only", rounds=9)
    site = federation.sources[ME]._site
    object.__setattr__(site, "trainer", AtItsClipInOddRounds(site.trainer, [0.0], {}))  # type: ignore[arg-type]
    federation.open().go()
    refused = [record["refused"].get(site_id(ME)) for record in federation.store.records()]
    assert refused == ["CLIPPED", None, "CLIPPED", None, "CLIPPED", "release.max-unfinished", *[None] * 3]
    # It has left, and is asked no more.
    assert "release.max-unfinished" in str(federation.sources[ME].standing.failure)  # with which its process ends
    assert federation.statuses == ["finished"] * 9
    assert len(federation.watch.records[ME]) == 2
