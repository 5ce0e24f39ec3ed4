"""Federated domain adaptation under secure aggregation. Importing this package pulls in nothing heavy."""

__version__ = "0.1.0"
