"""What you import from Python: federations, runs and tasks. The package ``securefda`` exports all of it, lazily.

It stands above the command line, whose functions it calls: a run from Python is the run that the command makes.
"""
