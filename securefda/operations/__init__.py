"""Operational logs and metrics for those who look after a site's process, beside the audit log.

Neither is evidence of anything, and no run depends on them: a log that cannot be written ends no run. Both are off
unless a site turns them on, and the packages that they need are imported only then.
"""

from securefda.operations.watch import SourceWatch, TargetWatch, watch_source, watch_target

__all__ = ["SourceWatch", "TargetWatch", "watch_source", "watch_target"]
