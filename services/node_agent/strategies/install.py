"""Installs the interposer on the host, from where it is mounted into containers.

Each build has its own folder, so that an upgrade of the agent does not change the library of running containers. What
is right stays the same file, because running containers have it mounted; what is not is replaced as a whole, and they
keep what they have. Without a library the linker only warns, and the container would run without any limit: so nothing
is taken for right by its name alone, and no container starts on files that are not.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from services.node_agent.checkpoint import write_durably
from services.node_agent.strategies import selinux
from services.node_agent.strategies.base import NodeTools, Offer
from services.node_agent.strategies.interposer import CONTAINER_LIBRARY, PRELOAD
from services.node_agent.strategies.slice_registry import SliceRegistry
from shared.service import Context

LIBRARY = "libkerf.so"


class Installation:
    """The interposer of this agent's image, on the host."""

    def __init__(self, ctx: Context, build: Path, folder: Path, digest: str) -> None:
        """`build`: the folder of the image's library. `digest`: its digest; empty if there is none."""
        self._ctx, self._build, self._folder, self._digest = ctx, build, folder, digest
        self.library = folder / digest / LIBRARY
        self._busy = asyncio.Lock()
        self.problem = "it is not installed yet" if digest else f"there is no {LIBRARY} in {build}"
        """Why containers cannot get it; empty if they can."""

    def tools(self, registry: SliceRegistry, *, offer: Callable[[], Offer], clock: Callable[[], int]) -> NodeTools:
        """The tools of the strategies' drivers, with this library."""
        return NodeTools(
            registry=registry, library=self.library, not_installed=lambda: self.problem, offer=offer, clock=clock
        )

    async def install(self) -> None:
        """Installs it, unless that was done. Logs why it cannot; the next call tries again."""
        async with self._busy:
            if not self.problem or not self._digest:
                return
            before, why = self.problem, ""
            try:
                await asyncio.to_thread(install, self._build, self._folder, self._digest)
            except OSError as error:
                why = str(error)
            self.problem = why
        if not why:
            self._ctx.health.clear("library")
            self._ctx.log.info("interposer_installed", library=str(self.library))
        elif why != before:
            self._ctx.health.set("library", ok=True, detail=f"slices that need the interposer do not start: {why}")
            self._ctx.log.error(
                "interposer_not_installed", error=why, effect="slices that need it do not start; each start tries again"
            )


def install(build: Path, folder: Path, digest: str) -> Path:
    """Copies the library and writes its `ld.so.preload` beside it. Returns the library's path on the host. Raises
    OSError."""
    at = folder / digest
    renew(at / LIBRARY, (build / LIBRARY).read_bytes(), 0o755)
    renew(at / PRELOAD, f"{CONTAINER_LIBRARY}\n".encode(), 0o644)
    selinux.label(at / LIBRARY, at / PRELOAD)
    return at / LIBRARY


def renew(path: Path, content: bytes, mode: int) -> None:
    """Replaces a file that containers have mounted, as `write_durably`, unless this is in it already. Raises OSError.

    A bind mount is of the file and not of its name, so running containers keep the former one with what is in it. A
    write into that one would take it from them for a moment, and for good if it fails.
    """
    with contextlib.suppress(OSError):  # what cannot be read is not right
        if path.read_bytes() == content:
            return
    write_durably(path, content, mode)
