"""Taking away what makes the logs of sites hold against their own site: witnesses, their memory, and their number."""

from __future__ import annotations

from dataclasses import replace

from securefda.rounds import store
from securefda.rounds.witness import Witness
from securefda.secagg.messages import Header
from threat_model.switches import all_of, method_replaced

WITNESSED_HEADER = method_replaced("the cosigned log in the header", Witness, "check_header", lambda *_: None)
"""A source does not look at the checkpoint in a header."""


def _unanimous(check: object) -> object:
    def check_header(self: Witness, header: Header) -> None:
        check(self, replace(header, threshold=0))  # type: ignore[operator]

    return check_header


NUMBER_OF_WITNESSES = method_replaced(
    "as many witnesses as the threshold", Witness, "check_header", _unanimous(Witness.check_header)
)
"""A source takes the checkpoint that it cosigned itself, whoever else has."""

WITNESS_MEMORY = all_of(
    "what a witness remembers",
    method_replaced("reading it", store._Store, "cosigned", lambda *_: None),
)
