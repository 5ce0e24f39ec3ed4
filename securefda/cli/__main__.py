"""``python -m securefda.cli``."""

import sys

from securefda.cli import main

sys.exit(main())
