"""The GPUs of the node: their inventory in this boot, with their ailments and cordons. Pure."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from services.node_agent import messages as m
from services.node_agent.gpu_state import changes, gpu_pods
from services.node_agent.gpu_state.cordons import Cordons
from services.node_agent.grant_store import GrantStore
from services.node_agent.state import Checkpoint, Cordon
from shared.contracts.node_commands import NodeCordon, NodeCordonAnswer
from shared.model.gpu import Gpu, Inventory
from shared.model.strategies import ALWAYS_OFFERED


class NodeGpus:
    def __init__(
        self, node: str, saved: Checkpoint, store: GrantStore, on_reboot: Callable[[float], list[m.Command]]
    ) -> None:
        """`on_reboot`: what follows from the end of all containers of the last boot, after the new `boot_id` is set."""
        self._node, self._store, self._on_reboot = node, store, on_reboot
        self.inventory = saved.inventory
        self.checkpoint_id = saved.checkpoint_id
        self.generation = saved.generation
        self.boot_id = saved.boot_id
        self.by_uuid: dict[str, Gpu] = {} if saved.inventory is None else {g.uuid: g for g in saved.inventory.gpus}
        self.ailments, self.histories = saved.ailments, saved.gpu_histories
        self._cordons = Cordons(saved.cordons)
        self._seen: Inventory | None = None
        self._idle = m.IdleSeen({}, {})

    @property
    def cordons(self) -> tuple[Cordon, ...]:
        return self._cordons.saved

    @property
    def is_read(self) -> bool:
        """Whether the GPUs were read since the agent's start."""
        return self._seen is not None

    @property
    def kept(self) -> Inventory | None:
        """The inventory as it is saved: without the strategies that the node offers, which each start reads anew.

        An agent without a plug-in, or of the version before, does not know their names: it could not read the
        checkpoint, though no pod uses them.
        """
        return None if self.inventory is None else msgspec.structs.replace(self.inventory, strategies=ALWAYS_OFFERED)

    def update(self, event: m.InventorySeen, now: float) -> list[m.Command]:
        """Takes over what was read of the GPUs."""
        self._seen = event.inventory
        unsaved = (event.ailments, event.histories) != (self.ailments, self.histories)
        save: list[m.Command] = [m.Save()] if unsaved else []
        self.ailments, self.histories = event.ailments, event.histories
        return self._apply(self._cordons.with_cordons(event.inventory), now) or save

    def _apply(self, seen: Inventory, now: float) -> list[m.Command]:
        old, out = self.inventory, list[m.Command]()
        seen = msgspec.structs.replace(seen, idle_grants=self._idle.idle, woken_grants=self._idle.woken)
        rebooted = bool(self.boot_id) and self.boot_id != seen.boot_id
        if old is not None and not rebooted and changes.is_same(old, seen):
            return []
        self.generation = 1 if rebooted else self.generation + 1
        self.boot_id = seen.boot_id
        self.inventory = msgspec.structs.replace(
            seen, node=self._node, checkpoint_id=self.checkpoint_id, generation=self.generation
        )
        before, self.by_uuid = self.by_uuid, {g.uuid: g for g in seen.gpus}
        if rebooted:
            out += self._on_reboot(now)
        out += [m.PutInventory(self.inventory), *changes.events_for(before, self.inventory)]
        return [m.Save(), *out]

    def idle_seen(self, event: m.IdleSeen) -> list[m.Command]:
        """Says which pods are idle; without an event, for the GPUs are as they were."""
        self._idle = event
        if self.inventory is None:
            return []
        self.generation += 1
        self.inventory = msgspec.structs.replace(
            self.inventory, generation=self.generation, idle_grants=event.idle, woken_grants=event.woken
        )
        return [m.Save(), m.PutInventory(self.inventory)]

    def cordon(self, asked: NodeCordon, now: float) -> list[m.Command]:
        """Carries out an order to cordon or uncordon GPUs, and answers it."""
        refusal = (
            "the agent has not read this node's GPUs yet; try again in a few seconds"
            if self._seen is None
            else self._cordons.refusal(asked, self._node, self.by_uuid)
        )
        if self._seen is None or refusal:
            return [m.Answer(NodeCordonAnswer(ok=False, reason=refusal))]
        gpus, before = (asked.gpu,) if asked.gpu else tuple(self.by_uuid), self.cordons
        self._cordons.apply(asked)
        out: list[m.Command] = (
            [] if self.cordons == before else self._apply(self._cordons.with_cordons(self._seen), now) or [m.Save()]
        )
        if asked.undo:
            out.append(m.ClearAilments(gpus))
        return [
            *out,
            m.Answer(
                NodeCordonAnswer(
                    ok=True, gpus=gpus, pods=gpu_pods.find_pods(gpus, self._store.known, self._store.is_running)
                )
            ),
        ]
