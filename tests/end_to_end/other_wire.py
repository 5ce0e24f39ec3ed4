"""A site's process that speaks the next wire version: ``python -m other_wire`` in the place of ``securefda.cli``."""

from __future__ import annotations

import sys

from securefda.cli import main
from securefda.protocol import build

build.WIRE_VERSION += 1

if __name__ == "__main__":
    sys.exit(main())
