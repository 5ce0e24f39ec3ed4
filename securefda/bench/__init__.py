"""What ``securefda bench`` measures, with the processes, the transport and the session of a real run."""
