"""Prometheus metrics and answers to health probes, on a port that a site turns on, by default of 127.0.0.1.

The metrics count what the site's own ``metrics.jsonl`` and console show and disclose no more: no beta, row count or
value of a single message, and the task's metrics, loss and the sources' share only if the target asks for them. Anyone
who reaches the port can read them; they are sent nowhere. Counters start at zero with each process.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from threading import Thread
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from securefda.errors import ConfigError
from securefda.operations.notes import UNNAMED, Note
from securefda.operations.records import RoundLine, SiteLine, metrics_in

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

ALIVE, READY = "/healthz", "/readyz"
MOST_CHECKS = 100
_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class RunMetrics:
    """Counters and gauges of one process, in a registry of their own.

    ``refusal`` counts a round that a source refused, ``alarm`` a check that a peer failed, and ``abort`` a session that
    a peer ended: each takes the policy key or the check.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._rounds = Counter("securefda_rounds", "Rounds that ended, by how.", ["status"], registry=self.registry)
        self._current = Gauge("securefda_current_round", "Number of the last round that began.", registry=self.registry)
        self.refusal = self._by_check("refusals", "Rounds that a source refused, by policy key or check.")
        self.alarm = self._by_check("alarms", "Checks that a peer failed.")
        self.abort = self._by_check("aborts", "Sessions that a peer ended, by the check that failed there.")
        self._epsilon: Gauge | None = None

    def certificate(self, ends: datetime) -> None:
        """Record when the site's certificate ends; called once."""
        text = "Unix time at which the site's certificate ends."
        Gauge("securefda_certificate_ends_seconds", text, registry=self.registry).set(ends.timestamp())

    def noted(self, note: Note) -> None:
        """Count the alarm or abort that a note reports, if any."""
        if note.alarm:
            self.alarm(note.alarm)
        if note.abort:
            self.abort(note.abort)

    def round_started(self, number: int) -> None:
        """Record that a round began."""
        self._current.set(number)

    def round_ended(self, status: str, epsilon: float | None) -> None:
        """Record that a round ended; ``epsilon`` is what the site's rows have spent with it, None without noise."""
        self._rounds.labels(status).inc()
        if epsilon is None:
            return
        if self._epsilon is None:
            text = "Epsilon that this site's rows have cost over all rounds and runs of their ledger."
            self._epsilon = Gauge("securefda_epsilon_spent", text, registry=self.registry)
        self._epsilon.set(epsilon)

    def _by_check(self, name: str, text: str) -> Callable[[str], None]:
        """Return a function that counts by check. Peers choose some names of checks, so the number of series is
        bounded.
        """
        counter, seen = Counter(f"securefda_{name}", text, ["check"], registry=self.registry), set[str]()

        def count(check: str) -> None:
            if check in seen or len(seen) < MOST_CHECKS:
                seen.add(check)
                counter.labels(check).inc()
            else:
                counter.labels(UNNAMED).inc()

        return count


