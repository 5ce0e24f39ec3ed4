"""Generate ``securefda/v1`` from the ``.proto`` files beside this script; ``--check`` only compares.

Needs the dev extra (grpcio-tools at its pinned version and mypy-protobuf), so that everyone gets the same bytes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

PROTO_ROOT = Path(__file__).resolve().parent
REPOSITORY = PROTO_ROOT.parent
PACKAGE = Path("securefda/v1")
INIT = '"""Protobuf code generated from `protos/securefda/v1` by `protos/generate.py`. Do not edit."""\n'


def generate(out: Path) -> dict[str, bytes]:
    """Run protoc for every ``.proto`` into ``out``; return file name -> content of the generated package."""
    sources = sorted((PROTO_ROOT / PACKAGE).glob("*.proto"))
    services = [path for path in sources if "\nservice " in path.read_text()]
    run_protoc(sources, f"--python_out={out}", f"--mypy_out=quiet:{out}")
    run_protoc(services, f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}")
    files = {path.name: path.read_bytes() for path in sorted((out / PACKAGE).iterdir()) if path.is_file()}
    return {"__init__.py": INIT.encode(), **files}


def run_protoc(sources: list[Path], *outputs: str) -> None:
    """Run protoc with the plugins of this Python environment; exit with its message where it fails."""
    plugins = Path(sys.executable).parent
    arguments = [
        "protoc",
        f"--proto_path={PROTO_ROOT}",
        f"--proto_path={Path(grpc_tools.__file__).parent / '_proto'}",
        f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
        *outputs,
        *(str(path.relative_to(PROTO_ROOT)) for path in sources),
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protos/generate.py: protoc failed, see above")


def stale(files: dict[str, bytes], package: Path) -> list[str]:
    """Names of files that are missing in ``package``, differ from ``files`` or have no source any more."""
    present = {path.name: path.read_bytes() for path in package.glob("*") if path.is_file()}
    return sorted(name for name in files.keys() | present.keys() if files.get(name) != present.get(name))


def main() -> int:
    """Write the package, or with ``--check`` return 1 and name what is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail if the committed code is stale")
    check_only = parser.parse_args().check
    package = REPOSITORY / PACKAGE
    with tempfile.TemporaryDirectory() as folder:
        files = generate(Path(folder))
    outdated = stale(files, package)
    if check_only:
        for name in outdated:
            print(f"{PACKAGE / name} is stale: run python protos/generate.py", file=sys.stderr)
        return 1 if outdated else 0
    package.mkdir(parents=True, exist_ok=True)
    for name in outdated:
        if name in files:
            (package / name).write_bytes(files[name])
        else:
            (package / name).unlink()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
