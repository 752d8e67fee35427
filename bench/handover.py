"""What the hand-over adds to a container's start, on a real kubelet and containerd in a sandbox. Needs root.

    python -m bench.handover [--starts 200] [--at-once 4] [--idle-s 60] [--json]

Slice pods and pods without a GPU in turn, all placed by Kerf, at most `--at-once` of them starting at a time; each is
deleted when it has run. `added_start_ms` is what the agent itself takes of one container's start: Allocate and
PreStartContainer with its PodResources list, the durable lease and the CDI spec, measured in the agent. `pod_ms` is
from the create call to a pod that the API server shows running. `wrong_gpu` counts containers whose environment is not
their pod's grant. The agent's memory is read after the last start, its CPU over `--idle-s` seconds of nothing to do.
The GPUs are eight of the fake NVML; API server, kubelet and all of Kerf share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from bench import cluster
from cli.stack import quiet_logs, stack
from shared.kube.transport import Transport
from shared.model.grant import decode_grant
from tools.binaries import NODE, find_binaries
from tools.control_plane import ControlPlane
from tools.sandbox import Sandbox, why_not
from tools.sandbox.agent import Agent, Gpus
from tools.sandbox.node import NODE as NODE_NAME
from tools.sandbox.node import WORKLOAD

PODS = f"/api/v1/namespaces/{cluster.NAMESPACE}/pods"
WITHIN_S = 60.0


class Result(msgspec.Struct):
    starts: int
    at_once: int
    wrong_gpu: int
    added_start_ms_p50: float
    added_start_ms_p99: float
    pod_ms_p50_with_gpu: float
    pod_ms_p50_without_gpu: float
    agent_rss_mb: float
    agent_idle_cpu_percent: float
    node_ready_s: float


class Watch:
    """Pods by name, as the API server shows them, and the waiters for each."""

    def __init__(self, kube: Transport) -> None:
        self._kube = kube
        self._running: dict[str, asyncio.Future[tuple[float, Any]]] = {}
        self._gone: dict[str, asyncio.Future[None]] = {}

    def expect(self, name: str) -> asyncio.Future[tuple[float, Any]]:
        """When it was seen running, and how it looked."""
        loop = asyncio.get_running_loop()
        self._gone[name] = loop.create_future()
        self._running[name] = loop.create_future()
        return self._running[name]

    def gone(self, name: str) -> asyncio.Future[None]:
        return self._gone[name]

    async def follow(self) -> None:
        async with self._kube.stream(f"{PODS}?watch=1", read_timeout_s=600.0) as (_, chunks):
            async for line in _lines(chunks):
                change = msgspec.json.decode(line)
                pod = change["object"]
                name = pod["metadata"]["name"]
                if change["type"] == "DELETED":
                    self._gone[name].set_result(None)
                elif pod["status"].get("phase") == "Running" and not self._running[name].done():
                    self._running[name].set_result((time.perf_counter(), pod))


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line


def manifest(name: str, *, gpu: bool) -> dict[str, Any]:
    limits = {"kerf.dev/gpu-memory": "3Gi", "kerf.dev/gpu-compute": "5"} if gpu else {}
    container = {"name": "main", "image": WORKLOAD, "resources": {"limits": limits}}
    return {
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "kerf",
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "tolerations": [{"key": "kerf.dev/managed", "operator": "Exists"}],
        },
    }


async def one(kube: Transport, watch: Watch, name: str, *, gpu: bool) -> tuple[float, bool]:
    """Milliseconds until it ran, and whether it found what it was granted."""
    seen = watch.expect(name)
    begun = time.perf_counter()
    created = await kube.request("POST", PODS, msgspec.json.encode(manifest(name, gpu=gpu)))
    if created.status != 201:
        raise RuntimeError(f"pod {name}: {created.status} {created.body!r}")
    async with asyncio.timeout(WITHIN_S):
        at, pod = await seen
        right = not gpu or await _found(kube, name) == _granted(pod)
        await kube.request("DELETE", f"{PODS}/{name}")
        await watch.gone(name)
    return (at - begun) * 1000, right


def _granted(pod: Any) -> tuple[str, str, str]:
    grant = decode_grant(pod["metadata"]["annotations"]["kerf.dev/grant"])
    shares = grant.containers["main"].gpus
    return grant.grant_id, ",".join(share.uuid for share in shares), str(sum(share.memory_mib for share in shares))


async def _found(kube: Transport, name: str) -> tuple[str, str, str]:
    while True:
        log = await kube.request("GET", f"{PODS}/{name}/log")
        if log.status == 200 and log.body.endswith(b"\n"):
            environment = msgspec.json.decode(log.body)["environment"]
            return tuple(environment.get(key, "") for key in ("KERF_GRANT", "KERF_GPUS", "KERF_GPU_MEMORY_MIB"))
        await asyncio.sleep(0.05)


def added_ms(log: str) -> list[float]:
    """Of each hand-over in the agent's log, Allocate and PreStartContainer together, by their slot."""
    allocated: dict[str, float] = {}
    found = []
    for line in log.splitlines():
        said = json.loads(line) if line.startswith("{") else {}
        if said.get("event") == "allocated":
            allocated[said["slots"][0]] = said["took_s"]
        elif said.get("event") == "prestart":
            found.append((allocated[said["slots"][0]] + said["took_s"]) * 1000)
    return found


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mb(pid: int) -> float:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


