"""A source's process: it dials the aggregator and listens nowhere."""

from .service import main

__all__ = ["main"]
