"""`python -m tests.chaos.churn`: progress on stderr, the verdict on stdout. Exit status 1 on any violation."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

import msgspec

from shared.telemetry.logs import configure_logging
from tests.chaos.churn.run import Options, churn


def main() -> None:
    usual = Options()
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.churn", description=__doc__)
    parser.add_argument("--seconds", type=float, default=usual.seconds, help="of faults (%(default).0f)")
    parser.add_argument(
        "--seed",
        type=int,
        default=usual.seed,
        help="of load and faults (%(default)s); processes keep no promise about order",
    )
    parser.add_argument("--renew-s", type=float, default=usual.renew_s, help="placement's renew_term_s (%(default).0f)")
    parser.add_argument("--pods", type=int, default=usual.pods, help="how many there are at once (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one object on stdout, and nothing else")
    args = parser.parse_args()
    configure_logging("error")
    began = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:8.1f} {text}\n")

    report = asyncio.run(churn(Options(args.seconds, args.seed, args.renew_s, args.pods), say))
    fields = msgspec.to_builtins(report)
    sys.stdout.write(
        f"{msgspec.json.encode(report).decode()}\n" if args.json else "".join(f"{k}: {v}\n" for k, v in fields.items())
    )
    sys.exit(1 if report.violations else 0)


if __name__ == "__main__":
    main()
