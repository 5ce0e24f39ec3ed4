"""Adaptation of the last model at the target, after the run: see :mod:`securefda.training.target_adaptation`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from hashlib import sha256

import numpy as np
from pydantic import TypeAdapter

from securefda.aggregator.comparison import help_by_rows
from securefda.errors import ConfigError
from securefda.operations.progress import Reporter
from securefda.operations.records import Adapted
from securefda.parse import load_object, text
from securefda.protocol.encoding import vector_to_wire
from securefda.tasks import Samples
from securefda.training import PersonalMemory, Vector
from securefda.training.site_model import SiteModel
from securefda.training.target_adaptation import AdaptationSettings, adapt

_RESULT = TypeAdapter(Adapted)


def kept_result(state: bytes) -> tuple[str, Adapted, Vector]:
    """Read what the state folder keeps: a digest of what was asked, the result, and the adapted model, float32 (m,).

    Raises:
        ConfigError: it is damaged.
    """
    head, _, data = state.partition(b"\n")
    try:
        fields = load_object(head, "asked", "result")
        result: Adapted = _RESULT.validate_python(fields["result"], strict=True)
        return text(fields["asked"]), result, np.frombuffer(data, "<f4").astype(np.float32)
    except ValueError as error:
        hint = "put the folder back as it was, or name another --out folder"
        raise ConfigError("training.adapt", "the run's state holds a damaged model", hint=hint) from error


@dataclass(frozen=True, slots=True, repr=False)
class Adaptation:
    """Adapts the last model of a run to the target's rows. Nothing of it leaves the target.

    Attributes:
        site: the target's model and all rows that it adapts to.
        settings: how it adapts.
        test_data: rows for evaluation, if the labels of any are known.
        memory: keeps the result, so that a restarted process need not train again.
        may_release: whether the adapted model may be exported.
        labelled: those of the rows whose labels it uses, if any.
    """

    site: SiteModel
    settings: AdaptationSettings
    test_data: Samples | None
    memory: PersonalMemory
    may_release: bool = False
    labelled: Samples | None = None

    def adapt(self, run_id: str, rounds: int, model: Vector, reporter: Reporter) -> tuple[Adapted, Vector]:
        """Adapt the run's last model, float32 (m,), and return the result and the adapted model.

        Args:
            run_id: of the run.
            rounds: the number of its last finished round.
            model: that round's.
            reporter: hears of each epoch.

        Raises:
            TrainingError, DataError, ConfigError: training fails, or what the state keeps is damaged.
        """
        site, test, place = self.site, self.test_data, f"{run_id} adapted"
        how = json.dumps(asdict(self.settings)).encode()
        asked = sha256(how + vector_to_wire(model).tobytes()).hexdigest()
        if state := self.memory.personal(place, rounds + 1):
            known, result, vector = kept_result(state)
            if known == asked and vector.size == model.size:
                result["release"] = self.may_release
                return result, vector
        site.before_round()
        epochs = self.settings.epochs_over(site.samples)
        reporter.note(f"the run is over; the target adapts the model to its {site.samples} rows, in {epochs} epochs")

        def on_epoch(number: int) -> None:
            reporter.phase(f"adapting the model, epoch {number} of {epochs}")

        seed = site.round_seed(run_id, rounds, "adaptation")
        found = adapt(site, model, self.settings, seed, on_epoch, labelled=self.labelled)
        result = Adapted(
            kept=found.is_better,
            score=found.score,
            score_before=found.score_before,
            accuracy=None,
            accuracy_before=None,
            rows=site.samples,
            labelled=0 if self.labelled is None else len(self.labelled),
            epochs=epochs,
            digest=sha256(vector_to_wire(found.vector)).hexdigest(),
            release=self.may_release,
        )
        if test is not None:
            after, before = site.evaluate(found.vector, test), site.evaluate(model, test)
            result["metrics"], result["metrics_before"] = after.metrics, before.metrics
            result["accuracy"], result["accuracy_before"] = (one.metrics.get("accuracy") for one in (after, before))
            rows, rows_before = after.by_row(), before.by_row()
            if rows is not None and rows_before is not None:
                helped = help_by_rows(site.task, test, rows[None], rows_before[None])
                if helped is not None:
                    result["help"] = helped
        state = json.dumps({"asked": asked, "result": result}).encode() + b"\n" + vector_to_wire(found.vector).tobytes()
        self.memory.keep_personal(place, rounds, state)
        return result, found.vector