async def measure(
    plane: ControlPlane, sandbox: Sandbox, gpus: Gpus, args: argparse.Namespace, ready_s: float
) -> Result:
    account = str(plane.service_account("kerf-system", "kerf-watcher"))
    async with stack(kubeconfig=account) as made:
        agent = Agent(sandbox, gpus, made.url, settings={"KERF_LOG_LEVEL": "debug"})
        agent.start()
        kube = await cluster.transport(plane)
        await _offered(kube, agent)
        watch = Watch(kube)
        following = asyncio.create_task(watch.follow())
        kinds: dict[bool, list[tuple[float, bool]]] = {True: [], False: []}

        async def start(number: int) -> None:
            gpu = number % 2 == 0
            kinds[gpu].append(await one(kube, watch, f"{'slice' if gpu else 'plain'}-{number}", gpu=gpu))
            if number % 50 == 0:
                print(f"{number} of {2 * args.starts} pods", file=sys.stderr)

        await cluster.in_flight(2 * args.starts, args.at_once, start)
        following.cancel()
        added = sorted(added_ms(sandbox.log("agent", last=1 << 30)))
        pid = sandbox.outside(agent.pid)
        rss = _rss_mb(pid)
        # The same agent as it is deployed: its words at debug level are not what idles.
        agent.end()
        quiet = Agent(sandbox, gpus, made.url)
        quiet.start()
        await _offered(kube, quiet)
        pid = sandbox.outside(quiet.pid)
        begun, spent = time.monotonic(), _cpu_s(pid)
        await asyncio.sleep(args.idle_s)
        cpu = 100 * (_cpu_s(pid) - spent) / (time.monotonic() - begun)
        quiet.end()
        await kube.close()
    return Result(
        starts=len(kinds[True]),
        at_once=args.at_once,
        wrong_gpu=sum(not right for _, right in kinds[True]),
        added_start_ms_p50=round(statistics.median(added), 2),
        added_start_ms_p99=round(added[int(len(added) * 0.99)], 2),
        pod_ms_p50_with_gpu=round(statistics.median(ms for ms, _ in kinds[True])),
        pod_ms_p50_without_gpu=round(statistics.median(ms for ms, _ in kinds[False])),
        agent_rss_mb=round(rss, 1),
        agent_idle_cpu_percent=round(cpu, 2),
        node_ready_s=round(ready_s, 2),
    )


async def _offered(kube: Transport, agent: Agent) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            node = msgspec.json.decode((await kube.request("GET", f"/api/v1/nodes/{NODE_NAME}")).body)
            if int(node["status"]["allocatable"].get("kerf.dev/slot", 0)) and await asyncio.to_thread(
                lambda: agent.ready
            ):
                return
            await asyncio.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.handover", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=200, help="of pods with a slice; as many without one")
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--idle-s", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    quiet_logs()
    reason = why_not()
    if reason:
        sys.exit(f"bench.handover: no kubelet can be run here: {reason}")
    binaries = find_binaries(NODE, build=True)
    with tempfile.TemporaryDirectory(prefix="kerf-bench-") as state:
        plane = ControlPlane(Path(state, "plane"), binaries=binaries, controllers=True).start()
        sandbox = Sandbox(plane, binaries)
        try:
            cluster.apply_policies(plane)
            ready_s = sandbox.start()
            Path(state, "gpus").mkdir()
            result = asyncio.run(measure(plane, sandbox, Gpus(Path(state, "gpus")), args, ready_s))
        finally:
            sandbox.stop()
            plane.stop()
    if args.json:
        print(msgspec.json.encode(result).decode())
    else:
        for name, value in msgspec.structs.asdict(result).items():
            print(f"{name:24} {value}")


if __name__ == "__main__":
    main()
