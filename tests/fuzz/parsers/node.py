"""What a node agent reads of its host: checkpoints, control blocks that containers write, NRI, CRI, measurements."""

from __future__ import annotations

import ctypes
import gzip
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from services.node_agent import state
from services.node_agent.canary.bandwidth import Bandwidth
from services.node_agent.canary.verdict import Proof, not_policed, not_time_sliced, offered
from services.node_agent.cdi.ld_cache import directories
from services.node_agent.cdi.toolkit import _Spec
from services.node_agent.handover import kubelet_checkpoint
from services.node_agent.handover.nri import session
from services.node_agent.handover.nri.affinity import Allowed, numbers
from services.node_agent.handover.nri.frames import Decoder, FramingError
from services.node_agent.handover.nri.plugin import CpuPlugin
from services.node_agent.handover.runtime import Runtime, exposure, judge_cdi
from services.node_agent.kubelet_api.container_runtime_pb2 import StatusResponse
from services.node_agent.kubelet_api.device_plugin_pb2 import CDIDevice, ContainerAllocateResponse
from services.node_agent.measured_files import load
from services.node_agent.mig import record
from services.node_agent.nri_api import nri_pb2 as pb
from services.node_agent.strategies import layout
from services.node_agent.strategies.control_block import ControlBlock, GpuRule, Rules
from shared.contracts.examples import EXAMPLES
from shared.formats import UNREADABLE, decode_yaml
from shared.model.gpu import Gpu
from tests.fuzz.parser import Parser, promise

ROOT = Path(__file__).resolve().parents[3]
UUID = "GPU-5a1c9a60-3f0e-4c53-8a53-3d1d0a8d7e11"
RULES = Rules(gpus=(GpuRule(uuid=UUID, compute_milli=250),))
_ALLOWED = Allowed(cpus=frozenset(range(8)), mems=frozenset({0, 1}), node_bytes={0: 1 << 32, 1: 1 << 32})
_GPU = Gpu(uuid=UUID, index=0, model="H100", memory_mib=1, cpus="0-3", numa_node=0)


