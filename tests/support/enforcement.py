"""Helpers for tests of a whole agent with enforced slices."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from services.node_agent.canary.proofs import LIBRARY, _digest
from services.node_agent.canary.verdict import Proof
from services.node_agent.strategies import layout
from shared.bus.nats_bus import NatsBus
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.node_commands import Accepted, NodeGrant
from shared.model.gpu import Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.strategies import StrategyName
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import pod, uid

ROOT = Path(__file__).resolve().parents[2]
GPU = "GPU-00000000-0000-0000-0000-000000000001"
NVML = f"driver 580.1\ngpu 0 {GPU} NVIDIA_H200 4000 00000000:01:00.0 0 9 0 0 0\n"
VICTIM = ROOT / "tests" / "unit" / "services" / "node_agent" / "strategies" / "victim.py"


def become(host: Path, text: str) -> None:
    (host / "new").write_text(text)
    (host / "new").replace(host / "nvml")


def prove(host: Path, build: Path, **changes: Any) -> None:
    proof = Proof(
        driver_version="580.1",
        library=_digest(build / LIBRARY),
        ok=True,
        context_bytes=0,
        seen_bytes=1,
        driver_limit="none",
        turns_milli=(500, 500, 990, 5),
    )
    (host / "state").mkdir(exist_ok=True)
    (host / "state" / "canary.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(proof, **changes)))


async def give(
    bus: NatsBus,
    name: str,
    memory_mib: int = 64,
    compute_milli: int = 300,
    strategy: StrategyName = "interposer",
    gpu: str = GPU,
    **more: Any,
) -> None:
    share = GpuShare(node="n1", uuid=gpu, memory_mib=memory_mib, compute_milli=compute_milli)
    grant = Grant(
        grant_id=f"g-{name}", term=1, containers={"main": ContainerGrant(strategy=strategy, gpus=(share,))}, **more
    )
    sent = NodeGrant(term=1, uid=uid(name), namespace="team", name=name, grant=grant)
    assert decode(await bus.request(subjects.node_command("n1", "grant"), encode(sent)), Accepted).ok


async def started(bus: NatsBus, kubelet: FakeKubelet, name: str, **how: Any) -> str:
    await kubelet.sees_slots()
    await give(bus, name, **how)
    one = pod(name)
    await kubelet.admit(one)
    return await kubelet.start_container(one)


def control_block(host: Path, name: str) -> Path:
    return host / "run" / "slices" / f"{uid(name)}-main"


def orders(host: Path, name: str) -> layout.Orders:
    return layout.Orders.from_buffer_copy((control_block(host, name) / "orders").read_bytes())


def mounts(host: Path, cdi_name: str) -> dict[str, dict[str, Any]]:
    """All but those of the driver."""
    specs = [json.loads(path.read_text()) for path in (host / "cdi").glob("*.json")]
    (edits,) = [
        device["containerEdits"]
        for spec in specs
        for device in spec["devices"]
        if cdi_name.endswith(f"={device['name']}")
    ]
    found = {mount["containerPath"]: mount for mount in edits["mounts"]}
    return {path: mount for path, mount in found.items() if not path.startswith("/usr/")}


def preloads(found: dict[str, dict[str, Any]]) -> str:
    assert all(Path(mount["hostPath"]).exists() for mount in found.values())
    return Path(found["/etc/ld.so.preload"]["hostPath"]).read_text()


async def offered(bus: NatsBus) -> tuple[str, ...]:
    entry = await bus.kv(subjects.KV_NODES).get("n1")
    return () if entry.value is None else decode(entry.value, Inventory).strategies


def count(host: Path, name: str, mib: int) -> None:
    """Writes counters as the interposer does."""
    with (control_block(host, name) / "counters").open("r+b") as file:
        file.seek(layout.Counters.gpu.offset)
        file.write((mib << 20).to_bytes(8, "little"))


def at_work(host: Path, name: str) -> None:
    """Marks the container as busy for a long time, as its interposer does."""
    with (control_block(host, name) / "signal").open("r+b") as file:
        file.seek(layout.Signal.gpu.offset + layout.SignalGpu.busy_until_ns.offset)
        file.write((1 << 62).to_bytes(8, "little"))


def locked(build: Path, pid: int) -> bool:
    """Whether the driver reports the process as locked. A helper process asks, so that the test is no client."""
    script = (
        "import ctypes, sys; d = ctypes.CDLL(sys.argv[1]); s = ctypes.c_int(-1); d.cuInit(0); "
        "d.cuCheckpointProcessGetState(int(sys.argv[2]), ctypes.byref(s)); print(s.value)"
    )
    asked = subprocess.run(
        [sys.executable, "-c", script, str(build / "libcuda.so.1"), str(pid)],
        check=True,
        capture_output=True,
        text=True,
    )
    return asked.stdout.strip() == "1"


def as_seen(percents: list[int], first: int = 4711) -> str:
    """Returns the fake NVML's input for processes with these percentages of the GPU."""
    seen = [(first + place, percent) for place, percent in enumerate(percents)]
    return NVML + "".join(f"process 0 {pid} 10\nsm 0 {pid} {percent}\n" for pid, percent in seen)
