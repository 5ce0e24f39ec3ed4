"""Peers that must not work together, and missing peers: each ends with one line, its hint and its code."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from e2e_processes import Kits, Process, assert_one_clear_line, kits
from free_ports import free_port

from securefda import __version__
from securefda.audit.reading import events_in
from securefda.cli import main
from securefda.errors import ExitCode
from securefda.protocol.build import WIRE_VERSION
from securefda.site.endpoints import Address, SiteSpec
from securefda.site.enrolment import init_federation
from securefda.transport.wire import decode_signed

FROM_SHORT_TO_LONG_S = (1, 4, 16, 64)
IN_CLEAR = ("privacy.visibility=individual", "strategy.rounds=1", "strategy.warm-up-rounds=0")


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kits]:
    """A federation whose aggregator waits for sources, of which two never come."""
    settings = ("transport.join-deadline-s=600",)
    with kits(tmp_path_factory.mktemp("waiting"), settings=settings) as federation:
        federation.start("target").until("listens on")
        yield federation


def test_a_source_with_a_kit_of_another_federation_is_refused(waiting: Kits, tmp_path: Path) -> None:
    other = Kits(tmp_path, port=waiting.port)
    source = other.start("source-1")
    assert_one_clear_line(source, ExitCode.CERTIFICATE, "certificate", hint="kit")
    assert "joined" not in waiting.processes[0].text


def test_an_aggregator_takes_no_source_whose_certificate_another_federation_issued(
    waiting: Kits, tmp_path: Path
) -> None:
    """The source has the right CA of the aggregator, but its own certificate is from elsewhere."""
    other = Kits(tmp_path, port=waiting.port)
    startup, foreign = waiting.kit("source-1") / "startup", other.kit("source-1") / "startup"
    for name in ("ca.pem", "roster.json", "endpoints.toml", "kit.json"):
        (foreign / name).chmod(0o644)
        (foreign / name).write_bytes((startup / name).read_bytes())
    source = other.start("source-1")
    code = ExitCode(source.end())
    assert code in (ExitCode.CERTIFICATE, ExitCode.CONFIG, ExitCode.PEER), source.text
    assert_one_clear_line(source, code)


def test_a_source_with_other_task_options_is_turned_away(waiting: Kits) -> None:
    waiting.allow_any_task("source-2")
    source = waiting.start("source-2", "task.factory=e2e_tasks:Wider")
    assert_one_clear_line(source, ExitCode.CONFIG, "task.factory", "another model", hint="same task")
    waiting.processes[0].until("source-2: its model has other layers")


def test_a_source_of_another_wire_version_ends_at_its_join_and_the_run_that_needs_it_too(tmp_path: Path) -> None:
    """All deadlines are longer than the test: the refusal itself ends both, and leaves no word against either."""
    settings = ("transport.join-deadline-s=600", "transport.phase-deadline-s=600")
    with kits(tmp_path, settings=settings) as federation:
        target = federation.start("target").until("listens on")
        source = federation.start("source-1", module="other_wire")
        theirs, ours = (f"securefda {__version__} (wire version {WIRE_VERSION + more})" for more in (1, 0))
        hint = "this accuses no site"
        said = f"this site runs {theirs}, the aggregator {ours}"
        assert_one_clear_line(source, ExitCode.VERSION, said, hint=hint)
        said = f"source-1 runs {theirs}, the aggregator {ours}"
        assert_one_clear_line(target, ExitCode.VERSION, said, hint=hint)
        assert "alarm" not in target.text + source.text
        assert federation.summary()["error"]["code"] == "OtherBuild"
        for site in ("target", "source-1"):
            (run,) = (federation.kit(site) / "local" / "audit").glob("*")
            assert [*events_in(run, "alarm"), *events_in(run, "aborted")] == []


def test_the_targets_kit_starts_no_source_and_a_sources_kit_no_aggregator(waiting: Kits, tmp_path: Path) -> None:
    settings = (waiting.kit("source-1") / "local" / "settings.toml").read_text()
    kit = waiting.kit("target")
    file = tmp_path / "source.toml"
    file.write_text(settings.replace('kit = ".."', f"kit = {json.dumps(str(kit))}"))
    process = waiting.start_command("source", file)
    assert_one_clear_line(process, ExitCode.CONFIG, "target")
    file.write_text((kit / "local" / "settings.toml").read_text().replace('"..', f'"{waiting.kit("source-1")}'))
    process = waiting.start_command("aggregator", file)
    assert_one_clear_line(process, ExitCode.CONFIG, "source")


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with kits(tmp_path, port=taken.getsockname()[1]) as federation:
            aggregator = federation.start("target")
            assert_one_clear_line(aggregator, ExitCode.CONFIG, "transport.listen", str(federation.port), hint="port")


def test_an_aggregator_that_is_not_there_is_given_up_on(tmp_path: Path) -> None:
    with kits(tmp_path) as federation:
        source = federation.start("source-1", "transport.reconnect-deadline-s=0.5")
        assert_one_clear_line(source, ExitCode.CONNECTION, str(federation.port), "gave up after 0.5 s", hint="runs")


def test_an_expired_certificate_is_named_before_anything_starts(tmp_path: Path) -> None:
    with kits(tmp_path / "now") as federation:
        names = ["target", *federation.names]
        init_federation(
            tmp_path / "then",
            "study",
            [SiteSpec(n, "target" if n == "target" else "source", n, ("127.0.0.1",)) for n in names],
            aggregator=Address("127.0.0.1", free_port()),
            policy_text=(federation.kit("source-1") / "local" / "policy.toml").read_text(),
            settings_text=(federation.kit("source-1") / "local" / "settings.toml").read_text(),
            now=datetime.now(UTC) - timedelta(days=30),
            validity=timedelta(days=10),
        )
        source = federation.start("source-1", kit=tmp_path / "then" / "source-1")
        assert_one_clear_line(source, ExitCode.CERTIFICATE, "source-1", "expired")


def test_too_few_sources_end_the_run_with_who_is_missing_and_the_hints_lead_to_its_end(tmp_path: Path) -> None:
    """Where the two were not in time, the run is tried again with a longer deadline."""
    for deadline_s in FROM_SHORT_TO_LONG_S:
        settings = ("strategy.rounds=1", "strategy.warm-up-rounds=0")
        with kits(tmp_path / str(deadline_s), settings=settings) as federation:
            aggregator = federation.start("target", f"transport.join-deadline-s={deadline_s}").until("listens on")
            sources = [federation.start(site) for site in federation.names[:2]]
            aggregator.end()
            if "2 of at least 3" in aggregator.text:
                assert_they_say_who_is_missing(federation, aggregator, sources)
                followed = federation.start_all()
                assert [process.end() for process in followed.values()] == [ExitCode.OK] * 4, followed["target"].text
                assert federation.summary()["status"] == "finished"
                return
    raise AssertionError(f"two sources do not join in {FROM_SHORT_TO_LONG_S[-1]} s:\n{aggregator.text}")


def assert_they_say_who_is_missing(federation: Kits, aggregator: Process, sources: list[Process]) -> None:
    hint = "start the missing sources, and restart every site that has ended"
    assert_one_clear_line(aggregator, ExitCode.QUORUM, "2 of at least 3", "missing: source-3", hint=hint)
    why = "the aggregator ended the run: gathering sources: 2 of at least 3 sources; missing: source-3"
    for source in sources:
        assert_one_clear_line(source, ExitCode.FAILED, why, hint="start this site again with the same command")
    assert federation.summary()["status"] == "failed"
    assert federation.summary()["error"]["code"] == "QuorumLost"


def allow_only(federation: Kits, site: str, what: str, *, signed: bool, key: str = "allowed-rules") -> None:
    """The owner of a site leaves one rule, or one of what another key lists, in its policy."""
    policy = federation.kit(site) / "local" / "policy.toml"
    text, count = re.subn(rf"(?m)^{key} = \[[^]]*\]", f'{key} = ["{what}"]', policy.read_text())
    assert count == 1
    policy.write_text(text)
    assert not signed or main(["policy", "sign", str(federation.kit(site))]) == 0


def test_a_policy_that_permits_no_round_ends_the_source_with_its_key_and_keeps_the_header(tmp_path: Path) -> None:
    with kits(tmp_path, 2, settings=IN_CLEAR) as federation:
        allow_only(federation, "source-2", "0" * 64, signed=True, key="architectures")
        processes = federation.start_all()
        assert_one_clear_line(processes["source-2"], ExitCode.POLICY, "architectures", hint="owner decides")
        assert processes["target"].end() == 0
        assert federation.rounds()[0]["refused"] == {"source-2": "architectures"}
        assert federation.rounds()[0]["survivors"] == ["source-1"]
        run = federation.kit("source-2") / "local" / "run"
        (line,) = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
        assert line["refused"]["key"] == "architectures"
        header = decode_signed((run / "refused" / "architectures.header").read_bytes())
        assert header.body.rule.rule == "fedda_auto"  # type: ignore[union-attr]


def test_a_policy_that_forbids_the_rule_ends_the_run_at_the_join_and_names_that_site_alone(tmp_path: Path) -> None:
    schedule = ("strategy.rounds=6", "strategy.warm-up-rounds=5")
    with kits(tmp_path, 3, settings=schedule) as federation:
        allow_only(federation, "source-2", "source_only", signed=True)
        processes = {site: federation.start(site) for site in ("target", "source-1", "source-3")}
        processes["target"].until("joined (2 of 3)")
        refuser, said = federation.start("source-2"), "the policy of source-2 refuses allowed-rules"
        assert_one_clear_line(processes["target"], ExitCode.POLICY, said, hint="strategy.rule")
        assert_one_clear_line(refuser, ExitCode.POLICY, "allowed-rules", "fedda_auto", hint="strategy.rule")
        for site in ("source-1", "source-3"):
            assert processes[site].end() == ExitCode.FAILED
            assert "source-2" not in processes[site].text
        assert not (federation.run_folder / "metrics.jsonl").exists()


def test_a_policy_that_its_site_did_not_sign_starts_no_process(tmp_path: Path) -> None:
    with kits(tmp_path, 2, settings=IN_CLEAR) as federation:
        allow_only(federation, "source-2", "fedda", signed=False)
        source = federation.start("source-2")
        assert_one_clear_line(source, ExitCode.CONFIG, "policy", hint="securefda policy sign")
