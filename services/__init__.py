"""One package per process of a federation."""
