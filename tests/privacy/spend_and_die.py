"""A process of its own that reserves rounds on a ledger until it is killed, or until nothing is left.

Usage: spend_and_die.py LEDGER RUN LIMIT. Prints a line when a round has been reserved, another when it was committed.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

from ledger_site import DATA, EVENT, NOON

from securefda.errors import BudgetExhausted
from securefda.privacy.dp_events import Budget
from securefda.privacy.ledger import Ledger


def main(path: Path, run: str, limit: float) -> int:
    ledger = Ledger(path, DATA)
    os.write(1, b"ready\n")
    sys.stdin.readline()
    for number in count(1):
        try:
            reservation = ledger.reserve(replace(EVENT, run_id=run, round=number), Budget(limit, 1e-5), now=NOON)
        except BudgetExhausted as error:
            return int(error.exit_code)
        os.write(1, f"reserved {number}\n".encode())
        ledger.commit(reservation, steps=EVENT.steps, now=NOON)
        os.write(1, f"committed {number}\n".encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
