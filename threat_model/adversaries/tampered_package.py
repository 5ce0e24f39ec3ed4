"""T47: a package index, or whoever is between it and a site, that serves other code as a locked package.

Powers: every byte that pip downloads. It does not have the site's copy of the repository, and so not its locks.
Goal: its own code in the site's environment, where it has the site's keys and rows.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

NAME, VERSION = "tiny", "1.0"


class TamperedPackage:
    """A folder of wheels in the place of an index. It holds one package, as its authors made it or tampered with."""

    threat = "T47"

    def __init__(self, folder: Path) -> None:
        """Serve the package as its authors made it, from ``folder``, which has to be there and empty."""
        self.wheel = folder / f"{NAME}-{VERSION}-py3-none-any.whl"
        self._serve(b"whose = 'authors'\n")
        self.locked = sha256(self.wheel.read_bytes()).hexdigest()

    def tamper(self) -> None:
        """From now on serve other code. All else, its name, version and the wheel's own list of hashes, is in order."""
        self._serve(b"whose = 'attacker'\n")

    def attack(self, into: Path, lock: str, *options: str) -> tuple[str, str]:
        """Have pip install from here, with the text of a lock.

        Returns:
            the code that is in the site's environment, empty where none is, and what pip printed.
        """
        requirements = self.wheel.parent / "requirements.lock"
        requirements.write_text(lock)
        pip = f"{sys.executable} -m pip --isolated install --no-index --no-compile".split()
        where = ["--find-links", str(self.wheel.parent), "--target", str(into), "--requirement", str(requirements)]
        ended = subprocess.run([*pip, *options, *where], check=False, capture_output=True, text=True)  # noqa: S603
        module = into / f"{NAME}.py"
        return module.read_text() if module.exists() else "", ended.stdout + ended.stderr

    def _serve(self, code: bytes) -> None:
        about = f"{NAME}-{VERSION}.dist-info"
        files = {
            f"{NAME}.py": code,
            f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n".encode(),
            f"{about}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
        files[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
        with zipfile.ZipFile(self.wheel, "w") as wheel:
            for name, data in files.items():
                wheel.writestr(zipfile.ZipInfo(name), data)


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode()
