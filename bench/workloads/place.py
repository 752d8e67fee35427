"""The harness's environment: the agent's own code that makes slices and CDI edits, and containers that have them."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench.enforce.place import FAKE_COSTS, ROOT, Device, Place, last_line
from bench.enforce.place import build as build_enforcement
from services.node_agent import messages as m
from services.node_agent.canary import verdict
from services.node_agent.cdi import environment
from services.node_agent.cdi.driver import Driver
from services.node_agent.cdi.host import Host
from services.node_agent.cdi.spec import ContainerEdits, DeviceNode, merged
from services.node_agent.strategies import install
from services.node_agent.strategies.base import NodeTools, Offer
from services.node_agent.strategies.drivers import make_drivers
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Slice, slice_of
from shared.model.gpu import Gpu
from shared.model.grant import ContainerGrant, GpuShare
from shared.model.units import MIB

FAKE_VERSION = "580.00.00"
FAKE_CONTEXT_MIB, FAKE_POOL_KIB = 300, 2048
NODE = "here"
Edit = Callable[[ContainerEdits], ContainerEdits]


def own_nodes(folder: Path) -> tuple[DeviceNode, ...]:
    """The driver's device nodes that this machine has."""
    return tuple(DeviceNode(path=str(path)) for path in sorted(folder.glob("nvidia*")) if not path.is_dir())


def _unchanged(edits: ContainerEdits) -> ContainerEdits:
    return edits


class HostOfFiles(Host, frozen=True):
    """A host with a driver that is made of files, below `driver_root`: the fake driver's."""

    @property
    def proc(self) -> Path:
        return Path(self.driver_root) / "proc"


@dataclass
class Bench(Place):
    gpus: tuple[Gpu, ...] = ()
    host: Host = field(default_factory=Host)
    problem: str = ""
    """Why this machine cannot apply the edits. Empty: it can."""
    driver_edits: str = "applied"
    tamper: Edit = _unchanged
    """Changes the edits of every container: tests break them, and the harness must find it."""

    def prepare(self) -> None:
        """Builds everything, finds the GPUs, and measures what a context takes and how long a kernel is."""
        build_enforcement(self.folder, fake=self.device.fake)
        programs = ["make", "-s", "-C", str(Path(__file__).with_name("programs")), f"BUILD={self.folder}"]
        subprocess.run(programs, check=True)
        digest = hashlib.sha256((self.folder / "libkerf.so").read_bytes()).hexdigest()[:16]
        self.installed = install.install(self.folder, self.folder / "installed", digest)
        self.gpus = _fake_gpus(self.device) if self.device.fake else gpus_of(self.device.libcuda)
        if self.device.fake:
            self.host = _host_of_files(self.folder, len(self.gpus))
            self.costs = (FAKE_CONTEXT_MIB * MIB, FAKE_POOL_KIB << 10)
        else:
            measured = last_line(self.start(["context", "3"], None))
            context_bytes = verdict.of_contexts(measured)
            if context_bytes == verdict.UNKNOWN:
                raise SystemExit(
                    f"the memory of a context is not known ({measured}); does another program use the GPU?"
                )
            self.costs = (context_bytes, verdict.of_pools(measured))
            self.calibrate()
        tried = self.enter(self._saved(ContainerEdits()), ["true"])
        asked = subprocess.run(tried, capture_output=True, text=True, check=False)
        self.problem = asked.stderr.strip().splitlines()[-1] if asked.returncode else ""

    def slice_on(self, uid: str, devices: int, memory_mib: int, compute_milli: int) -> tuple[Slice, ContainerGrant]:
        share = ContainerGrant(
            strategy="interposer",
            gpus=tuple(
                GpuShare(node=NODE, uuid=gpu.uuid, memory_mib=memory_mib, compute_milli=compute_milli)
                for gpu in self.gpus[:devices]
            ),
        )
        return slice_of(uid, "c", share, None, NODE), share

    def edits(self, registry: SliceRegistry, slice_: Slice, share: ContainerGrant) -> ContainerEdits:
        """The edits of the slice's container, as the agent composes them (`cdi/slices.py:SliceWriter.write`)."""
        tools = NodeTools(registry=registry, library=self.installed, offer=lambda: Offer(ok=True), clock=self.clock)
        strategy = make_drivers(tools)[share.strategy]
        strategy.prepare(slice_)
        known = {gpu.uuid: gpu for gpu in self.gpus}
        of_driver, why = ContainerEdits(), ""
        try:
            of_driver = Driver(self.host, os.uname().machine).edits(share.gpus, known, {})
        except ValueError as error:
            why = str(error)
        if not of_driver.device_nodes:  # a machine that is a container itself: the driver's files are in its root
            self.driver_edits = f"not applied, the machine's own driver and device nodes are used: {why}"
            of_driver = ContainerEdits(device_nodes=own_nodes(Path("/dev")))
        order = m.HandOver(uid=slice_.uid, container="c", grant_id=slice_.uid, share=share)
        own = ContainerEdits(env=environment.kerf(order))
        return self.tamper(merged(of_driver, own, strategy.edits(slice_)))

    def enter(self, file: Path, command: Sequence[str]) -> list[str]:
        return [sys.executable, str(Path(__file__).with_name("inside.py")), str(file), *command]

    def _saved(self, edits: ContainerEdits) -> Path:
        root = Path(self.folder / f"container-{next(_NUMBERS)}")
        root.mkdir()
        file = root.with_suffix(".json")
        shared = [str(self.folder), str(ROOT)]
        file.write_bytes(msgspec.json.encode({"edits": edits, "root": str(root), "shared": shared}))
        return file

    def begin_program(
        self,
        command: Sequence[str],
        edits: ContainerEdits | None,
        control_block: Path | None,
        *,
        container: int = 0,
        devices: int = 1,
    ) -> subprocess.Popen[str]:
        """Starts a program in a container with these edits; None: on the machine itself, without Kerf."""
        world = {
            "KERF_FAKE_CUDA": str(self.folder / f"world-{self.cases}"),
            "KERF_FAKE_CUDA_CLIENT": str(container),
            "KERF_FAKE_CUDA_CONTAINER": str(container),
            "KERF_FAKE_CUDA_DEVICES": str(devices),
            "KERF_FAKE_CUDA_CONTEXT_MIB": str(FAKE_CONTEXT_MIB),
            "KERF_FAKE_CUDA_POOL_KIB": str(FAKE_POOL_KIB),
            "KERF_FAKE_CUDA_LAZY": "1",
            "CUDA_MODULE_LOADING": "LAZY",
            **FAKE_COSTS,
        }
        if edits is None or self.problem:
            world["LD_LIBRARY_PATH"] = str(self.folder) if self.device.fake else os.environ.get("LD_LIBRARY_PATH", "")
        if edits is not None and self.problem:
            world |= {"LD_PRELOAD": str(self.library), "KERF_DIRECTORY": str(control_block)}
        full = list(command) if edits is None or self.problem else self.enter(self._saved(edits), command)
        return subprocess.Popen(
            full,
            env=os.environ | world | self.calibration,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


_NUMBERS = itertools.count(1)


def _fake_gpus(device: Device) -> tuple[Gpu, ...]:
    return tuple(
        Gpu(uuid=f"{device.uuid[:-1]}{index + 1}", index=index, model="fake", memory_mib=device.memory_mib, minor=index)
        for index in range(8)
    )


def _host_of_files(folder: Path, gpus: int) -> Host:
    root = folder / "host"
    libraries = root / "usr/lib/x86_64-linux-gnu"
    for path in (libraries, root / "proc/driver/nvidia", root / "dev"):
        path.mkdir(parents=True)
    (root / "proc/driver/nvidia/version").write_text(f"NVRM version: NVIDIA UNIX Kernel Module  {FAKE_VERSION}  fake\n")
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{index}" for index in range(gpus))):
        (root / "dev" / name).touch()
    (libraries / f"libcuda.so.{FAKE_VERSION}").write_bytes((folder / "libcuda.so.1").read_bytes())
    (libraries / "libcuda.so.1").symlink_to(f"libcuda.so.{FAKE_VERSION}")
    return HostOfFiles(driver_root=str(root))


class Nvml:
    """The memory of processes as NVML reports it, of one GPU. Asked by ctypes: the machine has no Python package of
    it."""

    def __init__(self, uuid: str) -> None:
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        self._gpu = ctypes.c_void_p()
        if self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self._gpu)):
            raise SystemExit(f"NVML does not answer for {uuid}")

    def minor(self) -> int:
        found = ctypes.c_uint()
        return -1 if self._nvml.nvmlDeviceGetMinorNumber(self._gpu, ctypes.byref(found)) else found.value

    def memory(self) -> Mapping[int, int]:
        """Bytes by process ID; without processes whose memory NVML does not know."""

        class Process(ctypes.Structure):
            _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("instances", ctypes.c_uint * 2)]

        count, listed = ctypes.c_uint(256), (Process * 256)()
        if self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(self._gpu, ctypes.byref(count), listed):
            return {}
        return {found.pid: found.used for found in listed[: count.value] if found.used != (1 << 64) - 1}


