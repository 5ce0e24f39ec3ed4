"""``securefda bench``: measurements with the processes, the transport and the session of a real run."""
