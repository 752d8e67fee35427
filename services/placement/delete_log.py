"""Deletes the stream KERF_LOG, which no user of NATS but placement's may: `python -m services.placement.delete_log`.

It runs in any pod of Kerf's and connects as user placement, with the password on standard input. Placement makes the
stream again, with higher numbers; while none runs, it is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys

from shared.bus.jetstream import Deleted
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError, NoStream
from shared.contracts import subjects

USER = "placement"


async def delete_log(url: str, password: str, ca: str = "") -> bool:
    """False where there was none. Raises BusError. `url`: of the servers, as whichever user."""
    as_placement = re.sub(r"//([^@/]*@)?", lambda _: f"//{USER}:{password}@", url)
    name = "kerf-delete-log"
    async with await NatsBus.connect(as_placement, name=name, ca_file=ca, inbox_prefix=f"_INBOX_{USER}") as bus:
        try:
            await bus.js.call(f"STREAM.DELETE.{subjects.STREAM_LOG}", None, Deleted)
        except NoStream:
            return False
    return True


def main() -> None:
    argparse.ArgumentParser(prog="python -m services.placement.delete_log", description=__doc__).parse_args()
    url, ca = os.environ.get("KERF_NATS_URL", ""), os.environ.get("KERF_NATS_CA", "")
    password = sys.stdin.read().strip()
    if not url or not password:
        sys.exit("KERF_NATS_URL and, on standard input, the password of NATS user placement are needed")
    try:
        deleted = asyncio.run(delete_log(url, password, ca))
    except BusError as error:
        sys.exit(f"{subjects.STREAM_LOG} was not deleted: {error}")
    sys.stdout.write(f"{subjects.STREAM_LOG} {'was deleted' if deleted else 'was not there'}\n")


if __name__ == "__main__":
    main()
