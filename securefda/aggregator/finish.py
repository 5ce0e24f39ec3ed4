"""What the target does when a run is over: it adapts the last model to its rows, and trains alone, to compare.

No source hears of either, and the adapted model is a file of the target's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from securefda.aggregator.comparison import with_comparison
from securefda.aggregator.site import TargetSite
from securefda.errors import SecureFdaError
from securefda.operations.progress import Reporter
from securefda.operations.records import RoundLine, Summary
from securefda.operations.run_folder import RunFolder
from securefda.training import Vector


def finish(
    site: TargetSite,
    folder: RunFolder,
    summary: Summary,
    *,
    records: Sequence[object],
    model: Vector,
    origin: Callable[[RoundLine | None], str],
    reporter: Reporter,
) -> Summary:
    """Do all that follows a finished run at the target; return its summary with the results, which is in the folder.

    Args:
        site: the target's.
        folder: of the run.
        summary: of the run so far.
        records: the run's round lines.
        model: what the target keeps of the last round, float32 (m,).
        origin: gives the metadata of a model file after a round.
        reporter: hears what the target does now.
    """
    folder.write_summary(summary)  # whole, should what follows be cut short
    lines = [line for line in cast(Sequence[RoundLine], records) if line.get("status") == "finished"]
    if site.adaptation is not None and lines:
        try:
            result, adapted = site.adaptation.adapt(summary.run_id, lines[-1]["round"], model, reporter)
            of_adapted = replace(site, statistics=site.adaptation.site.statistics)
            folder.write_adapted(of_adapted.model_file(adapted, origin(lines[-1])) if result["kept"] else None)
            summary = replace(summary, adapted=result)
        except SecureFdaError as error:
            reporter.note(f"the model is not adapted: {error}")
    summary = with_comparison(summary, site.alone, records, reporter)
    folder.write_summary(summary)
    return summary
