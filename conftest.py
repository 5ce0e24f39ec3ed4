"""Every test run is recorded against the threat register."""

from __future__ import annotations

pytest_plugins = ["threat_model.recorder"]
