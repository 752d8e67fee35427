"""NVML for an agent in a pod that NVIDIA's runtime did not touch: the host's library, by its path under the host's root."""

from __future__ import annotations

import ctypes

import structlog

from services.node_agent.cdi import driver_files
from services.node_agent.cdi.host import Host

log = structlog.get_logger("nvml")
_NAME = "libnvidia-ml.so.1"


def preload(host: Host) -> None:
    """Does nothing where the dynamic linker finds NVML itself, or no driver is loaded.

    Whoever then asks for libnvidia-ml.so.1 gets what is loaded already: the linker compares sonames. Only that one file is
    taken from the host, so its libc does not come along.
    """
    version = host.driver_version()
    if not version:
        return
    try:
        ctypes.CDLL(_NAME, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        try:
            libraries = driver_files.find(host, version)
            path = host.seen(host.of_driver(f"{libraries.directory}/libnvidia-ml.so.{version}"))
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except (OSError, ValueError) as error:
            log.warning("nvml_not_found", why=str(error))
            return
        log.info("nvml_of_the_host", path=str(path))
