"""The driver part of a slice's edits: golden edits from hosts made of plain files."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.cdi.driver import Driver, MigIds
from services.node_agent.cdi.spec import ContainerEdits, DeviceNode
from services.node_agent.mig.layout import Place
from shared.model.mig import MigInstance
from tests.unit.services.node_agent.cdi.hosts import DEBIAN, GPUS, NVRM, VERSION, FakeHost, share


def edits(
    host: FakeHost,
    *shares: object,
    driver_root: str = "/",
    mig_ids: MigIds | None = None,
    machine: str = "x86_64",
) -> ContainerEdits:
    return Driver(host.seen(driver_root), machine).edits(shares or (share(),), GPUS, mig_ids or {})  # type: ignore[arg-type]


def nodes(found: ContainerEdits) -> list[str]:
    return [node.path for node in found.device_nodes]


def mounted(found: ContainerEdits) -> dict[str, str]:
    return {mount.container_path: mount.host_path for mount in found.mounts}


def test_without_a_driver_no_container_starts(tmp_path: Path) -> None:
    """Its GPUs stay known while it is unloaded, and a container would start without them."""
    host = FakeHost(tmp_path).nodes().libraries()
    with pytest.raises(ValueError, match="no NVIDIA driver is loaded"):
        edits(host)
    assert "/dev/nvidia3" in nodes(edits(host.module()))


def test_a_slice_has_its_gpu_nodes_by_minor_number_and_the_control_nodes(tmp_path: Path) -> None:
    host = FakeHost(tmp_path).module().nodes().libraries()
    assert nodes(edits(host, share("GPU-a"))) == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia3",
    ]
    assert nodes(edits(host, share("GPU-b"), share("GPU-a")))[-2:] == ["/dev/nvidia0", "/dev/nvidia3"]
    host.nodes("nvidia-modeset")
    assert "/dev/nvidia-modeset" in nodes(edits(host))


def test_a_missing_uvm_node_is_an_error_that_says_how_to_create_it(tmp_path: Path) -> None:
    """After a reboot its module may not be loaded yet, and CUDA would fail in the container without an explanation."""
    host = FakeHost(tmp_path).module().nodes().libraries()
    (tmp_path / "dev/nvidia-uvm").unlink()
    with pytest.raises(ValueError, match=r"no device node /dev/nvidia-uvm; create it with nvidia-modprobe -u -c=0"):
        edits(host)
    host.nodes()
    assert "/dev/nvidia-uvm" in nodes(edits(host)), "and it works as soon as the node exists"


def test_without_a_hook_libraries_are_mounted_under_all_names_where_glibc_looks(tmp_path: Path) -> None:
    found = edits(FakeHost(tmp_path).module().nodes().libraries())
    host_cuda = f"/{DEBIAN}/libcuda.so.{VERSION}"
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64"):
        assert {
            f"{folder}/{name}": host_cuda for name in (f"libcuda.so.{VERSION}", "libcuda.so.1", "libcuda.so")
        }.items() <= mounted(found).items()
    assert mounted(found)["/usr/bin/nvidia-smi"] == "/usr/bin/nvidia-smi"
    assert len(found.mounts) == 2 * 7 + 1, "three libraries, four links, twice, and a binary; no libc"
    assert found.hooks == ()
    assert found.mounts[0].options == ("ro", "nosuid", "nodev", "rbind", "rprivate")


@pytest.mark.parametrize(
    ("path", "command"),
    [("usr/bin/nvidia-cdi-hook", ("nvidia-cdi-hook",)), ("usr/bin/nvidia-ctk", ("nvidia-ctk", "hook"))],
)
def test_with_a_hook_libraries_keep_the_paths_of_the_host(tmp_path: Path, path: str, command: tuple[str, ...]) -> None:
    host = FakeHost(tmp_path).module().nodes().libraries()
    host.put(path)
    found = edits(host)
    assert mounted(found)[f"/{DEBIAN}/libcuda.so.{VERSION}"] == f"/{DEBIAN}/libcuda.so.{VERSION}"
    assert f"/{DEBIAN}/libcuda.so.1" not in mounted(found)
    links, cache = found.hooks
    assert links.args[: len(command) + 1] == (*command, "create-symlinks")
    assert f"libcuda.so.{VERSION}::/{DEBIAN}/libcuda.so.1" in links.args
    assert f"libcuda.so.{VERSION}::/{DEBIAN}/libcuda.so" in links.args
    assert cache.args == (*command, "update-ldcache", "--folder", f"/{DEBIAN}")


def test_the_spec_of_the_toolkit_is_preferred(tmp_path: Path) -> None:
    found = edits(FakeHost(tmp_path).module().nodes().libraries().toolkit())
    assert nodes(found) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia3"]
    assert len(found.mounts) == 1
    assert found.hooks[0].env == ("NVIDIA_CTK_DEBUG=false",)


@pytest.mark.parametrize(
    "changes",
    [
        {"mounts": [{"hostPath": "/usr/lib/libcuda.so.550.1", "containerPath": "/usr/lib/libcuda.so.550.1"}]},
        {"deviceNodes": [{"path": "/dev/nvidia-gone"}]},
        {"intelRdt": {"closID": "x"}},
        {"env": "no list"},
    ],
    ids=["of another driver", "names a file that does not exist", "with unknown edits", "malformed"],
)
def test_a_toolkit_spec_with_unusable_parts_is_ignored(tmp_path: Path, changes: dict[str, object]) -> None:
    found = edits(FakeHost(tmp_path).module().nodes().libraries().toolkit(**changes))
    assert f"/{DEBIAN}/libnvidia-ml.so.{VERSION}" in mounted(found)


def test_a_driver_container_has_its_own_root(tmp_path: Path) -> None:
    host = FakeHost(tmp_path).module()
    inside = FakeHost(tmp_path / "run/nvidia/driver").nodes().libraries("usr/lib64")
    assert inside.root.is_dir()
    found = edits(host, driver_root="/run/nvidia/driver")
    assert mounted(found)["/usr/lib64/libcuda.so.1"] == f"/run/nvidia/driver/usr/lib64/libcuda.so.{VERSION}"
    assert {node.path: node.host_path for node in found.device_nodes}[
        "/dev/nvidia3"
    ] == "/run/nvidia/driver/dev/nvidia3"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (NVRM, VERSION),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n"
            "GCC version: 12\n",
            "535.129.03",
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95  Release Build  (root@x)\n", "580.95"),
    ],
)
def test_the_driver_version_is_read_from_the_kernel(tmp_path: Path, text: str, version: str) -> None:
    assert FakeHost(tmp_path).module(text).seen().driver_version() == version


def test_an_unreadable_driver_version_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="contains no driver version"):
        edits(FakeHost(tmp_path).module("NVRM version: something new\n").nodes().libraries())


def test_libraries_of_another_version_are_not_used(tmp_path: Path) -> None:
    host = FakeHost(tmp_path).module().nodes().libraries(version="550.54.14")
    with pytest.raises(ValueError, match=f"libcuda.so.{VERSION} is not in /"):
        edits(host)


def test_the_common_edits_follow_a_new_driver(tmp_path: Path) -> None:
    host = FakeHost(tmp_path).module().nodes().libraries()
    driver = Driver(host.seen(), "x86_64")
    assert f"/{DEBIAN}/libcuda.so.{VERSION}" in mounted(driver.edits((share(),), GPUS, {}))
    host.module(NVRM.replace(VERSION, "590.10"))
    for name in ("libcuda", "libnvidia-ml"):
        host.put(f"{DEBIAN}/{name}.so.590.10")
    assert f"/{DEBIAN}/libcuda.so.590.10" in mounted(driver.edits((share(),), GPUS, {}))


def test_the_common_edits_follow_the_files_that_they_name(tmp_path: Path) -> None:
    """The runtime refuses a container where its spec names a file that does not exist."""
    host = FakeHost(tmp_path).module().nodes().libraries()
    driver = Driver(host.seen(), "x86_64")

    def hosts() -> set[str]:
        found = driver.edits((share(),), GPUS, {})
        return {mount.host_path for mount in found.mounts} | {hook.path for hook in found.hooks}

    socket, hook, binary = "run/nvidia-persistenced/socket", "usr/bin/nvidia-cdi-hook", "usr/bin/nvidia-smi"
    library = f"/{DEBIAN}/libnvidia-ml.so.{VERSION}"
    assert {f"/{socket}", f"/{hook}", f"/{binary}"} & hosts() == {f"/{binary}"}
    for path in (socket, hook):
        host.put(path)
        assert f"/{path}" in hosts()
    for path in (socket, hook, binary):
        (tmp_path / path).unlink()
        assert f"/{path}" not in hosts()
    assert library in hosts()
    (tmp_path / library.lstrip("/")).unlink()
    assert library not in hosts()
    host.put("run/toolkit")
    mounts = [{"hostPath": path, "containerPath": path} for path in (f"/{DEBIAN}/libcuda.so.{VERSION}", "/run/toolkit")]
    host.toolkit(mounts=mounts)
    assert "/run/toolkit" in hosts()
    (tmp_path / "run/toolkit").unlink()
    assert "/run/toolkit" not in hosts(), "then the toolkit's spec is not used"
    (tmp_path / DEBIAN / f"libcuda.so.{VERSION}").unlink()
    for _ in range(2):
        with pytest.raises(ValueError, match=f"libcuda.so.{VERSION} is not in /"):
            driver.edits((share(),), GPUS, {})


def test_a_gpu_without_a_device_node_is_an_error(tmp_path: Path) -> None:
    host = FakeHost(tmp_path).module().nodes().libraries()
    (tmp_path / "dev/nvidia3").unlink()
    with pytest.raises(ValueError, match="no device node /dev/nvidia3"):
        edits(host)
    with pytest.raises(ValueError, match="NVML reports no device node for GPU GPU-unknown"):
        edits(host, share("GPU-unknown"))


def test_a_mig_instance_has_the_nodes_of_its_capabilities(tmp_path: Path) -> None:
    host = FakeHost(tmp_path).module().nodes("nvidia-caps/nvidia-cap30", "nvidia-caps/nvidia-cap31").libraries()
    for path, number in (("gi2/access", 30), ("gi2/ci0/access", 31)):
        host.put(
            f"proc/driver/nvidia/capabilities/gpu3/mig/{path}",
            f"DeviceFileMinor: {number}\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
        )
    slice_of = share(mig=MigInstance(profile="3g.71gb", start=0, uuid="MIG-x"))
    place = Place(gpu="GPU-a", profile="3g.71gb", start=0)
    assert nodes(edits(host, slice_of, mig_ids={place: (2, 0)}))[-3:] == [
        "/dev/nvidia3",
        "/dev/nvidia-caps/nvidia-cap30",
        "/dev/nvidia-caps/nvidia-cap31",
    ]
    with pytest.raises(ValueError, match="no capability for MIG instance 5/0"):
        edits(host, slice_of, mig_ids={place: (5, 0)})
    with pytest.raises(ValueError, match=r"NVML does not know MIG instance 3g\.71gb of GPU GPU-a"):
        edits(host, slice_of)


def test_nodes_that_nobody_has_made_for_a_new_instance_are_made_in_the_container(tmp_path: Path) -> None:
    """The driver registers the capabilities of an instance that is made, and no device nodes for them."""
    host = FakeHost(tmp_path).module().nodes().libraries()
    for path, number in (("gi2/access", 30), ("gi2/ci0/access", 31)):
        host.put(f"proc/driver/nvidia/capabilities/gpu3/mig/{path}", f"DeviceFileMinor: {number}\n")
    place = Place(gpu="GPU-a", profile="3g.71gb", start=0)
    slice_of = share(mig=MigInstance(profile=place.profile, start=place.start))
    host.put("proc/devices", "Character devices:\n  1 mem\n195 nvidia\n\nBlock devices:\n  8 nvidia-caps\n")
    with pytest.raises(ValueError, match=r"no device node /dev/nvidia-caps/nvidia-cap30.*no nvidia-caps in /proc/dev"):
        edits(host, slice_of, mig_ids={place: (2, 0)})
    host.put("proc/devices", "Character devices:\n  1 mem\n195 nvidia\n238 nvidia-caps\n\nBlock devices:\n  8 sd\n")
    assert edits(host, slice_of, mig_ids={place: (2, 0)}).device_nodes[-2:] == tuple(
        DeviceNode(
            path=f"/dev/nvidia-caps/nvidia-cap{number}", type="c", major=238, minor=number, file_mode=0o444,
            permissions="rw",
        )
        for number in (30, 31)
    )  # fmt: skip
