"""Reads the CDI spec that NVIDIA's container toolkit has written for this host.

Its common edits are what every slice needs, too, and NVIDIA knows them best. They are used only if they are for the
loaded driver version.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from services.node_agent.cdi.host import Host
from services.node_agent.cdi.spec import ContainerEdits
from shared.formats import UNREADABLE, decode_yaml

FILES = ("/etc/cdi/nvidia.yaml", "/etc/cdi/nvidia.json", "/run/cdi/nvidia.yaml", "/run/cdi/nvidia.json")
KIND = "nvidia.com/gpu"


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    container_edits: ContainerEdits = ContainerEdits()


def common_edits(host: Host, version: str) -> tuple[ContainerEdits | None, str]:
    """The common edits, or None and why. An empty reason: there is no such spec."""
    why = ""
    for name in FILES:
        path = host.seen(name)
        if not path.exists():
            continue
        found = _read(path, host, version)
        if isinstance(found, ContainerEdits):
            return found, ""
        why = f"{name}: {found}"
    return None, why


def _read(path: Path, host: Host, version: str) -> ContainerEdits | str:
    try:
        data = path.read_bytes()
        spec = msgspec.json.decode(data, type=_Spec) if path.suffix == ".json" else decode_yaml(data, _Spec)
    except (OSError, *UNREADABLE) as error:
        return f"cannot be used: {error}"
    edits = spec.container_edits
    if spec.kind != KIND:
        return f"is of kind {spec.kind}"
    if not any(mount.host_path.endswith(f"/libcuda.so.{version}") for mount in edits.mounts):
        return f"is not of driver {version}; run nvidia-ctk cdi generate"
    missing = next((name for name in edits.of_host() if not host.seen(name).exists()), None)
    return edits if missing is None else f"names {missing}, which does not exist"
