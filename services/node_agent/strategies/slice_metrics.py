"""Prometheus metrics of limits and use of every slice. They are read at the scrape, and disappear with the pod."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from services.node_agent.strategies.base import Observed
from services.node_agent.strategies.escapes import Escape
from services.node_agent.strategies.overuse import Overuse
from services.node_agent.strategies.slices import Key
from shared.contracts.node_commands import LiveSlice
from shared.telemetry.metrics import MIB, MILLI, Former, Metrics

_POD = ("gpu", "namespace", "pod")
_SLICE = (*_POD, "container", "strategy")
Series = dict[tuple[str, ...], float]


def register_metrics(
    metrics: Metrics,
    live: Callable[[], Iterable[LiveSlice]],
    observed: Callable[[], Mapping[tuple[Key, str], Observed]],
    hidden: Callable[[], Mapping[tuple[str, str], Escape]],
    over: Callable[[], Mapping[tuple[str, str], Overuse]],
    *,
    surcharge_bytes: Callable[[], Mapping[tuple[str, str], int]],
) -> None:
    """Registers the metrics. `observed` is by slice and GPU; `hidden`, `over` and `surcharge_bytes` by pod and GPU."""

    def of_slices(value: Callable[[Observed], int | None], unit: float = 1) -> Callable[[], Series]:
        def series() -> Series:
            known = {(slice_.uid, slice_.container): slice_ for slice_ in live()}
            return {
                (uuid, known[key].namespace, known[key].name, key[1], known[key].strategy): number * unit
                for (key, uuid), seen in observed().items()
                if key in known and (number := value(seen)) is not None
            }

        return series

    def of_pods(amounts: Callable[[], Mapping[tuple[str, str], int]], unit: float) -> Callable[[], Series]:
        def series() -> Series:
            known = {slice_.uid: slice_ for slice_ in live()}
            return {
                (uuid, known[uid].namespace, known[uid].name): amount * unit
                for (uid, uuid), amount in amounts().items()
                if uid in known
            }

        return series

    hidden_memory = of_pods(
        lambda: {key: max(escape.hidden_mib, escape.over_mib) for key, escape in hidden().items()}, MIB
    )
    excess = of_pods(lambda: {key: overuse.over_milli for key, overuse in over().items()}, MILLI)
    for name, former, text, labels, read in (
        ("limit_bytes", "limit_mib", "Memory limit of an enforced slice.", _SLICE,
         of_slices(lambda o: o.memory_limit_mib, MIB)),
        ("counted_bytes", "counted_mib", "Memory of a slice as its strategy counts it.", _SLICE,
         of_slices(lambda o: o.memory_mib, MIB)),
        ("peak_bytes", "peak_mib", "Maximum memory of a slice so far.", _SLICE,
         of_slices(lambda o: o.peak_mib, MIB)),
        ("compute_limit_ratio", "limit_milli", "GPU time granted to a slice, as part of one GPU.", _SLICE,
         of_slices(lambda o: o.compute_limit_milli, MILLI)),
        ("compute_used_ratio", "gpu_milli", "GPU time used by a slice, as part of one GPU, by CUDA events.", _SLICE,
         of_slices(lambda o: o.compute_milli, MILLI)),
        ("waited_ratio", "waited_milli", "Part of the time in which launches of a slice waited.", _SLICE,
         of_slices(lambda o: o.waited_milli, MILLI)),
        ("hidden_bytes", "hidden_mib", "Memory of a pod that bypasses its slices.", _POD, hidden_memory),
        ("compute_excess_ratio", "over_milli", "GPU time of a pod beyond its share, as part of one GPU, by NVML.",
         _POD, excess),
    ):  # fmt: skip
        unit = MIB if name.endswith("bytes") else MILLI
        metrics.observe_by(
            f"kerf_agent_slice_{name}", text, read, labels=labels, former=Former(f"kerf_agent_slice_{former}", unit)
        )
    metrics.observe_by(
        "kerf_agent_slice_surcharge_bytes",
        "What a pod's memory limit is lowered by, because NVML sees more than its slices count.",
        of_pods(surcharge_bytes, 1),
        labels=_POD,
    )
    metrics.observe_by(
        "kerf_agent_slice_burst_bytes",
        "Memory of a slice beyond what it is guaranteed, lent while no slice is guaranteed it.",
        of_slices(lambda o: None if o.memory_mib is None else max(0, o.memory_mib - o.granted_mib), MIB),
        labels=_SLICE,
    )
    metrics.observe_by(
        "kerf_agent_slice_refused_total",
        "Allocations of a slice that failed at the memory limit.",
        of_slices(lambda o: o.refused),
        labels=_SLICE,
        kind="counter",
    )
