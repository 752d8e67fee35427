"""The strategy `mps`: containers are clients of one MPS server for each GPU, whose work the GPU runs at the same time.

The active thread percentage is the container's compute, a cap and no reservation. The interposer goes with it, without
a gate: it shows the slice's memory and holds it for all processes of the container together, which MPS does for each
process alone. The pinned memory limit stands behind it, for a process that bypasses the library.

Variables of the container carry percentage and pinned limit, so a program can take them away: the promise is `soft`.
"""

from __future__ import annotations

from services.node_agent.cdi.spec import ContainerEdits, Mount
from services.node_agent.strategies.base import NodeTools, Offer, Unadjustable
from services.node_agent.strategies.interposer import Interposer
from services.node_agent.strategies.rules import Override
from services.node_agent.strategies.slices import Key, Part, Slice
from shared.model.strategy import Strategy

PIPE, SHM = "pipe", "shm"
"""The folders of a GPU's daemon that containers get."""
CONTAINER_PIPE = "/tmp/nvidia-mps"  # noqa: S108 - NVIDIA's default, where a program without the variable looks, too
_OPTIONS = ("rw", "nosuid", "nodev", "bind")


class Mps(Interposer):
    def __init__(self, strategy: Strategy, tools: NodeTools) -> None:
        super().__init__(strategy, tools)
        self._folder, self._offer_mps = tools.mps_folder, tools.offer_mps

    async def probe(self) -> Offer:
        offer = self._offer_mps()
        return self._offer() if offer.ok else offer

    def edits(self, slice_: Slice) -> ContainerEdits:
        """Adds the daemon's folders and the limits of each of the container's processes. Raises ValueError if the
        slice has parts of several GPUs."""
        if len(slice_.parts) != 1:
            raise ValueError(
                f"a container can be a client of one MPS daemon, and this slice has {len(slice_.parts)} GPUs"
            )
        (part,) = slice_.parts
        folder, own = self._folder / part.uuid, super().edits(slice_)
        mounts = (
            Mount(host_path=str(folder / PIPE), container_path=CONTAINER_PIPE, options=_OPTIONS),
            Mount(host_path=str(folder / SHM), container_path="/dev/shm", options=_OPTIONS),  # noqa: S108
        )
        return ContainerEdits(env=client_environment(part, CONTAINER_PIPE), mounts=(*own.mounts, *mounts))

    def adjust(self, key: Key, override: Override) -> None:
        if override.paused or override.closed:
            raise Unadjustable("programs under MPS cannot be paused; the memory of the slice can be shrunk")
        super().adjust(key, override)


def client_environment(part: Part, pipe: str) -> tuple[str, ...]:
    """What makes a program a client with the limits of a part. Its daemon has one GPU, so that GPU is number 0."""
    limits = (f"CUDA_MPS_PIPE_DIRECTORY={pipe}", f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={part.memory_mib}M")
    if not part.compute_milli:
        return limits
    # Rounded down, so that the sum of a GPU's slices is never more than all of it.
    return (*limits, f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={max(1, part.compute_milli // 10)}")
