"""Judges whether the container runtime supports CDI, and whether it exposes GPUs to pods without a grant. Pure.

CDI devices pass through CRI with containerd 2.0, with 1.7 if `enable_cdi = true`, and with CRI-O 1.23. An older runtime
ignores them silently: the container would start without its GPU, so the node must offer nothing.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import PurePosixPath
from typing import Any, Literal

import msgspec

_VERSION = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})")
_NVIDIA = "nvidia"


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """The runtime as CRI's Version and Status describe it.

    `config`: containerd's own configuration, if it reports one.
    """

    name: str
    version: str
    config: dict[str, Any] = {}


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    cdi: Literal["yes", "no", "unknown"]
    sentence: str = ""
    """Why it is "no" or "unknown"."""


def judge_cdi(runtime: Runtime, cdi_dir: str) -> Verdict:
    what = f"{runtime.name} {runtime.version}"
    found = _VERSION.match(runtime.version)
    if found is None or runtime.name not in ("containerd", "cri-o"):
        return Verdict(cdi="unknown", sentence=f"{what}: it is not known whether this runtime supports CDI")
    version = int(found[1]), int(found[2])
    if version < ((1, 7) if runtime.name == "containerd" else (1, 23)):
        return Verdict(
            cdi="no",
            sentence=(
                f"{what} does not support CDI: upgrade to containerd 2 (or 1.7 with enable_cdi = true), or CRI-O 1.23"
            ),
        )
    enabled = runtime.config.get("enableCDI", None if version == (1, 7) else True)
    if runtime.name == "containerd" and (enabled is False or (version == (1, 7) and runtime.config and not enabled)):
        return Verdict(
            cdi="no", sentence=f"{what} has CDI disabled: set enable_cdi = true in its CRI plugin's configuration"
        )
    listed = runtime.config.get("cdiSpecDirs")
    directories = [str(one) for one in listed] if isinstance(listed, list) else None
    if directories is not None and _plain(cdi_dir) not in {_plain(directory) for directory in directories}:
        return Verdict(
            cdi="no",
            sentence=(
                f"{what} reads CDI specs from {', '.join(directories) or 'no directory'}, but cdi_dir is "
                f"{cdi_dir}: change one of them"
            ),
        )
    if version == (1, 7) and not runtime.config:
        return Verdict(cdi="unknown", sentence=f"{what} does not report whether CDI is enabled")
    return Verdict(cdi="yes")


def exposure(runtime: Runtime, toolkit_config: str) -> str:
    """Why pods that requested no GPU see all of them; "" if they do not, or if it is not known.

    `toolkit_config`: the content of nvidia-container-runtime/config.toml; "" if there is none.
    """
    containerd = _inside(runtime.config, "containerd")
    name = str(containerd.get("defaultRuntimeName") or "")
    options = _inside(containerd, "runtimes", name, "options")
    if _NVIDIA not in name and _NVIDIA not in str(options.get("BinaryName", "")):
        return ""
    try:
        accepts = tomllib.loads(toolkit_config).get("accept-nvidia-visible-devices-envvar-when-unprivileged", True)
    except (ValueError, RecursionError):  # no TOML, numbers of thousands of digits, endless nesting
        accepts = True
    if not accepts:
        return ""
    return (
        f"the runtime's default is {name!r}, so any image that sets NVIDIA_VISIBLE_DEVICES=all, as CUDA's images do, "
        "sees every GPU without requesting one: set accept-nvidia-visible-devices-envvar-when-unprivileged = false "
        "in NVIDIA's container runtime configuration"
    )


def _inside(config: dict[str, Any], *names: str) -> dict[str, Any]:
    """The object at the end of these names; empty where there is none, as in a configuration of another form."""
    at: Any = config
    for name in names:
        at = at.get(name) if isinstance(at, dict) else None
    return at if isinstance(at, dict) else {}


def _plain(path: str) -> str:
    """Normalises a path: /var/run is a link to /run everywhere."""
    plain = str(PurePosixPath(path))
    return plain.removeprefix("/var") if plain.startswith("/var/run/") else plain
