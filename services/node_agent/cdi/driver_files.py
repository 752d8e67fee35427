"""Finds the driver's files that a container needs, of exactly the version that the kernel module has.

They are found as NVIDIA's container toolkit finds them (pkg/nvcdi/driver-nvml.go): the directory of
libcuda.so.<version>, and every lib*.so.<version> there.

How the container finds the libraries: if the host has nvidia-cdi-hook (or nvidia-ctk), they are mounted at the host's
paths, and its hooks create links and update the container's ld.so.cache. Otherwise each library is mounted under all
its names into the two directories that glibc searches by default, Debian's and Red Hat's. That needs no hook, no cache
and no LD_LIBRARY_PATH, which an image may have set.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from services.node_agent.cdi import ld_cache
from services.node_agent.cdi.host import Host
from services.node_agent.cdi.spec import ContainerEdits, Hook, Mount

_DIRECTORIES = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib",
    "/usr/local/lib",
)
_EVERYWHERE = {
    "x86_64": ("/usr/lib/x86_64-linux-gnu", "/usr/lib64"),
    "aarch64": ("/usr/lib/aarch64-linux-gnu", "/usr/lib64"),
}
"""Where the dynamic linker searches by default, on Debian's family and on Red Hat's."""
_BINARIES = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)
_BINARY_DIRECTORIES = ("/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin")
_SOCKETS = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")
_HOOKS = (
    "/usr/bin/nvidia-cdi-hook",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
    "/usr/bin/nvidia-ctk",
    "/usr/local/nvidia/toolkit/nvidia-ctk",
)
_READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")


class Extras(msgspec.Struct, frozen=True):
    """What is used where the host has it. The binaries are paths in the driver's root."""

    hook: str
    binaries: tuple[str, ...]
    sockets: tuple[str, ...]


class Libraries(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
    """The directory of the libraries, in the driver's root."""
    names: dict[str, tuple[str, ...]]
    """The links to each file, by file name: libcuda.so.580.82.07 has libcuda.so.1 and libcuda.so."""


def edits(host: Host, version: str, machine: str) -> ContainerEdits:
    """The mounts and hooks for this driver version.

    Raises ValueError if its libraries are not found. `machine` as in uname.
    """
    libraries = find(host, version)
    found = extras(host)
    mounts = [*_with_hook(host, libraries)] if found.hook else [*_without_hook(host, libraries, machine)]
    mounts += [
        Mount(host_path=host.of_driver(path), container_path=path, options=_READ_ONLY) for path in found.binaries
    ]
    mounts += [Mount(host_path=path, container_path=path, options=(*_READ_ONLY, "noexec")) for path in found.sockets]
    return ContainerEdits(mounts=tuple(mounts), hooks=_hooks(found.hook, libraries) if found.hook else ())


def extras(host: Host) -> Extras:
    return Extras(
        hook=next((path for path in _HOOKS if host.seen(path).exists()), ""),
        binaries=tuple(_binaries(host)),
        sockets=tuple(path for path in _SOCKETS if host.seen(path).exists()),
    )


def find(host: Host, version: str) -> Libraries:
    """Finds the libraries of this version. Raises ValueError with the directories that were searched."""
    directories = dict.fromkeys(
        (*_DIRECTORIES, *ld_cache.directories(host.seen(host.of_driver("/etc/ld.so.cache")), "libcuda.so.1"))
    )
    for directory in directories:
        folder = host.seen(host.of_driver(directory))
        if (folder / f"libcuda.so.{version}").exists():
            files = sorted(path.name for path in folder.glob(f"lib*.so.{version}"))
            links = dict(_links(folder))
            return Libraries(
                directory=directory,
                names={name: tuple(sorted(link for link in links if _end(link, links) == name)) for name in files},
            )
    raise ValueError(
        f"libcuda.so.{version} is not in {host.driver_root}: looked in {', '.join(directories)}; the "
        "libraries must have the version of the loaded kernel module"
    )


def _with_hook(host: Host, libraries: Libraries) -> Iterator[Mount]:
    for name in libraries.names:
        path = f"{libraries.directory}/{name}"
        yield Mount(host_path=host.of_driver(path), container_path=path, options=_READ_ONLY)


def _without_hook(host: Host, libraries: Libraries, machine: str) -> Iterator[Mount]:
    for directory in _EVERYWHERE.get(machine, (libraries.directory,)):
        for name, links in libraries.names.items():
            for called in (name, *links):
                yield Mount(
                    host_path=host.of_driver(f"{libraries.directory}/{name}"),
                    container_path=f"{directory}/{called}",
                    options=_READ_ONLY,
                )


def _hooks(path: str, libraries: Libraries) -> tuple[Hook, ...]:
    command = (Path(path).name, "hook") if path.endswith("nvidia-ctk") else (Path(path).name,)
    links = [f"{name}::{libraries.directory}/{link}" for name, found in libraries.names.items() for link in found]
    created = Hook(
        hook_name="createContainer",
        path=path,
        args=(*command, "create-symlinks", *(word for link in links for word in ("--link", link))),
    )
    updated = Hook(
        hook_name="createContainer", path=path, args=(*command, "update-ldcache", "--folder", libraries.directory)
    )
    return created, updated


def _binaries(host: Host) -> Iterator[str]:
    for name in _BINARIES:
        found = next(
            (
                f"{folder}/{name}"
                for folder in _BINARY_DIRECTORIES
                if host.seen(host.of_driver(f"{folder}/{name}")).exists()
            ),
            "",
        )
        if found:
            yield found


def _links(folder: Path) -> Iterator[tuple[str, str]]:
    """The library links in a directory, with their targets.

    Links that leave the directory are skipped: an absolute target would be resolved in the agent's own root.
    """
    for path in folder.glob("lib*.so*"):
        if path.is_symlink() and "/" not in (target := str(path.readlink())):
            yield path.name, target


def _end(link: str, links: dict[str, str]) -> str:
    """The end of a chain of links, or "" if it is a circle."""
    seen = {link}
    while (target := links.get(link)) is not None:
        if target in seen:
            return ""
        seen.add(target)
        link = target
    return link


def libcuda(host: Host) -> str:
    """The path of libcuda as this process sees it. "" if no driver is loaded or its files are not found."""
    try:
        version = host.driver_version()
        if not version:
            return ""
        libraries = find(host, version)
    except (OSError, ValueError):
        return ""
    path = host.seen(host.of_driver(f"{libraries.directory}/libcuda.so.{version}"))
    return str(path) if path.exists() else ""
