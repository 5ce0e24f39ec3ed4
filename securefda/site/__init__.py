"""Enrolment: the federation's CA, its sites' identities and startup kits, and the check before a run."""
