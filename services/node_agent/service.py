"""The node agent as a service: one real node, or a fleet of simulated nodes."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from services.node_agent import first_checkpoint
from services.node_agent.checkpoint import CheckpointFile
from services.node_agent.config import Config
from services.node_agent.fleet import Fleet
from services.node_agent.fleet_service import FleetRuntime
from services.node_agent.node_lock import LOCK, NodeLock
from services.node_agent.node_service import NodeRuntime
from shared.contracts.permissions import agent_inbox
from shared.service import Context, Lifecycle, Service, load_simulator


class NodeAgent(Service):
    """The agent of a GPU node: inventory, hand-over of slices, release of grants."""

    name: ClassVar[str] = "node_agent"
    config_type: ClassVar[type] = Config

    @classmethod
    def inbox_prefix(cls, config: Config, settings: Lifecycle) -> str:
        """With a token the agent is its node's own user, which hears its own answers alone."""
        prefix = settings.nats_inbox_prefix
        return agent_inbox(config.node, prefix) if settings.nats_token_file and config.node else prefix

    async def start(self, ctx: Context) -> None:
        """Starts the agent. Raises ValueError if the settings name no node, CheckpointError if the checkpoint is
        damaged or was lost."""
        config: Config = ctx.config
        hollow = config.hollow_nodes()
        if bool(hollow) == bool(config.node):
            raise ValueError(
                "set either this host's name (node, KERF_NODE_AGENT_NODE) or simulated nodes (hollow, "
                "hollow_file), not both"
            )
        if hollow:
            self.fleet = FleetRuntime(ctx, Fleet(load_simulator("hollow").machines(hollow, ctx.instance)))
            await self.fleet.start(config.beat_s)
            return
        lock = NodeLock(Path(config.checkpoint_file).with_name(LOCK))
        first = lock.take()
        ctx.on_end(lock.give_back)
        if first:
            await self._work(ctx, config)
        else:
            # What would keep this one from working is found before the other one is ended.
            first_checkpoint.load(CheckpointFile(Path(config.checkpoint_file)), config)
            if config.has_kubelet():
                from services.node_agent import kubelet_service  # noqa: F401, PLC0415
            ctx.health.set("node", ok=True, detail="another agent works on this node; this one takes over when it ends")
            ctx.log.info("waiting_for_the_other_agent")
            ctx.spawn(self._take_over(ctx, config, lock), name="take-over")

    async def _take_over(self, ctx: Context, config: Config, lock: NodeLock) -> None:
        """Waits ready: an update of the agents ends the earlier one when this one is."""
        await lock.wait()
        ctx.health.clear("node")
        await self._work(ctx, config)
        ctx.log.info("taken_over")

    async def _work(self, ctx: Context, config: Config) -> None:
        self.node = NodeRuntime(ctx, config)
        ctx.on_drain(self.node.end)
        await self.node.start()
        if config.has_kubelet():
            # Imported here, so that a process of simulated nodes does not load gRPC.
            from services.node_agent.kubelet_service import KubeletAdapter  # noqa: PLC0415

            await KubeletAdapter(ctx, config, self.node).start()
        else:
            ctx.log.warning(
                "no_kubelet", directory=config.kubelet_dir, effect="this agent hands no slice to any container"
            )

    async def drain(self) -> None:
        """Has nothing to finish: running slices stay as they are, and every promise is on disk."""


SERVICE = NodeAgent
