"""Loss and accuracy over training rows: of all participants, or of nobody, as the signed header says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rounds_definition import trained
from rounds_federation import TARGET, AnySigned, Build, Federation, changed, is_header, site_id, until
from rounds_liars import ACCURACY, LOSS, Liar

from securefda.aggregator.headers import expected_header
from securefda.errors import PolicyRefusal, TrainingError
from securefda.protocol.messages import Advertise, Header, Join, Parcel, Refusal, Update, Visibility
from securefda.protocol.weighed_contribution import Metrics, metrics_of
from securefda.samples import sample
from securefda.site.config import NoiseSection, load_federation
from securefda.site.policy import MetadataPolicy
from securefda.training import LocalResult
from securefda.training.trainer import SiteTrainer

INDIVIDUAL, COHORT, SUM = Visibility
ME = 2
"""The source without figures, where there is one."""

N = 8
MIXED = dict.fromkeys((3, 4, 5), COHORT) | dict.fromkeys((6, 7, 8), SUM)
PLANS = {
    "individual": (INDIVIDUAL, {}),
    "cohort": (COHORT, {}),
    "sum": (SUM, {}),
    "mixed": (INDIVIDUAL, MIXED),
    "mixed, itself at sum": (INDIVIDUAL, MIXED | {ME: SUM}),
}
ALL = MetadataPolicy(may_leave=("samples", "loss", "accuracy"))


class Silent(SiteTrainer):
    """Gives no loss and no accuracy, as training by DP-SGD does."""

    def __init__(self, real: Any) -> None:
        self.__dict__.update(real.__dict__)

    def train(self, *arguments: Any, **options: Any) -> LocalResult:
        return replace(super().train(*arguments, **options), loss=None, accuracy=None)


def silence(federation: Federation, index: int, *, promised: bool = False) -> None:
    """Let a source train without figures; ``promised`` is what its Join says of them."""
    site = federation.sources[index]._site
    object.__setattr__(site, "trainer", Silent(site.trainer))
    object.__setattr__(site, "with_noise", not promised)


def statistics_sent(federation: Federation) -> dict[int, tuple[int, int]]:
    """What each masked source puts in the places of loss and accuracy, once it does."""
    found: dict[int, tuple[int, int]] = {}

    def looking(index: int) -> Callable[[Any, Header], None]:
        def look(encoded: Any, _header: Header) -> None:
            found[index] = (int(encoded[LOSS]), int(encoded[ACCURACY]))

        return look

    federation.sources = {index: Liar(source, looking(index)) for index, source in federation.sources.items()}
    return found


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def one(plan: str = "sum", n: int = N, **options: Any) -> Federation:
        """A federation of which every policy lists everything that may leave in clear."""
        level, permits = PLANS[plan]
        options = {"rule": "source_only", "rounds": 1} | options
        federation = Federation(tmp_path, n, visibility=level, permits=permits, **options)
        for index in federation.sources:
            policy = federation.policy(index, metadata=ALL)
            federation.sources[index] = federation.source(index, policy=policy)
        return federation

    return one


def bodies(federation: Federation, kind: type) -> dict[int, list[Any]]:
    """Messages of a kind as they arrived, by the source that sent or got them."""
    found: dict[int, list[Any]] = {}
    for sender, to, message in federation.passed:
        if isinstance(message.body, kind):
            found.setdefault(to if sender == TARGET else sender, []).append(message.body)
    return found


def asks(federation: Federation) -> list[bool]:
    """Whether each header asks for figures, attempt by attempt."""
    headers = {m.envelope.session_id: m.body.metrics for *_, m in federation.passed if is_header(m)}
    return list(headers.values())


@pytest.mark.parametrize("plan", PLANS)
def test_where_one_source_has_no_figures_nobodys_travel(build: Build, plan: str) -> None:
    federation = build(plan)
    silence(federation, ME)
    found = statistics_sent(federation)
    federation.open().go()

    assert {index: join.metrics for index, (join,) in bodies(federation, Join).items()} == {
        index: index != ME for index in range(1, N + 1)
    }
    assert federation.watch.statuses == ["finished"]
    assert asks(federation) == [False]
    updates = bodies(federation, Update)
    assert found.keys() | updates.keys() == set(range(1, N + 1))
    assert set(found.values()) <= {(0, 0)}
    assert {(body.loss, body.accuracy) for (body,) in updates.values()} <= {(None, None)}
    (line,) = federation.watch.lines
    assert {(seen["loss"], seen["accuracy"]) for seen in line["seen"]} == {(None, None)}
    assert all(seen["rows"] > 0 for seen in line["seen"])


@pytest.mark.parametrize("plan", PLANS)
def test_where_every_source_has_figures_they_travel(build: Build, plan: str) -> None:
    federation = build(plan, settings={"bits": 32})
    found = statistics_sent(federation)
    federation.open().go()
    sites = trained(federation)

    assert asks(federation) == [True]
    assert all(loss > 0 for loss, _ in found.values())
    assert all((accuracy > 0) == (sites.accuracies[index] > 0) for index, (_, accuracy) in found.items())
    updates = bodies(federation, Update)
    assert found.keys() | updates.keys() == set(range(1, N + 1))
    figures = {index: (body.loss, body.accuracy) for index, (body,) in updates.items()}
    assert figures == {index: (sites.losses[index], sites.accuracies[index]) for index in updates}
    (line,) = federation.watch.lines
    for seen in line["seen"]:
        members = [index for index in sites.losses if site_id(index) in seen["members"]]
        rows = sum(sites.samples[index] for index in members)
        loss, accuracy = (
            sum(sites.samples[index] * values[index] for index in members) / rows
            for values in (sites.losses, sites.accuracies)
        )
        assert (seen["loss"], seen["accuracy"]) == (pytest.approx(loss, abs=3e-6), pytest.approx(accuracy, abs=1e-7))


def test_a_site_keeps_its_own_loss_and_none_where_training_gave_none(build: Build) -> None:
    federation = build(n=4)
    silence(federation, ME)
    federation.open().go()
    losses = {index: record["loss"] for index, (record,) in federation.watch.records.items()}
    own = trained(federation).losses
    assert losses == {index: None if index == ME else own[index] for index in range(1, 5)}


@pytest.mark.parametrize("plan", ["individual", "cohort", "sum"])
def test_a_source_without_figures_refuses_a_header_that_asks_for_them_and_the_round_goes_on_without_it(
    build: Build, plan: str
) -> None:
    federation = build(plan)
    silence(federation, ME)
    honest: list[AnySigned] = []

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned:
        if recipient == ME and is_header(message):
            honest.append(message)
            return changed(message, metrics=True)
        return message

    federation.link = link
    federation.open().go()

    assert federation.names(sender=ME) == ["Join", "Refusal"]
    assert bodies(federation, Refusal) == {ME: [Refusal("dp.metrics")]}
    (refusal,) = federation.watch.refusals[ME]
    assert refusal.key == "dp.metrics"
    assert refusal.hint
    assert federation.watch.alarms[ME] == []
    assert ME not in federation.watch.records or federation.watch.records[ME] == []
    (line,) = federation.watch.lines
    assert (line["status"], line["refused"]) == ("finished", {site_id(ME): "dp.metrics"})
    assert line["survivors"] == [site_id(index) for index in range(1, N + 1) if index != ME]
    assert honest[0].body.metrics is False


def test_a_header_that_was_refused_for_its_figures_leaves_nothing_behind(build: Build) -> None:
    federation = build(n=4)
    silence(federation, ME)
    header = until(federation.open(), ME, Header)
    session_id, body = header.message.envelope.session_id, header.message.body
    assert isinstance(body, Header)
    before = federation.stores[ME].history(session_id, body.run_id, body.round)

    answers = federation.sources[ME].handle(Parcel(changed(header.message, metrics=True), header.vectors))

    assert [answer.message.body for answer in answers] == [Refusal("dp.metrics")]
    assert federation.stores[ME].history(session_id, body.run_id, body.round) == before
    assert federation.sources[ME].current is None
    (answer,) = federation.sources[ME].handle(header)
    assert isinstance(answer.message.body, Advertise)


def test_figures_travel_again_when_the_source_without_them_is_gone(build: Build) -> None:
    federation = build(n=4, rounds=3)
    silence(federation, ME)

    def link(_sender: int, _recipient: int, message: AnySigned) -> AnySigned:
        if is_header(message) and message.body.round == 2 and ME in federation.reached:
            federation.kill(ME)
        return message

    federation.link = link
    federation.open().go()
    assert federation.watch.statuses == ["finished"] * 3
    assert [line["seen"][0]["loss"] is None for line in federation.watch.lines] == [True, True, False]
    assert asks(federation) == [False, False, True]


@pytest.mark.parametrize("plan", ["individual", "cohort", "sum"])
def test_figures_that_were_promised_and_are_not_there_end_the_source_and_no_zero_takes_their_place(
    build: Build, plan: str
) -> None:
    federation = build(plan)
    silence(federation, ME, promised=True)
    federation.open().go()
    assert isinstance(federation.sources[ME].standing.failure, TrainingError)
    assert federation.names(sender=ME) == ["Join", *([] if plan == "individual" else ["Advertise"]), "Refusal"]
    assert bodies(federation, Refusal) == {ME: [Refusal("TRAINING")]}
    assert federation.watch.statuses == ["finished"]


def test_a_loss_that_is_missing_is_refused_and_a_task_without_accuracy_is_not(build: Build) -> None:
    federation = build(n=4)
    header = until(federation.open(), ME, Header).message.body
    assert isinstance(header, Header)
    result = _result(federation)
    with pytest.raises(TrainingError, match="gave no loss"):
        metrics_of(header, None, result.accuracy)
    assert metrics_of(header, 0.5, None) == Metrics(0.5, None)
    assert metrics_of(replace(header, metrics=False), None, result.accuracy) is None


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_header_made_from_a_configuration_asks_for_figures_where_its_sources_train_without_noise(
    noise: float,
) -> None:
    config = load_federation(sample("digits"))
    source = config.training.source.model_copy(update={"dp": NoiseSection(noise_multiplier=noise)})
    config = config.model_copy(update={"training": config.training.model_copy(update={"source": source})})
    assert expected_header(config).metrics is (noise == 0)


def _result(federation: Federation) -> LocalResult:
    trainer = federation.sources[ME]._site.trainer
    return trainer.train(trainer.initial_model(), 1, 1.0)


def test_an_update_that_carries_figures_which_the_header_leaves_out_does_not_leave(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last look, should what fills the message be wrong; the fuse does not burn."""
    federation = build("individual")
    silence(federation, ME)
    header = until(federation.open(), 1, Header)
    body = header.message.body
    assert isinstance(body, Header)
    monkeypatch.setattr(
        "securefda.source.source_round.metrics_of",
        lambda header, *figures: metrics_of(replace(header, metrics=True), *figures),
    )
    answers = federation.sources[1].handle(header)
    assert [answer.message.body for answer in answers] == [Refusal("dp.metrics")]
    refusal = federation.sources[1].standing.refusal
    assert isinstance(refusal, PolicyRefusal)
    assert not federation.stores[1].history(header.message.envelope.session_id, body.run_id, body.round).released


def test_what_a_source_puts_in_the_places_of_figures_that_do_not_travel_is_not_written_down(build: Build) -> None:
    federation = build("mixed")
    silence(federation, ME)

    def lie(encoded: Any, _header: Header) -> None:
        encoded[LOSS] = encoded[ACCURACY] = 7

    def link(_sender: int, _recipient: int, message: AnySigned) -> AnySigned:
        if isinstance(message.body, Update):
            own = federation.sources[message.sender]._site.signer
            false = replace(message.body, loss=0.5, accuracy=0.5)
            return own.sign(message.envelope.session_id, message.envelope.context, false)
        return message

    federation.sources = {index: Liar(source, lie) for index, source in federation.sources.items()}
    federation.link = link
    federation.open().go()
    (line,) = federation.watch.lines
    assert line["status"] == "finished"
    assert {(seen["loss"], seen["accuracy"]) for seen in line["seen"]} == {(None, None)}
