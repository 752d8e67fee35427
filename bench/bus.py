"""What the bus costs: `python -m bench.bus [--json] [--loop asyncio|uvloop]`, on an embedded server with synced writes.

CPU figures are this process's own (`time.process_time`), without the server's; latencies are wall time. Beside each
stands nothing else: compare figures of one run only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import time
from typing import Any

from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.bus.provision import provision
from shared.contracts import subjects
from shared.contracts.base import encode
from shared.contracts.envelope import wrap
from shared.contracts.events import PodBound
from shared.contracts.log import Decision, DecisionBatch
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.telemetry import Metrics, Telemetry
from shared.telemetry.logs import configure_logging

PAYLOAD = b"x" * 450


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def decisions(count: int) -> bytes:
    return encode(
        DecisionBatch(
            term=1_795_254_276_947,
            decisions=tuple(
                Decision(
                    uid=f"0e6f8e2a-8f1c-4b9e-9d53-{number:012d}",
                    namespace="team-a",
                    name=f"train-{number}",
                    resource_version="123456",
                    node=f"gpu-node-{number}",
                    grant=Grant(
                        grant_id=f"{number:032x}",
                        term=1_795_254_276_947,
                        traceparent="00-13d650693b19482ad7061da30b45bfbc-bb026e6a28a80af1-01",
                        containers={
                            "main": ContainerGrant(
                                strategy="advisory",
                                gpus=(
                                    GpuShare(
                                        node=f"gpu-node-{number}",
                                        uuid=f"GPU-{number:036d}",
                                        memory_mib=16384,
                                        compute_milli=300,
                                    ),
                                ),
                            )
                        },
                    ),
                )
                for number in range(count)
            ),
        )
    )


async def core_publish(bus: NatsBus, count: int) -> float:
    started = time.process_time()
    for number in range(count):
        await bus.publish("kerf.bench.publish", PAYLOAD)
        if number % 64 == 63:
            await asyncio.sleep(0)
    await bus.alive()
    return (time.process_time() - started) / count * 1e6


async def events(bus: NatsBus, count: int) -> tuple[float, float]:
    """µs of CPU for publishing alone, acknowledgements included, and for building the CloudEvent on top."""
    subject = subjects.event_in_namespace("pod", "bound", "team-a")
    event = PodBound(
        uid="0e6f8e2a-8f1c-4b9e-9d53-0a6d6c9f0001",
        namespace="team-a",
        name="train-1",
        node="gpu-node-1",
        grant_id="0" * 32,
        bound_ms=3,
    )
    started = time.process_time()
    wrapped = [
        wrap(event, source="/kerf/placement/bench", now_s=time.time(), subject="team-a/train-1") for _ in range(count)
    ]
    wrapping = (time.process_time() - started) / count * 1e6
    started = time.process_time()
    for number, (identity, payload) in enumerate(wrapped):
        bus.publish_event(subject, payload, identity)
        if number % 64 == 63:
            await asyncio.sleep(0)
        if number % 4096 == 4095:
            assert await bus._events.flushed(60)
    assert await bus._events.flushed(60)
    assert bus.stats.events_lost == 0
    return (time.process_time() - started) / count * 1e6, wrapping


async def requests(bus: NatsBus, other: NatsBus, count: int) -> list[float]:
    async def answer(incoming: Incoming) -> None:
        await other.respond(incoming, incoming.payload)

    subscription = await other.subscribe("kerf.bench.ask", answer)
    took = []
    for _ in range(count):
        started = time.perf_counter()
        await bus.request("kerf.bench.ask", PAYLOAD)
        took.append((time.perf_counter() - started) * 1e6)
    await subscription.stop()
    return took


async def appends(bus: NatsBus, count: int, batch: int) -> tuple[list[float], float, int]:
    payload = decisions(batch)
    newest = await bus.newest(subjects.LOG_TERM)
    term = await bus.append(
        subjects.LOG_TERM, b"{}", fence_subject=subjects.LOG_TERM, fence_sequence=newest.sequence if newest else 0
    )
    took, started_cpu = [], time.process_time()
    for _ in range(count):
        started = time.perf_counter()
        await bus.append(subjects.LOG_DECISIONS, payload, fence_subject=subjects.LOG_TERM, fence_sequence=term)
        took.append((time.perf_counter() - started) * 1e6)
    return took, (time.process_time() - started_cpu) / count * 1e6, len(payload)


def pure(count: int) -> dict[str, float]:
    """The telemetry's share of the hot path."""
    telemetry, metrics = Telemetry("bench", ratio=0.0, otlp_endpoint=""), Metrics()
    counter, histogram = metrics.counter("kerf_a", "A.", ("x",)).of("y"), metrics.histogram("kerf_b", "B.")
    recorded = Telemetry("bench", ratio=1.0, otlp_endpoint="")
    recorded.warm()
    attributes: dict[str, str | int | float | bool] = {f"kerf.a{number}": number for number in range(8)}
    uid = "0e6f8e2a-8f1c-4b9e-9d53-0a6d6c9f0001"

    def each(work: Any, times: int) -> float:
        started = time.process_time()
        for _ in range(times):
            work()
        return (time.process_time() - started) / times * 1e6

    return {
        "span_unsampled_us": each(lambda: telemetry.pod_span(uid, "decide", attributes=attributes), count),
        "span_recorded_us": each(lambda: recorded.pod_span(uid, "decide", attributes=attributes), count // 20),
        "counter_add_us": each(counter.add, count),
        "histogram_observe_us": each(lambda: histogram.observe(0.003), count),
    }


async def marks(bus: NatsBus, count: int) -> list[float]:
    """Microseconds of each compare-and-swap of the log's mark, which follows each append (R1)."""
    took = []
    _, revision = await bus.read_mark()
    for _ in range(count):
        began = time.perf_counter()
        revision = await bus.write_mark(PAYLOAD[:80], revision)
        took.append((time.perf_counter() - began) * 1e6)
    return took


async def measure(scale: float) -> dict[str, Any]:
    async with (
        EmbeddedServer() as server,
        await NatsBus.connect(server.url) as bus,
        await NatsBus.connect(server.url) as other,
    ):
        await provision(bus)
        await core_publish(bus, 2000)
        publish_us = await core_publish(bus, int(50_000 * scale))
        event_us, wrap_us = await events(bus, int(20_000 * scale))
        asked = await requests(bus, other, int(4000 * scale))
        took, cpu_us, size = await appends(bus, int(1000 * scale), 32)
        marked = await marks(bus, int(1000 * scale))
        return {
            "core_publish_cpu_us": publish_us,
            "publish_event_cpu_us": event_us,
            "cloudevent_wrap_cpu_us": wrap_us,
            "request_p50_us": statistics.median(asked),
            "request_p99_us": percentile(asked, 0.99),
            "append_32_bytes": size,
            "append_32_p50_us": statistics.median(took),
            "append_32_p99_us": percentile(took, 0.99),
            "append_32_cpu_us": cpu_us,
            "mark_p50_us": statistics.median(marked),
            "mark_p99_us": percentile(marked, 0.99),
            "append_cpu_per_decision_us": cpu_us / 32,
            **pure(int(100_000 * scale)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--loop", choices=("asyncio", "uvloop"), default="uvloop")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual number of repetitions")
    arguments = parser.parse_args()
    configure_logging()  # on stderr: stdout is the result's alone
    factory = None
    if arguments.loop == "uvloop":
        import uvloop  # noqa: PLC0415

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        figures = runner.run(measure(arguments.scale))
    result = {
        "bench": "bus",
        "loop": arguments.loop,
        "python": platform.python_version(),
        "figures": {k: round(v, 3) for k, v in figures.items()},
    }
    if arguments.json:
        print(json.dumps(result, indent=2))
    else:
        for name, value in result["figures"].items():
            print(f"{name:32} {value:>12.2f}")


if __name__ == "__main__":
    main()
