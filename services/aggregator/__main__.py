"""``python -m securefda.services.aggregator``: the command ``securefda aggregator``."""

import sys

from securefda.cli import main

sys.exit(main(["aggregator", *sys.argv[1:]]))