class TargetMetrics(RunMetrics):
    """The metrics of the target, whose rounds also have phases, attempts and bytes by source."""

    def __init__(self, *, results: bool = False) -> None:
        """Register the metrics; ``results`` adds the task's metrics, loss and the sources' share."""
        super().__init__()
        own = self.registry
        texts = {
            "accuracy": "Accuracy, 0 to 1, on the target's test rows",
            "loss": "Mean loss on the target's test rows",
            "confident_rows": "Target's rows whose pseudo-label counted",
            "source_share": "Sources' share of the step of the model",
        }
        self._results = {
            name: Gauge(f"securefda_{name}", f"{text}, after the last finished round.", registry=own)
            for name, text in (texts.items() if results else ())
        }
        text = "A metric of the task on the target's test rows, after the last finished round."
        self._task_metrics = Gauge("securefda_task_metric", text, ["metric"], registry=own) if results else None
        self._planned = Gauge("securefda_planned_rounds", "Rounds that the run is to have.", registry=own)
        self._attempts = Counter("securefda_attempts", "Attempts at rounds that ended.", registry=own)
        self._retries = Counter("securefda_retries", "Attempts after the first one of a round.", registry=own)
        text = "Seconds that a round spent in a phase."
        self._phases = Histogram("securefda_round_phase_seconds", text, ["phase"], registry=own, buckets=_SECONDS)
        self._up = Counter("securefda_received_bytes", "Bytes from a source, by round.", ["peer"], registry=own)
        self._down = Counter("securefda_sent_bytes", "Bytes to a source, by round.", ["peer"], registry=own)
        self._connected = Gauge("securefda_connected_sources", "Sources that are connected now.", registry=own)

    def watch_connections(self, connected: Callable[[], Collection[int]]) -> None:
        """Call ``connected`` whenever the metrics are read, on a thread of the metrics' server."""
        self._connected.set_function(lambda: len(connected()))

    def planned(self, rounds: int) -> None:
        """Record how many rounds the run is to have."""
        self._planned.set(rounds)

    def round_finished(self, line: RoundLine) -> None:
        """Record that a round ended, finished or lost."""
        self.round_ended(line.get("status", "lost"), line.get("target_epsilon"))
        figures = {"accuracy": line.get("accuracy"), "loss": line.get("loss")}
        figures |= {"confident_rows": line.get("confident_rows"), "source_share": line.get("source_share")}
        for name, value in figures.items():
            if name in self._results and value is not None and line.get("status") == "finished":
                self._results[name].set(value)
        if self._task_metrics is not None:
            for name, value in metrics_in(line).items():
                self._task_metrics.labels(name).set(value)
        attempts = line.get("attempts", 0)
        self._attempts.inc(attempts)
        self._retries.inc(max(0, attempts - 1))
        for phase, seconds in line.get("seconds", {}).items():
            self._phases.labels(phase).observe(seconds)
        _add(self._up, line.get("bytes_up", {}))
        _add(self._down, line.get("bytes_down", {}))
        for key in line.get("refused", {}).values():
            self.refusal(key)


class SourceMetrics(RunMetrics):
    """The metrics of a source."""

    def round_finished(self, record: SiteLine) -> None:
        """Record that the source accepted a result."""
        self.round_ended("finished", record.get("epsilon"))


def _add(counter: Counter, counts: Mapping[str, int]) -> None:
    for peer, count in counts.items():
        counter.labels(peer).inc(count)


class _OnIpv6(ThreadingWSGIServer):
    """A server on an IPv6 address."""

    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    """A handler that logs no request, since a probe comes every few seconds."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Write nothing."""


def _answering(registry: CollectorRegistry, is_ready: Callable[[], bool]) -> WSGIApplication:
    metrics: WSGIApplication = make_wsgi_app(registry)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path not in (ALIVE, READY) or environ["REQUEST_METHOD"] != "GET":
            return metrics(environ, start_response)
        well = path == ALIVE or is_ready()
        start_response("200 OK" if well else "503 Service Unavailable", [("Content-Type", "text/plain")])
        return [b"ok\n" if well else b"not ready\n"]

    return answer


@contextmanager
def served(registry: CollectorRegistry, host: str, port: int, is_ready: Callable[[], bool]) -> Iterator[None]:
    """Answer every GET on ``port`` of the IP address ``host``, on separate threads, until the block ends.

    ``/healthz`` says that the process lives. ``/readyz`` asks ``is_ready`` on such a thread: 200 where it is so, else
    503. Every other path gets the metrics.

    Raises:
        ConfigError: the port cannot be opened.
    """
    try:
        kind = _OnIpv6 if ":" in host else ThreadingWSGIServer
        server = make_server(host, port, _answering(registry, is_ready), kind, _QuietHandler)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            hint = "name one of its addresses, or 0.0.0.0 for all"
            raise ConfigError("metrics.host", f"{host} is no address of this machine", hint=hint) from error
        why = f"{port} on {host} cannot be opened: {error.strerror}"
        raise ConfigError("metrics.port", why, hint="set another port, or 0 for no metrics") from error
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
