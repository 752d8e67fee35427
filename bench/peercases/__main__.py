"""Runs the peers' cases of a directory, by peer and suite.

    python -m bench.peercases --cases DIR [--all] [--json]

`passed`, `failed` (ids) and `differs` (Kerf means to differ, see docs/decisions) add up to `cases`. Only universal
cases unless --all.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.peercases.suites import judge


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    files = sorted(given.cases.glob("*.json"))
    if not files:
        parser.error(f"--cases {given.cases} has no *.json; name the directory of the cases")
    suites = judge([case for file in files for case in json.loads(file.read_text())["cases"]], everything=given.all)
    for name, suite in suites.items():
        for case, problem in suite.failed.items():
            print(f"{case} ({name}): {problem}", file=sys.stderr)
    told = {name: suite.counts() for name, suite in suites.items()}
    print(json.dumps({"suites": told}, indent=None if given.json else 1))


if __name__ == "__main__":
    main()
