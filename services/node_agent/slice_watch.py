"""Wires what keeps the slices while they run: the observer of the samples of use, the police, the driver's limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from services.node_agent.config import Config
from services.node_agent.core import Agent
from services.node_agent.devices.monitor import DeviceMonitor
from services.node_agent.driver_limits import DriverLimits
from services.node_agent.pod_ender import PodEnder
from services.node_agent.police import Police
from services.node_agent.processes.pod_cgroups import PodCgroups
from services.node_agent.slice_observer import SliceObserver
from services.node_agent.strategies.base import Driver
from services.node_agent.strategies.slice_registry import SliceRegistry
from services.node_agent.strategies.slices import Key, Slice
from services.node_agent.strategies.surcharges import Surcharger
from services.node_agent.strategies.time_slicing import TimeSlicer
from shared.contracts.commands import Evict
from shared.model.strategies import StrategyName
from shared.service import Context


class SliceWatch:
    def __init__(
        self,
        ctx: Context,
        config: Config,
        agent: Agent,
        *,
        registry: SliceRegistry,
        prepared: Mapping[Key, Slice],
        drivers: Mapping[StrategyName, Driver],
        time_slicer: TimeSlicer,
        devices: DeviceMonitor,
        cgroups: PodCgroups,
        limits_hold: Callable[[], bool],
        evict: Callable[[tuple[Evict, ...]], None],
        clock: Callable[[], int],
    ) -> None:
        """`prepared`: the slices without a control block. `limits_hold`: whether the driver's memory limits do. `evict`
        requests evictions. `clock` returns nanoseconds of CLOCK_MONOTONIC."""
        self.limits = DriverLimits(ctx, agent, registry=registry, devices=devices, cgroups=cgroups, holds=limits_hold)
        surcharger = Surcharger(config.escape_slack_mib)
        self.ender = ender = PodEnder(
            ctx.log, agent.live, cgroups=cgroups, owner=devices.owner, evict=evict, clock=clock
        )
        self.police = Police(
            ctx,
            config,
            agent,
            registry=registry,
            devices=devices,
            surcharger=surcharger,
            ender=ender,
            clock=clock,
        )
        self.observer = SliceObserver(
            ctx,
            config,
            agent,
            registry=registry,
            prepared=prepared,
            drivers=drivers,
            time_slicer=time_slicer,
            devices=devices,
            surcharger=surcharger,
            ender=ender,
            clock=clock,
        )