def gpus_of(libcuda: str) -> tuple[Gpu, ...]:
    """The machine's GPUs, in the driver's order. Another process asks: this one must not have used the driver."""
    script = (
        "import ctypes, json, sys, uuid\n"
        "d = ctypes.CDLL(sys.argv[1]); n = ctypes.c_int(); d.cuInit(0); d.cuDeviceGetCount(ctypes.byref(n)); "
        "found = []\n"
        "for i in range(n.value):\n"
        "    b, t = ctypes.create_string_buffer(16), ctypes.c_size_t()\n"
        "    d.cuDeviceGetUuid_v2(b, i); d.cuDeviceTotalMem_v2(ctypes.byref(t), i)\n"
        "    found.append(['GPU-' + str(uuid.UUID(bytes=b.raw)), t.value >> 20])\n"
        "print(json.dumps(found))\n"
    )
    asked = subprocess.run([sys.executable, "-c", script, libcuda], capture_output=True, text=True, check=True)
    return tuple(
        Gpu(uuid=uuid, index=index, model="gpu", memory_mib=mib, minor=Nvml(uuid).minor())
        for index, (uuid, mib) in enumerate(json.loads(asked.stdout))
    )


class PeakSampler(threading.Thread):
    """Samples NVML's memory of processes and their children, every 10 ms, and keeps the maximum of the sum."""

    def __init__(self, uuid: str, pids: Callable[[], set[int]]) -> None:
        super().__init__(daemon=True)
        self._nvml, self._pids, self._over = Nvml(uuid), pids, threading.Event()
        self.peak_bytes, self.samples = 0, 0

    def run(self) -> None:
        while not self._over.wait(0.01):
            mine = self._pids()
            now = [used for pid, used in self._nvml.memory().items() if pid in mine]
            self.samples += bool(now)
            self.peak_bytes = max(self.peak_bytes, sum(now))

    def stop(self) -> None:
        self._over.set()
        self.join()


def family(pid: int) -> set[int]:
    """A process and its descendants that live now."""
    found, left = {pid}, [pid]
    while left:
        current = left.pop()
        try:
            children = Path(f"/proc/{current}/task/{current}/children").read_text().split()
        except OSError:  # it has ended
            continue
        found |= {int(child) for child in children}
        left += [int(child) for child in children]
    return found
