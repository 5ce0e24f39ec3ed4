"""Write the known-answer vectors beside this script, or with --check fail where a file differs from the code.

Each set is one JSON file; a module contributes its sets as ``SETS``, file name to builder.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import message_vectors
import primitives

HERE = Path(__file__).parent
SETS = {**primitives.SETS, **message_vectors.SETS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file is stale")
    check = parser.parse_args().check
    stale = []
    for name, build in SETS.items():
        path = HERE / f"{name}.json"
        text = json.dumps(build(), indent=1) + "\n"
        if check and (not path.exists() or path.read_text() != text):
            stale.append(path.name)
        elif not check:
            path.write_text(text)
    if stale:
        print(f"stale: {', '.join(stale)}; run {Path(__file__).name} without --check", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