def parsers() -> tuple[Parser, ...]:
    grant = EXAMPLES["NodeGrant"]
    checkpoint = state.Checkpoint(
        node="n",
        term=3,
        boot_id="b",
        inventory=EXAMPLES["Inventory"],
        known=(state.KnownGrant(grant=grant, releasing=True, in_force=grant.grant),),
        leases=(state.Lease(uid="u", container="c", grant_id="g", boot_id="b"),),
        tombstones=("a", "b"),
        unbooked=(state.Released(grant_id="g", uid="u"),),
        ailments=(state.Ailment(uuid=UUID, reason="Xid 79", boot_id="b"),),
        cordons=(state.Cordon(by="alice"),),
    )
    kubelet = _kubelet_checkpoint()
    proof = Proof(driver_version="580.1", library="x", ok=True, paths=("cuMemAlloc",), turns_milli=(500, 500))
    bandwidth = Bandwidth(driver_version="580.1", pci_bus_id="0", to_device_mb_s=5, from_device_mb_s=6)
    conversation = gzip.decompress((ROOT / "tests/data/nri/containerd-2.4.2-runtime.bin.gz").read_bytes())
    return (
        Parser(
            name="agent-checkpoint",
            form="json",
            examples=(_tree(checkpoint),),
            read=_checkpoint,
            errors=(state.CheckpointError,),
            weight=4,
        ),
        Parser(
            name="agent-checkpoint-bytes",
            form="bytes",
            examples=(state.write(checkpoint),),
            read=_checkpoint,
            errors=(state.CheckpointError,),
        ),
        Parser(
            name="kubelet-checkpoint",
            form="json",
            examples=(msgspec.json.decode(kubelet),),
            read=_kubelet,
            errors=(kubelet_checkpoint.KubeletCheckpointError,),
            weight=3,
        ),
        Parser(
            name="kubelet-checkpoint-bytes",
            form="bytes",
            examples=(kubelet,),
            read=_kubelet,
            errors=(kubelet_checkpoint.KubeletCheckpointError,),
        ),
        Parser(name="control-counters", form="bytes", examples=_pages("counters"), read=_page("counters"), weight=4),
        Parser(name="control-signal", form="bytes", examples=_pages("signal"), read=_page("signal"), weight=2),
        Parser(
            name="nri-conversation",
            form="bytes",
            examples=(conversation, conversation[: len(conversation) // 3]),
            read=_conversation,
            errors=(FramingError, session.Rejected),
            weight=4,
        ),
        *(
            Parser(
                name=f"nri-{method}",
                form="bytes",
                examples=(message.SerializeToString(),),
                read=_nri(method),
                errors=(session.DecodeError, ValueError),
                weight=2,
            )
            for method, message in _nri_messages().items()
        ),
        Parser(name="cpuset", form="text", examples=("0-3,8", "1", ""), read=_cpuset, errors=(ValueError,)),
        Parser(
            name="cri-status", form="bytes", examples=(_cri_status(),), read=_cri, errors=(_ProtobufError, *UNREADABLE)
        ),
        Parser(name="cri-config", form="json", examples=(_CRI_CONFIG,), read=_cri_config, errors=UNREADABLE, weight=3),
        Parser(name="cri-version", form="text", examples=("v2.1.4", "1.7.0"), read=_cri_version),
        Parser(name="proof", form="json", examples=(_tree(proof),), read=_proof),
        Parser(name="proof-bytes", form="bytes", examples=(msgspec.json.encode(proof),), read=_proof),
        Parser(
            name="bandwidth", form="json", examples=(_tree(bandwidth),), read=_file(lambda path: load(path, Bandwidth))
        ),
        Parser(
            name="mig-record",
            form="json",
            examples=({"boot_id": "b", "own": [{"place": {"gpu": "g", "profile": "1g.10gb", "start": 0}, "id": 1}]},),
            read=_file(lambda path: record.load(path, "b")),
            errors=UNREADABLE,
        ),
        Parser(
            name="ld-cache",
            form="bytes",
            examples=(_ld_cache(),),
            read=_file(lambda path: directories(path, "libcuda.so.1")),
        ),
        Parser(
            name="toolkit-spec",
            form="text",
            examples=('{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[],"containerEdits":{"env":["A=b"]}}',),
            read=lambda data: decode_yaml(data, _Spec),
            errors=(msgspec.DecodeError,),
        ),
    )


class _ProtobufError(Exception):
    """Stands for the error of protobuf's C library, which gRPC reports itself."""


def _tree(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="kerf-fuzz-"))


def _file(read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def from_file(data: bytes) -> object:
        path = _folder() / "file"
        path.write_bytes(data)
        return read(path)

    return from_file


def _checkpoint(data: bytes) -> object:
    found = state.read(data, "n")
    promise(state.read(state.write(found), "n") == found, "the checkpoint is another one when it is read again")
    return found


# --- the kubelet ------------------------------------------------------------------------------------------------


def _kubelet_checkpoint() -> bytes:
    answer = ContainerAllocateResponse(cdi_devices=[CDIDevice(name="kerf.dev/slice=a")], annotations={"a": "b"})
    entry = {
        "PodUID": "u",
        "ContainerName": "c",
        "ResourceName": "kerf.dev/slot",
        "DeviceIDs": {"-1": ["s1", "s2"]},
        "AllocResp": answer.SerializeToString(),
    }
    return msgspec.json.encode(
        {"Data": {"PodDeviceEntries": [entry, entry], "RegisteredDevices": {"a": ["b"]}}, "Checksum": 1}
    )


def _kubelet(data: bytes) -> object:
    return kubelet_checkpoint.read(data, "kerf.dev/slot", "kerf.dev/slice")


# --- control blocks ---------------------------------------------------------------------------------------------


@cache
def _block() -> ControlBlock:
    block = ControlBlock(_folder() / "block", lambda: 7)
    block.write(RULES, context_bytes=1)
    return block


def _pages(name: str) -> list[bytes]:
    kind, magic = layout.KINDS[name]
    fresh = bytes(kind(magic=magic, version=layout.VERSION, size_bytes=ctypes.sizeof(kind)))
    full = bytearray(fresh)
    full[12:] = b"\xff" * (len(full) - 12)
    odd = bytearray(fresh)
    odd[12:] = bytes(number % 251 for number in range(len(odd) - 12))
    return [fresh, bytes(full), bytes(odd), fresh + b"\0" * 4096]


def _page(name: str) -> Callable[[bytes], object]:
    """As the agent reads it: with pread alone, whatever the container does meanwhile."""

    def read(data: bytes) -> object:
        block = _block()
        for other in ("counters", "signal"):
            _overwrite(block.folder / other, data if other == name else _pages(other)[0])
        reading = block.read()
        wants, busy_ns = block.wants(), block.busy_until_ns()
        promise(all(gpu.uuid == UUID for gpu in reading.gpus), "a container has made up a GPU")
        promise(all(0 <= gpu.account_bytes <= layout.ACCOUNT_BYTES for gpu in reading.gpus), "an account is beyond it")
        promise(all(0 <= gpu.held_bytes <= gpu.account_bytes for gpu in reading.gpus), "more is held than charged")
        promise(block.limit_bytes(UUID) == RULES.gpus[0].memory_limit_bytes, "a container has changed its orders")
        size = ctypes.sizeof(layout.KINDS[name][0])
        if len(data) > size and (name == "signal" or not reading.damage.startswith("the header")):
            promise((block.folder / name).stat().st_size <= max(size, len(data)), "the file has grown")
        return reading, wants, busy_ns

    return read


def _overwrite(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()


# --- NRI and CRI ------------------------------------------------------------------------------------------------


def _plugin() -> CpuPlugin:
    return CpuPlugin(
        gpus_of=lambda uid, container: (_GPU,),
        allowed=lambda group: _ALLOWED,
        memory=True,
        decided=lambda outcome, took_s: None,
    )


def _conversation(data: bytes) -> object:
    decoder, plugin, replies = Decoder(), _plugin(), []
    try:
        for at in range(0, len(data), 1000):
            for message in decoder.feed(data[at : at + 1000]):
                replies.append(session._reply(message, plugin.answer))
    except session.DecodeError as error:
        raise FramingError(str(error)) from error  # as `talk` does
    return replies


def _nri(method: str) -> Callable[[bytes], object]:
    """`answer` lets the container start whatever happens; here it counts what happened."""
    return lambda data: _plugin()._answer(method, data)


def _nri_messages() -> dict[str, Any]:
    cpu = pb.LinuxCPU(cpus="0-3", mems="0-1", shares=pb.OptionalUInt64(value=2048), quota=pb.OptionalInt64(value=5000))
    resources = pb.LinuxResources(cpu=cpu, memory=pb.LinuxMemory(limit=pb.OptionalInt64(value=1 << 30)))
    container = pb.Container(id="i", name="near", linux=pb.LinuxContainer(resources=resources))
    plain = pb.Container(id="i", name="near", linux=pb.LinuxContainer())
    pod = pb.PodSandbox(uid="u", linux=pb.LinuxPodSandbox(cgroup_parent="/kubepods/podu"))
    return {
        "Configure": pb.ConfigureRequest(),
        "Synchronize": pb.SynchronizeRequest(containers=[container, container]),
        "CreateContainer": pb.CreateContainerRequest(pod=pod, container=plain),
        "UpdateContainer": pb.UpdateContainerRequest(pod=pod, container=container, linux_resources=resources),
        "StopContainer": pb.StopContainerRequest(container=container),
    }


def _cpuset(data: bytes) -> object:
    found = numbers(data.decode(errors="replace"))
    promise(len(found) <= 1 << 16, "a list of CPUs fills the memory")
    return found


_CRI_CONFIG = {
    "containerd": {
        "defaultRuntimeName": "nvidia",
        "runtimes": {"nvidia": {"options": {"BinaryName": "/usr/bin/nvidia-container-runtime"}}},
    },
    "enableCDI": True,
    "cdiSpecDirs": ["/etc/cdi", "/var/run/cdi"],
}


def _cri_status() -> bytes:
    made: bytes = StatusResponse(info={"config": msgspec.json.encode(_CRI_CONFIG).decode()}).SerializeToString()
    return made


def _cri(data: bytes) -> object:
    try:
        status = StatusResponse.FromString(data)
    except session.DecodeError as error:
        raise _ProtobufError from error
    return _cri_config(status.info["config"].encode())


def _cri_config(data: bytes) -> object:
    config = msgspec.json.decode(data, type=dict)
    runtime = Runtime(name="containerd", version="2.1.4", config=config)
    return judge_cdi(runtime, "/var/run/cdi"), exposure(runtime, "accept = true")


def _cri_version(data: bytes) -> object:
    text = data.decode(errors="replace")
    return [judge_cdi(Runtime(name=name, version=text), "/var/run/cdi") for name in ("containerd", "cri-o")], exposure(
        Runtime(name="containerd", version=text, config=_CRI_CONFIG), text
    )


# --- measurements -----------------------------------------------------------------------------------------------


def _proof(data: bytes) -> object:
    found = _file(lambda path: load(path, Proof))(data)
    if isinstance(found, Proof):
        offered(found, found.driver_version, found.library)
        not_time_sliced(found)
        not_policed(found)
    return found


def _ld_cache() -> bytes:
    from services.node_agent.cdi import ld_cache

    names = b"libcuda.so.1\0/usr/lib/libcuda.so.1\0"
    header, entry = ld_cache._HEADER, ld_cache._ENTRY
    at = header.size + entry.size
    return header.pack(ld_cache._MAGIC, 1, len(names)) + entry.pack(1, at, at + 13, 0, 0) + names
