"""Differential privacy of a site: noise that no seed predicts, accountants, planning, a ledger of what is spent."""
