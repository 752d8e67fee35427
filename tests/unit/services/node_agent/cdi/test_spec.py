"""CDI specs: their content and their files."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from services.node_agent.cdi import ld_cache, spec
from services.node_agent.cdi.spec import ContainerEdits, DeviceNode, Hook, Mount
from services.node_agent.cdi.writer import SpecDir

UID = "3f0c9b1e-7a55-4c1b-9a43-2f6f0f3a8d11"


def test_a_spec_has_the_format_of_cdi_0_5_0() -> None:
    edits = ContainerEdits(
        env=("A=b=c",),
        device_nodes=(DeviceNode(path="/dev/x", host_path="/y/dev/x", permissions="rw"),),
        mounts=(Mount(host_path="/l", container_path="/m", options=("ro",)),),
        hooks=(Hook(hook_name="createContainer", path="/h", args=("h", "do")),),
    )
    assert json.loads(spec.document("kerf.dev/slice", "k1", edits)) == {
        "cdiVersion": "0.5.0",
        "kind": "kerf.dev/slice",
        "devices": [
            {
                "name": "k1",
                "containerEdits": {
                    "env": ["A=b=c"],
                    "deviceNodes": [{"path": "/dev/x", "hostPath": "/y/dev/x", "permissions": "rw"}],
                    "mounts": [{"hostPath": "/l", "containerPath": "/m", "options": ["ro"]}],
                    "hooks": [{"hookName": "createContainer", "path": "/h", "args": ["h", "do"]}],
                },
            }
        ],
    }


def test_edits_are_merged_once_each_and_the_last_value_of_a_variable_counts() -> None:
    node = DeviceNode(path="/dev/x")
    one, two = (
        ContainerEdits(env=("A=1", "B=1"), device_nodes=(node,)),
        ContainerEdits(env=("A=2",), device_nodes=(node, DeviceNode(path="/dev/y"))),
    )
    both = spec.merged(one, two)
    assert (both.env, [n.path for n in both.device_nodes]) == (("A=2", "B=1"), ["/dev/x", "/dev/y"])


def test_only_the_specs_of_ended_containers_are_removed(tmp_path: Path) -> None:
    """The specs of a container whose name has the same beginning stay, and so do files of other programs."""
    directory = SpecDir(tmp_path / "cdi", "kerf.dev/slice")
    for container, name in (("web", "k1"), ("web-2", "k2"), ("web", "k3")):
        directory.write((name,), UID, container, ContainerEdits(env=("A=1",)))
    (tmp_path / "cdi" / "nvidia.yaml").touch()
    directory.keep_only({(UID, "web-2")})
    assert sorted(path.name for path in (tmp_path / "cdi").iterdir()) == [
        f"kerf-slice-{UID}-web-2-k2.json",
        "nvidia.yaml",
    ]


def test_the_spec_of_a_claim_is_kept_as_long_as_its_entry(tmp_path: Path) -> None:
    """Its device's name contains the claim's UID, which has dashes."""
    directory, entry = SpecDir(tmp_path / "cdi", "kerf.dev/slice"), "claim/mine/gpu"
    directory.write((f"claim-{UID}-gpu",), UID, entry, ContainerEdits(env=("A=1",)))
    directory.keep_only({(UID, entry)})
    assert [path.name for path in (tmp_path / "cdi").iterdir()] == [
        f"kerf-slice-{UID}-claim.mine.gpu-claim-{UID}-gpu.json"
    ]
    directory.keep_only(())
    assert list((tmp_path / "cdi").iterdir()) == []


def test_directories_are_read_from_the_ld_cache(tmp_path: Path) -> None:
    names = (("libcuda.so.1", "/opt/nvidia/lib/libcuda.so.1"), ("libc.so.6", "/lib/libc.so.6"))
    header, entries, strings = 48, b"", b""
    base = header + 24 * len(names)
    for name, path in names:
        entries += struct.pack("<iIIIQ", 0x303, base + len(strings), base + len(strings) + len(name) + 1, 0, 0)
        strings += name.encode() + b"\0" + path.encode() + b"\0"
    old_part = b"ld.so-1.7.0\0" + bytes(4)
    cache = tmp_path / "ld.so.cache"
    cache.write_bytes(
        old_part + struct.pack("<20sII20x", b"glibc-ld.so.cache1.1", len(names), len(strings)) + entries + strings
    )
    assert ld_cache.directories(cache, "libcuda.so.1") == ("/opt/nvidia/lib",)
    cache.write_bytes(cache.read_bytes()[:90])
    assert ld_cache.directories(cache, "libcuda.so.1") == ()
    assert ld_cache.directories(tmp_path / "none", "libcuda.so.1") == ()
    real = Path("/etc/ld.so.cache")
    if real.exists():
        assert ld_cache.directories(real, "libc.so.6"), "this machine's own cache, made by its ldconfig"
