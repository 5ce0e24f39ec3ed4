"""What a process shows on a terminal, and what ``securefda status`` says of it, in every state that lasts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bad_peers import Held, Peers
from e2e_processes import kits
from terminals import Terminal, eventually, status, status_of, terminal

from securefda.protocol.messages import (
    Advertise,
    Cosigned,
    MaskedInput,
    ShareBundle,
    SurvivorSignature,
    Unmask,
)


def test_a_source_says_why_it_has_no_connection_and_when_it_is_back(tmp_path: Path, capsys: Any) -> None:
    with kits(tmp_path, settings=("strategy.rounds=1", "strategy.warm-up-rounds=0")) as federation:
        address, me = f"127.0.0.1:{federation.port}", federation.kit("source-1")
        refused = rf"cannot reach {address}: connection refused; retrying until \d\d:\d\d"
        with terminal(federation, "source-1") as source:
            source.shows(refused)
            _, state = status_of(capsys, me, f"connecting to {address}", refused)
            assert (state["site"], state["process"], state["running"]) == ("source-1", source.process.pid, True)
            assert (state["doing"], state["waiting_for"]) == (f"connecting to {address}", ["target"])

            aggregator = federation.start("target")
            waiting = source.shows(f"connected to the aggregator at {address}")
            waiting = source.shows("joined; waiting for target to begin a round", waiting)
            source.shows(r"waiting for target to begin a round\W+\d:\d\d:\d\d", waiting)
            text, state = status_of(capsys, me, "waiting for target to begin a round")
            assert state["retrying"] == ""
            assert "waiting for target" in text
            lines = re.findall(rf"[\r\n]{refused}(?::\d\d)?\r?\n", source.text)  # the state stands below a bar instead
            assert len(lines) == 1  # one for the reason, and none for each try

            aggregator.kill()
            lost = source.shows(
                rf"(lost the connection to|cannot reach) {address}: .*; retrying until \d\d:\d\d", waiting
            )
            source.shows(refused, waiting)
            # That the stream broke may be noticed after the first try to dial was refused; the next try says so again.
            _, state = status_of(capsys, me, "waiting for target to begin a round", refused)
            assert state["retrying_until"] > state["since"]
            assert "was killed or crashed" in status(capsys, federation.kit("target"))[0]

            for site in ("target", "source-2", "source-3"):
                federation.start(site)
            again = source.shows(f"connected again to the aggregator at {address}", lost)
            source.shows("source-1: round 1 of 1: update sent inside a sum of 3", again)
            assert source.end()[0] == 0
        text, state = status(capsys, me)
        assert (state["doing"], state["running"], state["round"]) == ("ended", False, 1)
        assert "the run is over" in text


def test_a_source_says_what_it_does_in_a_round(tmp_path: Path, capsys: Any) -> None:
    settings = ("strategy.rounds=1", "strategy.warm-up-rounds=0", f"task.data-dir={tmp_path}")
    holds = {name: tmp_path / f"hold-{name}" for name in ("source-1", "source-2", "evaluation")}
    for hold in holds.values():
        hold.touch()
    with kits(tmp_path / "federation", settings=settings, task="e2e_tasks:Held") as federation:
        me = federation.kit("source-1")
        with terminal(federation, "source-1") as source:
            for site in ("target", "source-2", "source-3"):
                federation.start(site)
            training = source.shows(r"round 1 of 1: training\W+\d:\d\d:\d\d")
            status_of(capsys, me, "training")

            holds["source-1"].unlink()
            trained = source.shows("round 1 of 1: waiting for the key shares of the other sources", training)
            _, state = status_of(capsys, me, "waiting for the key shares of the other sources")
            assert state["waiting_for"] == ["target"]

            eventually(lambda: status(capsys, federation.kit("target"))[1]["waiting_for"] == ["source-2"])

            holds["source-2"].unlink()
            source.shows("round 1 of 1: waiting for the result", trained)
            status_of(capsys, me, "waiting for the result")

            holds["evaluation"].unlink()
            code, out = source.end()
            assert (code, "the run is over" in out) == (0, True)


def test_status_says_that_a_killed_process_is_gone(tmp_path: Path, capsys: Any) -> None:
    with kits(tmp_path) as federation, terminal(federation, "source-1") as source:
        source.shows("cannot reach ")
        eventually(lambda: "connecting to 127.0.0.1" in status(capsys, federation.kit("source-1"))[0])
        source.process.kill()
        source.process.wait()
        text, state = status(capsys, federation.kit("source-1"))
    assert state["running"] is False
    assert f"its process {source.process.pid} was killed or crashed; last step: connecting to 127.0.0.1" in text


def test_an_aggregator_waits_for_those_that_are_missing_and_names_no_other(tmp_path: Path, capsys: Any) -> None:
    with kits(tmp_path, 3, settings=("transport.join-deadline-s=600",)) as federation:
        me = federation.kit("target")

        def waits_for(target: Terminal, *sites: str) -> None:
            answered = f"{3 - len(sites)} of 3"
            target.shows(rf"gathering sources \({answered}; waiting for {', '.join(sites)}\)")
            text, state = status_of(capsys, me, "gathering sources", f"waiting for {', '.join(sites)}\\n")
            assert state["waiting_for"] == list(sites)
            assert f"target target: gathering sources ({answered}), round 1 of " in text

        with terminal(federation, "target") as target:
            waits_for(target, "source-1", "source-2", "source-3")
            federation.start("source-1")
            waits_for(target, "source-2", "source-3")
            federation.start("source-3")
            waits_for(target, "source-2")
        with terminal(federation, "target") as again:  # the other was killed; they come back
            again.shows(r"source-1 joined")
            again.shows(r"source-3 joined")
            waits_for(again, "source-2")


def test_an_aggregator_says_that_it_trains_itself_in_a_round_and_to_compare(tmp_path: Path, capsys: Any) -> None:
    """The task holds the target in its training, then in the evaluation behind it, then in its training again."""
    settings = (
        *("privacy.visibility=individual", "strategy.rule=fedavg", "strategy.rounds=1", "strategy.warm-up-rounds=0"),
        *("transport.join-deadline-s=600", f"task.data-dir={tmp_path}"),
    )
    training, evaluation = (tmp_path / f"hold-{name}" for name in ("target", "evaluation"))
    training.touch()
    evaluation.touch()
    with kits(tmp_path / "federation", 1, settings=settings, task="e2e_tasks:Held") as federation:
        me = federation.kit("target")
        with terminal(federation, "target") as target:
            federation.start("source-1")
            target.shows("training at the target")
            status_of(capsys, me, "training at the target")

            training.unlink()
            eventually((tmp_path / "held-evaluation-at-target").exists)
            training.touch()
            evaluation.unlink()
            target.shows("training alone, to compare")
            status_of(capsys, me, "training alone, to compare")

            training.unlink()
            assert target.end()[0] == 0


def test_both_sides_say_what_a_round_waits_for_and_the_target_names_who_is_missing(tmp_path: Path, capsys: Any) -> None:
    """One of three sources stops before each of its messages in turn, until the others have said so."""
    deadlines = ("join", "phase", "training", "reconnect")
    patient = [f"transport.{name}-deadline-s=300" for name in deadlines]
    settings = ("strategy.rounds=2", "strategy.warm-up-rounds=0", *patient)
    with (
        kits(tmp_path, settings=settings) as federation,
        Peers(federation) as peers,
        terminal(federation, "target") as target,
        terminal(federation, "source-1") as source,
    ):
        late = Held((Cosigned, Advertise, ShareBundle, MaskedInput, SurvivorSignature, Unmask))
        target.shows("listens on")
        peers.source("source-2")
        peers.source("source-3", late)
        at_target = at_source = 0

        def both_say(doing: str, source_says: str, number: int) -> None:
            nonlocal at_target, at_source
            at_target = target.shows(re.escape(f"{doing} (2 of 3; waiting for source-3)"), at_target)
            at_source = source.shows(f"round {number} of 2: {source_says}" if number else source_says, at_source)
            text, state = status_of(capsys, federation.kit("target"), doing, "waiting for source-3\\n")
            assert (state["waiting_for"], state["waiting_of"]) == (["source-3"], 3)
            assert f"target target: {doing} (2 of 3), round " in text
            eventually(lambda: source_says in status(capsys, federation.kit("source-1"))[0])

        both_say("gathering sources", "waiting for target to begin a round", 0)
        late.let_go()
        for doing, source_says in (
            ("collecting keys", "waiting for the keys of the other sources"),
            ("sources train and send shares of their keys", "waiting for the key shares of the other sources"),
            ("collecting masked updates", "sending its masked update, then waiting for those of the other sources"),
            ("collecting signatures of who is in the sum", "waiting for the signatures of the other sources"),
            ("removing the masks", "waiting for the result"),
        ):
            both_say(doing, source_says, 1)
            late.let_go()
        both_say("collecting signatures of the audit log", "waiting for target to begin the next round", 1)
        late.let_go(1 + 5)  # and through the second round
        # The end waits five seconds for cosignatures, so that only what was shown is sure to be there.
        target.shows(r"collecting signatures of the end of the run \(2 of 3; waiting for source-3\)", at_target)
        late.let_go()
        assert target.end()[0] == 0
        assert source.end()[0] == 0
