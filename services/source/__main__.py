"""``python -m securefda.services.source``: the command ``securefda source``."""

import sys

from securefda.cli import main

sys.exit(main(["source", *sys.argv[1:]]))
