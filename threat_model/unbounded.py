"""An aggregator whose port holds any number of connections: ``python -m threat_model.unbounded ARGUMENTS``.

For the control of T45, in the place of ``python -m securefda.cli ARGUMENTS``.
"""

from __future__ import annotations

import sys

from securefda import disk
from securefda.cli import main
from securefda.transport import limits

if __name__ == "__main__":
    limits.ConnectionLimits.of = lambda *_: limits.ConnectionLimits(1 << 20, 1 << 20)  # type: ignore[method-assign]
    limits.HANDSHAKE_S = 3600.0
    disk._PATIENCE_S = 0.0
    sys.exit(main())
