"""What the container runtime can do for us, and whether it lets pods see GPUs that nobody gave them. Pure.

CDI devices come through CRI with containerd 2.0, with 1.7 where `enable_cdi = true`, and with CRI-O 1.23. An older runtime
ignores them silently: the container would start without its GPU, so nothing may be offered.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import PurePosixPath
from typing import Any, Literal

import msgspec

_VERSION = re.compile(r"v?([0-9]+)\.([0-9]+)")
_NVIDIA = "nvidia"


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """As CRI's Version and Status describe it. `config`: containerd's own, where it says so."""

    name: str
    version: str
    config: dict[str, Any] = {}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    cdi: Literal["yes", "no", "unknown"]
    sentence: str = ""
    """Why not, or why nobody knows."""


def judge(runtime: Runtime, cdi_dir: str) -> Verdict:
    what = f"{runtime.name} {runtime.version}"
    found = _VERSION.match(runtime.version)
    if found is None or runtime.name not in ("containerd", "cri-o"):
        return Verdict(cdi="unknown", sentence=f"{what}: it is not known whether this runtime has CDI")
    version = int(found[1]), int(found[2])
    if version < ((1, 7) if runtime.name == "containerd" else (1, 23)):
        return Verdict(
            cdi="no",
            sentence=f"{what} has no CDI: upgrade to containerd 2 (or 1.7 with enable_cdi = true), or CRI-O 1.23",
        )
    enabled = runtime.config.get("enableCDI", None if version == (1, 7) else True)
    if runtime.name == "containerd" and (enabled is False or (version == (1, 7) and runtime.config and not enabled)):
        return Verdict(
            cdi="no", sentence=f"{what} has CDI switched off: set enable_cdi = true in its CRI plugin's configuration"
        )
    directories = runtime.config.get("cdiSpecDirs")
    if directories is not None and _plain(cdi_dir) not in {_plain(directory) for directory in directories}:
        return Verdict(
            cdi="no",
            sentence=f"{what} reads CDI specs in {', '.join(directories) or 'no directory'}, and cdi_dir is {cdi_dir}: set the one or the other",
        )
    if version == (1, 7) and not runtime.config:
        return Verdict(cdi="unknown", sentence=f"{what} does not say whether CDI is on")
    return Verdict(cdi="yes")


def exposure(runtime: Runtime, toolkit_config: str) -> str:
    """Why pods that asked for no GPU see all of them, in a sentence; empty where they do not, or nobody knows.

    `toolkit_config`: the content of nvidia-container-runtime/config.toml; empty where there is none.
    """
    containerd = runtime.config.get("containerd") or {}
    name = str(containerd.get("defaultRuntimeName") or "")
    options = ((containerd.get("runtimes") or {}).get(name) or {}).get("options") or {}
    if _NVIDIA not in name and _NVIDIA not in str(options.get("BinaryName", "")):
        return ""
    try:
        accepts = tomllib.loads(toolkit_config).get("accept-nvidia-visible-devices-envvar-when-unprivileged", True)
    except tomllib.TOMLDecodeError:
        accepts = True
    if not accepts:
        return ""
    return (
        f"the runtime's default is {name!r}, and any image that sets NVIDIA_VISIBLE_DEVICES=all, as CUDA's do, sees every GPU without asking for one: "
        "set accept-nvidia-visible-devices-envvar-when-unprivileged = false in NVIDIA's container runtime configuration"
    )


def _plain(path: str) -> str:
    """/var/run is /run everywhere."""
    plain = str(PurePosixPath(path))
    return plain.removeprefix("/var") if plain.startswith("/var/run/") else plain
