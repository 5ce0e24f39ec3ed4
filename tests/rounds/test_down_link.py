"""The model and g_T on the way down in 2 bytes: all sites and levels compute with the same rounded numbers."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_federation import TARGET, Federation, changed, trainer_of, until

from securefda.aggregator.target import TargetRound
from securefda.errors import ConfigError
from securefda.protocol.down_link import rounded
from securefda.protocol.encoding import vector_from_wire, vector_to_wire
from securefda.protocol.messages import DownLink, Goodbye, Header, Parcel, Refusal, SourcesKeep, Visibility
from securefda.rules import TargetStatistics
from securefda.training import LocalResult

INDIVIDUAL, COHORT, SUM = Visibility
SHORT = (DownLink.BFLOAT16, DownLink.FLOAT16)
ME = 2


def made(folder: Path, down_link: DownLink, level: Visibility = SUM, **options: Any) -> Federation:
    settings = {"bits": 20, "kappa": 0.0, "down_link": down_link} | options.pop("settings", {})
    return Federation(folder, 4, visibility=level, settings=settings, **({"rule": "fedgp_auto"} | options))


def headers_of(federation: Federation) -> list[Header]:
    return [body for _, to, message in federation.passed if to == ME and isinstance(body := message.body, Header)]


def is_rounded(vector: Any, down_link: DownLink) -> bool:
    return bool(np.array_equal(rounded(vector, down_link, "it"), vector))


@pytest.mark.parametrize("down_link", SHORT)
def test_what_a_header_brings_is_rounded_and_signed_for_as_float32(tmp_path: Path, down_link: DownLink) -> None:
    federation = made(tmp_path, down_link)
    parcel = until(federation.open(), ME, Header)
    header = parcel.message.body
    assert header.down_link is down_link
    model, update = (vector_from_wire(one) for one in parcel.vectors)
    assert is_rounded(model, down_link)
    assert is_rounded(update, down_link)
    assert not is_rounded(trainer_of(4, TARGET).initial_model(), down_link)
    digests = [sha256(vector_to_wire(one)).digest() for one in (model, update)]
    assert digests == [header.model_digest, header.target.update_digest]


@pytest.mark.parametrize("down_link", SHORT)
def test_sources_are_left_with_the_rounded_final_model(tmp_path: Path, down_link: DownLink) -> None:
    federation = made(tmp_path, down_link, settings={"sources_keep": SourcesKeep.FINAL}).open().go()
    (goodbye,) = [
        body for _, to, message in federation.passed if to == ME and isinstance(body := message.body, Goodbye)
    ]
    assert goodbye.down_link is down_link
    assert is_rounded(federation.run.model, down_link)
    for index in federation.sources:
        assert np.array_equal(federation.kept[index][0], federation.run.model)
    assert not any(federation.watch.alarms.values())


@pytest.mark.parametrize("down_link", SHORT)
def test_a_model_that_the_target_trained_alone_is_rounded_too(tmp_path: Path, down_link: DownLink) -> None:
    federation = made(tmp_path, down_link, rule="target_only", rounds=2).open().go()
    assert federation.statuses == ["finished"] * 2
    assert is_rounded(federation.run.model, down_link)


def test_a_header_in_2_bytes_is_half_as_long_on_the_way(tmp_path: Path) -> None:
    sizes = {}
    for down_link in DownLink:
        federation = made(tmp_path / down_link.label, down_link)
        seen: list[int] = []
        federation.observers[TARGET] = lambda way, peer, message, size, seen=seen, **_: (
            seen.append(size) if peer == ME and isinstance(message.body, Header) else None
        )
        m = until(federation.open(), ME, Header).message.body.n_params
        (sizes[down_link],) = seen
        federation.close()
    assert sizes[DownLink.BFLOAT16] == sizes[DownLink.FLOAT16]
    assert sizes[DownLink.FLOAT32] - sizes[DownLink.FLOAT16] == pytest.approx(2 * 2 * m, abs=8)


@pytest.mark.parametrize(("times", "key"), [(3.0, "HEADER_INITIAL_MODEL"), (0.0, None)])
def test_the_first_model_may_be_off_by_the_rounding_and_no_more(tmp_path: Path, times: float, key: str | None) -> None:
    federation = made(tmp_path, DownLink.BFLOAT16, rule="source_only")
    header = until(federation.open(), ME, Header)
    model = vector_from_wire(header.vectors[0]).copy()
    largest = int(np.argmax(np.abs(model)))
    model[largest] *= np.float32(1 + times * 2.0**-8)
    lie = changed(header.message, model_digest=sha256(vector_to_wire(model)).digest())
    answers = federation.sources[ME].handle(Parcel(lie, (vector_to_wire(model),)))
    refusals = [one.message.body.key for one in answers if isinstance(one.message.body, Refusal)]
    assert refusals == ([key] if key else [])


def test_an_unrounded_first_model_of_2_bytes_is_what_the_task_begins_with(tmp_path: Path) -> None:
    """Another machine may begin with numbers that round to the neighbours of these."""
    federation = made(tmp_path, DownLink.FLOAT16, rule="source_only")
    header = until(federation.open(), ME, Header)
    own = trainer_of(4, ME).initial_model()
    lie = changed(header.message, model_digest=sha256(vector_to_wire(own)).digest())
    answers = federation.sources[ME].handle(Parcel(lie, (vector_to_wire(own),)))
    assert not [one for one in answers if isinstance(one.message.body, Refusal)]


@pytest.mark.parametrize("what", ["the model", "the target's update"])
def test_a_number_beyond_the_format_ends_the_run_by_the_name_of_the_setting_and_nothing_of_it_travels(
    tmp_path: Path, what: str
) -> None:
    federation = made(tmp_path, DownLink.FLOAT16)
    trainer = federation.run.site.trainer
    if what == "the model":
        own = trainer.initial_model()
        trainer.initial_model = lambda: own * np.float32(1e6)  # type: ignore[method-assign]
    else:
        train = trainer.train
        trainer.train = lambda *args, **options: _enlarged(train(*args, **options))  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=f"session.down-link: {what} has a number of .*, beyond float16"):
        federation.open().go()
    assert headers_of(federation) == []


def _enlarged(result: Any) -> Any:
    return replace(result, update=result.update * np.float32(1e9))


def test_numbers_of_a_rounded_target_update_agree_with_it() -> None:
    """A source compares both; half of the update's length would be another target's, not a rounding."""
    steps = np.random.default_rng(7).normal(size=(5, 40)).astype(np.float32)
    update = steps.sum(axis=0, dtype=np.float64).astype(np.float32)
    trained = LocalResult(update, steps=5, samples=50, loss=1.0, accuracy=0.5, learning_rate=0.1)
    statistics = TargetStatistics.from_batches(steps)
    target = TargetRound(trained, statistics, None)
    coarse = (update / 2).astype(np.float32)
    published = target.with_update(coarse)
    assert published.statistics is not None
    published.statistics.require_agreement(float(coarse @ coarse) / 25)
    with pytest.raises(ValueError, match="do not belong"):
        statistics.require_agreement(float(coarse @ coarse) / 25)
    assert np.array_equal(published.result.update, coarse)
    assert published.statistics.scatter == statistics.scatter
    assert target.with_update(update) is target
