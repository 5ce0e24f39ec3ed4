"""A page in this machine's browser that shows one site's run while it goes on: ``securefda dashboard DIR``.

It reads what the site's process writes, but none of its secrets: no private key, state file, ledger, model or row. It
writes nothing.
"""
