"""Attackers: one class each, one threat each. ``README.md`` says how to add one."""
