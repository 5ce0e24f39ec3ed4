"""The end of a complete run at a source: check the final model, if the run leaves it to its sources."""

from __future__ import annotations

from hashlib import sha256

import numpy as np

from securefda.protocol.encoding import Vector, vector_from_wire
from securefda.protocol.envelope_checks import require
from securefda.protocol.header_checks import SessionLimits
from securefda.protocol.messages import Goodbye, Parcel, SourcesKeep
from securefda.source.model_bound import FinalClaim, Known, Missed, Origin, origin_of

CHECK = "FINAL_MODEL"
HINT = "ask the target's site for the model file of the run"


def final_model(
    goodbye: Goodbye,
    parcel: Parcel,
    known: Known,
    missed: Missed | None,
    *,
    own_index: int,
    limits: SessionLimits,
    n_params: int,
) -> tuple[Vector, Origin] | None:
    """The model that came with the goodbye of a complete run, float32 ``(n_params,)``, and its origin.

    None if the headers said that the sources keep no model, or if this site is in no result of the run.

    Args:
        goodbye: signed by the aggregator.
        parcel: the goodbye's parcel, with the model.
        known: this source's memory of the run.
        missed: the missed result that the aggregator showed before the goodbye, if any.
        own_index: roster index of this source.
        limits: this source's requirements for every session.
        n_params: number of parameters of the model.

    Raises:
        FaultyAggregatorError: FINAL_MODEL, the model was promised and did not come, came without a promise, or is not
            that of the last result that this source can verify.
    """
    promised = known.accepted is not None and known.accepted.sources_keep == SourcesKeep.FINAL
    if not goodbye.model_digest:
        require(not promised or known.taken is None, CHECK, "the headers promised the final model, and none came")
        return None
    require(promised, CHECK, "no header promised this site a model")
    claim = FinalClaim(goodbye.result_digest, goodbye.model_digest)
    origin = origin_of(claim, known, missed, own_index=own_index, limits=limits, check=CHECK)
    data = parcel.vectors[0] if parcel.vectors else b""
    fits = len(data) == 4 * n_params and sha256(data).digest() == goodbye.model_digest
    require(fits, CHECK, "not the model that the goodbye names")
    model = vector_from_wire(data)
    require(bool(np.all(np.isfinite(model))), CHECK, "it holds NaN or infinity")
    return model, origin
