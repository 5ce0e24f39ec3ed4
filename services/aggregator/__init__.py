"""The target's process: the only listener of a federation."""

from .service import main

__all__ = ["main"]
