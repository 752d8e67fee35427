"""GPU use per namespace from Kerf's public events: pip install nats-py; NATS_URL=nats://user:password@host python
usage_account.py. In a pod: NATS_URL=tls://kerf-nats.kerf-system.svc:4222 and NATS_TOKEN_FILE, NATS_INBOX_PREFIX,
NATS_CA (docs/external-tool.md)."""

import asyncio
import collections
import datetime
import itertools
import json
import os
import pathlib
import ssl

import nats


def options() -> dict[str, object]:
    """With which a pod connects by its ServiceAccount's token. It ends after a day at most; begin anew then."""
    if "NATS_TOKEN_FILE" not in os.environ:
        return {}
    return {
        "token": pathlib.Path(os.environ["NATS_TOKEN_FILE"]).read_text(),
        "inbox_prefix": os.environ["NATS_INBOX_PREFIX"],
        "tls": ssl.create_default_context(cafile=os.environ["NATS_CA"]),
    }


async def main() -> None:
    bus = await nats.connect(os.environ.get("NATS_URL", "nats://127.0.0.1:4222"), **options())
    events = await bus.jetstream().subscribe("kerf.v1.event.slice.>", stream="KERF_EVENTS", ordered_consumer=True)
    # By grant and container: what the slice had, by the time since when. Ends by grant. An event that comes twice
    # changes nothing.
    had, ended = collections.defaultdict(dict), {}
    while message := await events.next_msg(timeout=None):
        event = json.loads(message.data)
        now, data = datetime.datetime.fromisoformat(event["time"].replace("Z", "+00:00")), event["data"]
        if event["type"] == "dev.kerf.slice.enforced.v1":
            had[data["grant_id"], data["container"]].setdefault(now, data)
        elif event["type"] == "dev.kerf.slice.released.v1":
            ended.setdefault(data["grant_id"], now)
        account = collections.defaultdict(lambda: [0.0, 0.0])
        for (grant, _), parts in had.items():
            times = [*sorted(parts), ended.get(grant, now)]
            for start, end in itertools.pairwise(times):
                hours, part = (min(end, times[-1]) - start).total_seconds() / 3600, parts[start]
                for memory_mib, compute_milli in part.get("gpus", {}).values():
                    account[part["namespace"]][0] += max(0, hours) * compute_milli / 1000
                    account[part["namespace"]][1] += max(0, hours) * memory_mib / 1024
        if message.metadata.num_pending == 0:  # the past has been read
            for namespace, (gpus, gibibytes) in sorted(account.items()):
                print(f"{now:%H:%M:%S} {namespace} gpu_hours={gpus:.3f} gib_hours={gibibytes:.3f}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
