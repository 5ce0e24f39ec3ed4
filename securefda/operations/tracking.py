"""Tracking of a target's metrics with TensorBoard and MLflow while a run goes on.

Both are optional packages; no run depends on them. They work on a separate thread, so that no server delays a round,
and a failure there costs one note and nothing else.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from securefda.errors import ConfigError
from securefda.operations.records import RoundLine, round_seconds
from securefda.site.config import MetricsSection

_CLOSING_S = 10.0
"""How long the end of a process waits for figures that are still on their way."""

Figures = Mapping[str, float]


class Tracker(Protocol):
    """A destination for metrics of rounds. Every method may raise whatever its package raises."""

    name: str

    def write(self, run_id: str, number: int, figures: Figures) -> None:
        """Write a round's figures."""

    def close(self) -> None:
        """Write what is left."""


def figures_of(line: RoundLine) -> dict[str, float]:
    """Return the metrics of a round by name, as far as it has those of the console and ``metrics.jsonl``."""
    named: dict[str, float | None] = {
        "target/accuracy": line.get("accuracy"),
        "target/loss": line.get("loss"),
        "target/confident_rows": line.get("confident_rows"),
        "target/epsilon": line.get("target_epsilon"),
        "rule/mean_beta": line.get("mean_beta"),
        "rule/step_share": line.get("step_share"),
        "rule/target_cosine": line.get("target_cosine"),
        "rule/source_share": line.get("source_share"),
        "round/seconds": round_seconds(line),
        "round/attempts": line.get("attempts"),
        "round/sources": len(line.get("survivors", [])),
        "round/dropped": len(line.get("dropped", [])),
        "round/lost": float(line.get("status") == "lost"),
        "bytes/up": sum(line.get("bytes_up", {}).values()),
        "bytes/down": sum(line.get("bytes_down", {}).values()),
        **{f"folds/{name}": value for name, value in line.get("fold_losses", {}).items()},
        **{f"metrics/{name}": value for name, value in line.get("metrics", {}).items()},
        **{f"validation/{name}": value for name, value in line.get("validation_metrics", {}).items()},
        **{f"estimated_error/{rule}": value for rule, value in line.get("delta_errors", {}).items()},
    }
    return {name: float(value) for name, value in named.items() if value is not None}


class TensorBoard:
    """Event files in a folder, which ``tensorboard --logdir`` shows; a sub-folder for each run."""

    name = "TensorBoard"

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("metrics.tensorboard", "tensorboard") from error
        self._open: Callable[..., Any] = SummaryWriter
        self._folder = folder
        self._writer: Any = None

    def write(self, run_id: str, number: int, figures: Figures) -> None:
        """Write a round's figures. The first round that a process writes replaces it and all later ones."""
        if self._writer is None:
            self._writer = self._open(str(self._folder / run_id[:16]), purge_step=number)
        for name, value in figures.items():
            self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


class Mlflow:
    """A run in the experiment ``securefda/FEDERATION`` of an MLflow tracking server, or of a local store.

    A process that resumes a run goes on with its MLflow run, which it finds by a tag.
    """

    name = "MLflow"

    def __init__(self, uri: str, federation: str, site: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # MLflow else tells its makers that it is used
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise _missing("metrics.mlflow", "mlflow") from error
        self._connect: Callable[..., Any] = MlflowClient
        self._uri, self._federation, self._site = uri, federation, site
        self._client: Any = None
        self._run = ""

    def write(self, run_id: str, number: int, figures: Figures) -> None:
        """Write a round's figures."""
        if self._client is None:
            client = self._connect(tracking_uri=self._uri)
            self._run = self._find_or_begin(client, run_id)
            self._client = client
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run, [Metric(name, value, now, number) for name, value in figures.items()])

    def close(self) -> None:
        """Mark the run as ended."""
        if self._client is not None:
            self._client.set_terminated(self._run)

    def _find_or_begin(self, client: Any, run_id: str) -> str:
        name = f"securefda/{self._federation}"
        experiment = client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment else client.create_experiment(name)
        known = client.search_runs([number], f"tags.securefda_run = '{run_id}'")
        if known:
            return str(known[0].info.run_id)
        tags = {"securefda_run": run_id, "securefda_site": self._site}
        return str(client.create_run(number, run_name=run_id[:16], tags=tags).info.run_id)


class Tracked:
    """Passes the metrics of rounds to trackers on a separate thread."""

    def __init__(self, trackers: list[Tracker], run_id: Callable[[], str], note: Callable[[str], None]) -> None:
        self._trackers, self._run_id, self._note = trackers, run_id, note
        self._rounds: SimpleQueue[tuple[str, int, Figures] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="securefda-tracking", daemon=True)
        if trackers:
            self._thread.start()

    def round_finished(self, line: RoundLine) -> None:
        """Queue the metrics of a round that is over, finished or lost."""
        if self._trackers:
            self._rounds.put((self._run_id(), line["round"], figures_of(line)))

    def close(self) -> None:
        """Wait a while for what is under way, then drop the rest."""
        if self._trackers:
            self._rounds.put(None)
            self._thread.join(_CLOSING_S)

    def _work(self) -> None:
        working = list(self._trackers)
        while (one := self._rounds.get()) is not None:
            for tracker in list(working):
                if not self._does(tracker, lambda of: of.write(*one)):
                    working.remove(tracker)
        for tracker in working:
            self._does(tracker, lambda of: of.close())

    def _does(self, tracker: Tracker, act: Callable[[Tracker], None]) -> bool:
        try:
            act(tracker)
        except Exception as error:  # noqa: BLE001 - of packages that raise what they like, about figures only
            words = " ".join(str(error).split())[:200]
            self._note(f"{tracker.name} gets no more figures: {type(error).__name__}: {words}; the run goes on")
            return False
        return True


@contextmanager
def tracked(
    settings: MetricsSection,
    *,
    out: Path,
    federation: str,
    site: str,
    run_id: Callable[[], str],
    note: Callable[[str], None],
) -> Iterator[Tracked]:
    """Send metrics to the trackers that the settings name, until the block ends.

    Args:
        settings: which trackers, if any.
        out: the site's run folder, for relative names.
        federation, site: names.
        run_id: the run's id, asked when a round is over.
        note: shows one line to the operator.

    Raises:
        ConfigError: a package is not installed.
    """
    trackers: list[Tracker] = []
    if settings.tensorboard:
        trackers.append(TensorBoard(out / Path(settings.tensorboard).expanduser()))
    if settings.mlflow:
        trackers.append(Mlflow(settings.mlflow, federation, site))
    run = Tracked(trackers, run_id, note)
    try:
        yield run
    finally:
        run.close()


def _missing(key: str, extra: str) -> ConfigError:
    return ConfigError(
        key, f"{extra} is not installed here", hint=f"pip install 'securefda[{extra}]', or empty the key"
    )
