"""Write the known-answer vectors beside this script, or with --check fail where a file differs from the code.

Each set is one JSON file; a module contributes its sets as ``SETS``, file name to builder.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "protocol"))  # the in-memory session and the tables of lies

import checkpoint_vectors  # noqa: E402
import fault_vectors  # noqa: E402
import header_vectors  # noqa: E402
import message_vectors  # noqa: E402
import primitives  # noqa: E402
import ring_vectors  # noqa: E402
import session_vectors  # noqa: E402

from securefda.protocol import hybrid  # noqa: E402

MODULES = (
    primitives,
    message_vectors,
    header_vectors,
    session_vectors,
    fault_vectors,
    ring_vectors,
    checkpoint_vectors,
)
SETS = {name: build for module in MODULES for name, build in module.SETS.items()}


def text_of(value: object, indent: str = "") -> str:
    """JSON with an entry a line, and a list of plain values on one."""
    parts = list(value.values() if isinstance(value, dict) else value) if isinstance(value, dict | list) else []
    if not parts or (isinstance(value, list) and not any(isinstance(part, dict | list) for part in parts)):
        return json.dumps(value)
    inner = indent + " "
    lines = [inner + text_of(part, inner) for part in parts]
    if isinstance(value, dict):
        lines = [f"{inner}{json.dumps(key)}: {text_of(part, inner)}" for key, part in value.items()]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return "\n".join([opening, ",\n".join(lines), indent + closing])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file is stale")
    check = parser.parse_args().check
    hybrid.encapsulated = session_vectors.published_encapsulation  # ciphertexts that are the same every time
    stale = []
    for name, build in SETS.items():
        path = HERE / f"{name}.json"
        text = text_of(json.loads(json.dumps(build()))) + "\n"
        if check and (not path.exists() or path.read_text() != text):
            stale.append(path.name)
        elif not check:
            path.write_text(text)
    if stale:
        print(f"stale: {', '.join(stale)}; run {Path(__file__).name} without --check", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
