"""What a container loses because NVML sees more of it than its control block says. Pure.

A container writes its own counters, so it can forge them, and some memory of its processes no call reports. The agent
writes the difference into the orders, which the container cannot write. So a container that forges its account only
lowers its own limit, and one whose processes all forge their tokens gets its share for all of them together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from services.node_agent.strategies.control_block import Surcharge
from services.node_agent.strategies.escapes import PodMemory
from services.node_agent.strategies.overuse import Overuse, ThrottleQuotas, update_quotas
from services.node_agent.strategies.slices import Key, Slice
from shared.model.units import MIB

SAMPLES = 3
"""Memory lowers the limit if so many samples in a row show it."""
_NOTHING = (0,) * SAMPLES


class Surcharger:
    def __init__(self) -> None:
        self._hidden_mib: dict[tuple[str, str], tuple[int, ...]] = {}
        """By pod and GPU: what it hid in the last samples, the newest one last."""
        self._quotas: ThrottleQuotas = {}
        """The pods that have used more than their share, while the processes that did are on the GPU."""

    def update(
        self,
        held: Iterable[PodMemory],
        slack_mib: int,
        overuses: Iterable[Overuse],
        pids: Mapping[tuple[str, str], frozenset[int]],
        answering: Collection[str],
        *,
        unreadable: Collection[str] = (),
    ) -> None:
        """Records one sample. `slack_mib`: what an honest process hides. `pids` by pod and GPU. `answering`: the GPUs
        that the sample covers. `unreadable`: pods whose counters are not all known. For other GPUs and for these pods
        the last figure stays."""
        found = {(one.uid, one.uuid): _hidden_mib(one, slack_mib) for one in held}
        kept = {
            key: before for key, before in self._hidden_mib.items() if key[1] not in answering or key[0] in unreadable
        }
        self._hidden_mib = kept | {
            key: (*self._hidden_mib.get(key, _NOTHING)[1:], hidden)
            for key, hidden in found.items()
            if key[1] in answering and key[0] not in unreadable
        }
        self._quotas = update_quotas(self._quotas, overuses, pids)

    def of(self, slices: Iterable[Slice]) -> dict[Key, dict[str, Surcharge]]:
        """Returns the surcharges of these slices, by container and GPU.

        Memory: the lowest of the last samples, because a process may allocate and free between the looks at its control
        block and NVML's. All containers of a pod get the whole, because which of them hides it may be unknown.
        GPU time: the share divided by the pod's processes.
        """
        return {one.key: {part.uuid: self._surcharge(one, part.uuid, part.compute_milli) for part in one.parts}
                for one in slices}  # fmt: skip

    def _surcharge(self, of: Slice, uuid: str, compute_milli: int) -> Surcharge:
        memory_bytes = min(self._hidden_mib.get((of.uid, uuid), _NOTHING)) * MIB
        quota = self._quotas.get((of.uid, uuid))
        private = 0 if quota is None or not of.reserved else max(1, compute_milli // len(quota.pids))
        return Surcharge(memory_bytes=memory_bytes, private_milli=private)


def _hidden_mib(held: PodMemory, slack_mib: int) -> int:
    """Returns what NVML sees beyond the account and the slack. An account above the grant is forged, and hides
    nothing."""
    return max(0, held.seen_mib - min(held.counted_mib, held.granted_mib) - slack_mib * held.slack_processes)
