"""The kit that the run report, the audit page and the dashboards are made from: parts, charts, layout and style.

A page is plain data (`securefda.pages.parts`). `securefda.pages.html` turns it into HTML, escapes every text in it, and
closes it in: a page loads nothing, and only a dashboard runs a script, which is its own.
"""
