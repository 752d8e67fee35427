"""`python -m tests.fuzz --cases N`: failures on stderr, the counts on stdout. Exit status 1 on a failure."""

from __future__ import annotations

import argparse
import logging
import sys

import msgspec
import structlog

from tests.fuzz.parser import run_case
from tests.fuzz.parsers import parsers
from tests.fuzz.run import MAX_GROWTH_MIB, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="of all parsers together (%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the number of each parser's first case (%(default)s)")
    parser.add_argument("--parser", help="only parsers whose name begins so")
    parser.add_argument("--case", type=int, help="only this case, which is printed")
    parser.add_argument("--json", action="store_true", help="one object on stdout, and nothing else")
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    chosen = [one for one in parsers() if one.name.startswith(args.parser or "")]
    if not chosen:
        parser.error(f"there is no parser {args.parser}; there are {', '.join(one.name for one in parsers())}")
    if args.case is not None:
        for one in chosen:
            accepted, failure = run_case(one, args.case)
            sys.stdout.write(
                f"{one.name}: {one.case(args.case)!r}\n{'accepted' if accepted else failure or 'refused'}\n"
            )
        return
    report = run(chosen, args.cases, first=args.first, say=lambda text: void(sys.stderr.write(f"{text}\n")))
    if args.json:
        sys.stdout.write(f"{msgspec.json.encode(report).decode()}\n")
    else:
        for name, count in report.by_parser.items():
            said = f"{count.cases} cases, {count.accepted} accepted, {count.failures} failures"
            sys.stdout.write(f"{name}: {said}\n")
        sys.stdout.write(f"{report.cases} cases, {report.failed} failures, {report.growth_mib} MiB of growth\n")
    sys.exit(1 if report.failed or report.growth_mib > MAX_GROWTH_MIB else 0)


def void(_: object) -> None:
    """Discards a result."""


if __name__ == "__main__":
    main()
