"""Differential privacy of a site: noise that no seed predicts, accountants, planning and the ledger of what is spent."""
