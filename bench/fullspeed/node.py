"""The node: an agent's own core, control blocks and suspension on a real bus, and programs in its slices, on the fake
driver or on a real GPU."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import ClassVar
from uuid import NAMESPACE_DNS, uuid5

from bench.enforce.place import FAKE_UUID, ROOT, Device, fake_device
from services.node_agent import commands
from services.node_agent import messages as m
from services.node_agent.config import Config
from services.node_agent.node_service import NodeRuntime
from shared.bus.embedded import EmbeddedServer
from shared.bus.port import Incoming
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.node_commands import Accepted, NodeGrant, NodeRelease, NodeSync
from shared.model.gpu import Gpu, Inventory
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.suspension import Suspension
from shared.service import Context, Service, running

NODE, MAIN = "n1", "main"
GPU_MIB = 4096
COPIES = {"KERF_FAKE_CUDA_COPY_MIB": "2048", "KERF_FAKE_CUDA_BACK_MIB": "4608"}
"""Speed of a checkpoint and of a restore, as measured of one process on an H200 with driver 580 and huge pages
(docs/decisions/0254)."""
PACE_US = 250


class Pods:
    """Pods as placement and the kubelet see them: granted over the bus, started through the device gate, and ended."""

    def __init__(self, ctx: Context, door: NodeRuntime, folder: Path, program: str, device: Device) -> None:
        """`program`: the file in the folder that is each pod's program."""
        self._ctx, self.door, self._folder, self._program, self._device = ctx, door, folder, program, device
        self.now_ns: Callable[[], int] = time.monotonic_ns
        """Returns the time: on the fake driver its virtual one. This process is not one of that clock's clients."""
        if device.fake:
            now = ctypes.CDLL(device.libcuda).kerf_virtual_now
            now.restype = ctypes.c_uint64
            self.now_ns = now

    def uuid_of(self, gpu: int) -> str:
        """The UUID of a GPU. A real device is the only one."""
        return uuid_of(gpu) if self._device.fake else self._device.uuid

    async def say(
        self, name: str, memory_mib: int, compute_milli: int, suspension: Suspension | None = None, gpu: int = 0
    ) -> Accepted:
        share = GpuShare(node=NODE, uuid=self.uuid_of(gpu), memory_mib=memory_mib, compute_milli=compute_milli)
        grant = Grant(
            grant_id=f"g-{name}", term=1, containers={MAIN: ContainerGrant(strategy="interposer", gpus=(share,))}
        )
        sent = NodeGrant(term=1, uid=uid_of(name), namespace="bench", name=name, grant=grant, suspension=suspension)
        answer = decode(
            await self._ctx.bus.request(subjects.node_command(NODE, "grant"), encode(sent), timeout_s=60), Accepted
        )
        if not answer.ok or answer.suspension != suspension:
            raise SystemExit(f"pod {name}: {answer.reason}")
        return answer

    async def admit(self, name: str, memory_mib: int, compute_milli: int, gpu: int = 0) -> None:
        """Starts a container through the device gate, so that its control block exists."""
        await self.say(name, memory_mib, compute_milli, gpu=gpu)
        order = await self.door.start_container(uid_of(name), MAIN)
        if isinstance(order, m.RefuseStart):
            raise SystemExit(f"pod {name} does not start: {order.sentence}")
        assert self.door.strategies is not None
        grant = next(came.grant for came in self.door.agent.store.startable() if came.uid == order.uid)
        await self.door.strategies.edits(order, grant)

    def run(self, name: str, *words: object, gpu: int = 0) -> subprocess.Popen[str]:
        """Starts a program in the pod's container. The control block must exist when it first calls the driver."""
        return self.run_command(name, [str(self._folder / self._program), self._device.libcuda, *map(str, words)], gpu)

    def run_command(self, name: str, command: Sequence[str], gpu: int = 0) -> subprocess.Popen[str]:
        """The same with any command."""
        control_block = self._folder / "run" / "slices" / f"{uid_of(name)}-{MAIN}"
        library = self._folder / "test" / "libkerf.so"
        inside = {"LD_PRELOAD": str(library), "KERF_DIRECTORY": str(control_block), "CUDA_VISIBLE_DEVICES": str(gpu)}
        return self._start(name, inside, command)

    def pace(self) -> subprocess.Popen[str]:
        command = [str(self._folder / "programs"), self._device.libcuda, "pace", str(PACE_US)]
        return self._start("pace", {}, command)

    def _start(self, name: str, inside: dict[str, str], command: Sequence[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, env=os.environ | inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        cgroup = self._folder / "cgroup" / "kubepods" / f"pod{uid_of(name)}"
        cgroup.mkdir(parents=True, exist_ok=True)
        for file, text in (("cgroup.procs", f"{process.pid}\n"), ("memory.max", "max\n"), ("memory.current", "0\n")):
            (cgroup / file).write_text(text)
        return process

    async def gone(self, name: str) -> None:
        """Does what the agent does when no process of the pod runs any more, and placement knows of its end."""
        await self.door.handle(m.ReleaseReceived(NodeRelease(term=1, uid=uid_of(name), grant_id=f"g-{name}")))
        await self.door.end_container(uid_of(name), MAIN)
        await self.door.handle(m.ReleasesBooked((f"g-{name}",)))
        assert self.door.strategies is not None
        self.door.strategies.keep_only([(live.uid, live.container) for live in self.door.agent.live()])


@contextlib.asynccontextmanager
async def node(
    folder: Path,
    gpus: int = 1,
    gpu_mib: int = GPU_MIB,
    program: str = "programs",
    device: Device | None = None,
) -> AsyncIterator[Pods]:
    """An agent of a node with GPUs of the fake driver, or with one real device. The virtual clock does not run faster
    than the real one."""
    on = device or fake_device(folder)
    uuids = [uuid_of(index) for index in range(gpus)] if on.fake else [on.uuid]
    for place in ("kubelet", "cgroup", "run"):
        (folder / place).mkdir()
    (folder / "boot_id").write_text("boot\n")
    (folder / "cgroup" / "cgroup.procs").touch()
    doors: list[NodeRuntime] = []

    class Bench(Service):
        name: ClassVar[str] = "node_agent"
        config_type: ClassVar[type] = Config
        provisions: ClassVar[bool] = True

        async def start(self, ctx: Context) -> None:
            door = NodeRuntime(ctx, ctx.config)
            assert door.strategies is not None

            async def came(incoming: Incoming) -> None:
                _, event = commands.read(incoming.subject, incoming.payload)
                await door.handle(event, incoming)

            await door.strategies.start(_nobody)
            await ctx.bus.subscribe(subjects.node_command(NODE, "grant"), came)
            seen = Inventory(
                node=NODE,
                boot_id="boot",
                gpus=tuple(
                    Gpu(uuid=uuid, index=index, model=on.name, memory_mib=gpu_mib) for index, uuid in enumerate(uuids)
                ),
                strategies=("exclusive", "advisory", "interposer", "time_slice"),
            )
            await door.handle(m.InventorySeen(seen))
            await door.handle(m.SyncReceived(NodeSync(term=1, node=NODE)))  # without one it takes no order
            doors.append(door)

    config = Config(
        node=NODE,
        checkpoint_file=str(folder / "agent.json"),
        boot_id_file=str(folder / "boot_id"),
        kubelet_dir=str(folder / "kubelet"),
        cgroup_dir=str(folder / "cgroup"),
        run_dir=str(folder / "run"),
        library_dir=str(folder / "lib"),
        interposer_dir=str(folder),
        libcuda=on.libcuda,
        enforce="off",
    )
    async with EmbeddedServer() as nats, running(Bench, config, bus_url=nats.url) as ctx:
        pods = Pods(ctx, doors[0], folder, program, on)
        pacing = pods.pace() if on.fake else None
        try:
            yield pods
        finally:
            if pacing is not None:
                pacing.kill()
                await asyncio.to_thread(pacing.communicate)


async def _nobody() -> None:
    """Ignores what the node offers."""


def world(folder: Path) -> dict[str, str]:
    """Returns the fake driver's settings, for this process and its children."""
    return {
        "KERF_FAKE_CUDA": str(folder / "world"),
        "KERF_FAKE_CUDA_MIB": str(GPU_MIB),
        **COPIES,
    }


def build(folder: Path) -> None:
    """Builds the interposer, the fake driver and the programs."""
    for source in ("native/interposer", "tests/fakes/cuda"):
        subprocess.run(["make", "-s", "-C", str(ROOT / source), f"BUILD={folder}"], check=True)
    source = str(Path(__file__).with_name("programs.c"))
    subprocess.run(["cc", "-O2", "-std=gnu11", "-o", str(folder / "programs"), source, "-ldl"], check=True)


def uuid_of(gpu: int) -> str:
    """The fake driver's UUID of a device."""
    return f"{FAKE_UUID[:-12]}{gpu + 1:012x}"


def uid_of(name: str) -> str:
    return str(uuid5(NAMESPACE_DNS, name))
