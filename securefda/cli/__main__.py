"""``python -m securefda.cli``."""

from securefda.cli import main

main()
