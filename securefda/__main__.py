"""``python -m securefda``."""

import sys

from securefda.cli import main

sys.exit(main())
