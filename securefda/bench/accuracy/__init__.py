"""``securefda bench accuracy``: suites of simulated federations, their tables, plots and requirements."""
