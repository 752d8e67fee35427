"""Loads the host's NVML library for an agent in a pod that NVIDIA's runtime has not set up."""

from __future__ import annotations

import ctypes

import structlog

from services.node_agent.cdi import driver_files
from services.node_agent.cdi.host import Host

log = structlog.get_logger("nvml")
_NAME = "libnvidia-ml.so.1"


def preload(host: Host) -> None:
    """Loads NVML from the host. Does nothing if the dynamic linker finds NVML itself, or no driver is loaded.

    A later dlopen of libnvidia-ml.so.1 gets the loaded library, because the linker compares sonames. Only this file is
    taken from the host, so its libc is not loaded.
    """
    try:
        version = host.driver_version()
        if not version or _loads(_NAME):
            return
        libraries = driver_files.find(host, version)
        path = host.seen(host.of_driver(f"{libraries.directory}/libnvidia-ml.so.{version}"))
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except (OSError, ValueError) as error:
        log.warning("nvml_not_found", why=str(error))
        return
    log.info("nvml_of_the_host", path=str(path))


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
