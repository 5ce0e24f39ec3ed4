"""The commands, a module per group."""
