"""Prometheus metrics of limits and use of every slice. They are read at the scrape, and disappear with the pod."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from services.node_agent.strategies.base import Observed
from services.node_agent.strategies.escapes import Escape
from services.node_agent.strategies.overuse import Overuse
from services.node_agent.strategies.slices import Key
from shared.contracts.node_commands import LiveSlice
from shared.telemetry.metrics import Metrics

_POD = ("gpu", "namespace", "pod")
_SLICE = (*_POD, "container", "strategy")
Series = dict[tuple[str, ...], float]


def register_metrics(
    metrics: Metrics,
    live: Callable[[], Iterable[LiveSlice]],
    observed: Callable[[], Mapping[tuple[Key, str], Observed]],
    hidden: Callable[[], Mapping[tuple[str, str], Escape]],
    over: Callable[[], Mapping[tuple[str, str], Overuse]],
) -> None:
    """Registers the metrics. `observed` is by slice and GPU, `hidden` and `over` by pod and GPU."""

    def of_slices(value: Callable[[Observed], int | None]) -> Callable[[], Series]:
        def series() -> Series:
            known = {(slice_.uid, slice_.container): slice_ for slice_ in live()}
            return {
                (uuid, known[key].namespace, known[key].name, key[1], known[key].strategy): float(number)
                for (key, uuid), seen in observed().items()
                if key in known and (number := value(seen)) is not None
            }

        return series

    def of_pods(amounts: Callable[[], Mapping[tuple[str, str], int]]) -> Callable[[], Series]:
        def series() -> Series:
            known = {slice_.uid: slice_ for slice_ in live()}
            return {
                (uuid, known[uid].namespace, known[uid].name): float(amount)
                for (uid, uuid), amount in amounts().items()
                if uid in known
            }

        return series

    mib = of_pods(lambda: {key: max(escape.hidden_mib, escape.over_mib) for key, escape in hidden().items()})
    milli = of_pods(lambda: {key: overuse.over_milli for key, overuse in over().items()})

    add = metrics.observe_by
    add(
        "kerf_agent_slice_limit_mib",
        "Memory limit of an enforced slice.",
        of_slices(lambda o: o.memory_limit_mib),
        labels=_SLICE,
    )
    add(
        "kerf_agent_slice_counted_mib",
        "Memory of a slice as its strategy counts it.",
        of_slices(lambda o: o.memory_mib),
        labels=_SLICE,
    )
    add(
        "kerf_agent_slice_peak_mib", "Maximum memory of a slice so far.", of_slices(lambda o: o.peak_mib), labels=_SLICE
    )
    add(
        "kerf_agent_slice_limit_milli",
        "GPU time granted to a slice, per mille.",
        of_slices(lambda o: o.compute_limit_milli),
        labels=_SLICE,
    )
    add(
        "kerf_agent_slice_gpu_milli",
        "GPU time used by a slice, per mille, measured by CUDA events.",
        of_slices(lambda o: o.compute_milli),
        labels=_SLICE,
    )
    add(
        "kerf_agent_slice_waited_milli",
        "Time that launches of a slice waited, per mille.",
        of_slices(lambda o: o.waited_milli),
        labels=_SLICE,
    )
    refused = of_slices(lambda o: o.refused)
    add(
        "kerf_agent_slice_refused_total",
        "Allocations of a slice that failed at the memory limit.",
        refused,
        labels=_SLICE,
        kind="counter",
    )
    add("kerf_agent_slice_hidden_mib", "Memory of a pod that bypasses its slices.", mib, labels=_POD)
    add(
        "kerf_agent_slice_over_milli",
        "GPU time of a pod beyond its share, per mille, according to NVML.",
        milli,
        labels=_POD,
    )
