"""A page as PDF, by a browser of this machine: none is part of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from securefda.errors import ConfigError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_LONGEST_S = 120
_FLAGS = (
    *("--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--no-pdf-header-footer"),
)


def browser_for(key: str) -> str:
    """Return the path of a browser that can print.

    Raises:
        ConfigError: ``key``, there is none.
    """
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        hint = "install one, or name a file that ends in .html and print it from a browser"
        raise ConfigError(key, "a PDF needs Chromium or Chrome, and none is on PATH", hint=hint)
    return found


def printed(page: str, browser: str, key: str) -> bytes:
    """Return a page of HTML, without scripts, as PDF.

    Raises:
        ConfigError: ``key``, the browser failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        html, pdf = Path(folder, "page.html"), Path(folder, "page.pdf")
        html.write_text(page, encoding="utf-8")
        as_root = ("--no-sandbox",) if os.geteuid() == 0 else ()  # its sandbox refuses to run as root
        command = [browser, *_FLAGS, *as_root, f"--user-data-dir={folder}/profile", f"--print-to-pdf={pdf}"]
        try:
            command.append(html.as_uri())
            subprocess.run(command, check=True, capture_output=True, timeout=_LONGEST_S)  # noqa: S603 - our own page
            return pdf.read_bytes()
        except (OSError, subprocess.SubprocessError) as error:
            hint = "name a file that ends in .html and print it from a browser"
            raise ConfigError(key, f"{browser} did not print the page: {type(error).__name__}", hint=hint) from error
