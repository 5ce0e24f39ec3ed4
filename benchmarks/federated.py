"""Whole federations, simulated, by the name under which scripts of this folder know them."""

from securefda.bench.federated import Job, RunResult, run, run_all, workers

__all__ = ["Job", "RunResult", "run", "run_all", "workers"]
