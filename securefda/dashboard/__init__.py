"""A page in the browser of this machine that shows one site's run while it goes on: ``securefda dashboard DIR``.

It reads what the site's process writes, and nothing of its secrets: no private key, no state file, no ledger, no
model, no row. It writes nothing.
"""
