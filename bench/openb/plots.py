"""Allocation and fragmentation against load, drawn from one seed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from bench.charts import line_chart
from bench.openb.fill import fill
from bench.openb.trace import Arrivals, Pods, Trace
from bench.policies import Fgd
from bench.policies.fragmentation import fragmented
from services.placement.engine.engine import Engine
from services.placement.policies.columns import columns_of

POLICIES = ("kerf", "fgd", "bestfit", "binpack")
_CEILINGS = Path(__file__).parent.parent / "data" / "openb" / "ceilings.json"


def draw(trace: Trace, arrivals: Arrivals, seed: int, folder: Path) -> list[Path]:
    """Two files in `folder`. The ceiling is an offline LP's, where one is known for the trace."""
    gauge = Fgd  # the published measure, for every policy alike
    typical: list[object] = []

    def lost(engine: Engine) -> float:
        if not typical:
            measure = gauge(engine.book)
            pods = Pods(trace)
            measure.expect([pods.template(pod) for pod in trace.pods])
            typical.append(measure)
        known = typical[0]
        assert isinstance(known, Fgd)
        rows = np.arange(len(engine.book.row_names))
        return float(fragmented(rows, columns_of(engine.book.arrays), known.typical))

    curves = {policy: fill(trace, arrivals, seed, policy, lost).curve for policy in POLICIES}
    ceilings = json.loads(_CEILINGS.read_text())["values"].get(trace.name)
    allocation = {policy: [(load, used) for load, used, _ in curve if load >= 70] for policy, curve in curves.items()}
    if ceilings:
        at_full = ceilings["1.0"]["any_subset"]
        allocation["offline LP ceiling"] = [
            (70, 70),
            (at_full, at_full),
            (100, at_full),
            (130, ceilings["1.3"]["any_subset"]),
        ]
    folder.mkdir(parents=True, exist_ok=True)
    first, second = folder / f"allocation-{trace.name}.svg", folder / f"fragmentation-{trace.name}.svg"
    line_chart(
        first,
        f"GPU allocated, openb {trace.name}, seed {seed}",
        "GPU asked for, % of capacity",
        "GPU allocated, % of capacity",
        allocation,
        y_range=(70, 100),
    )
    line_chart(
        second,
        f"GPU that a typical pod cannot use, openb {trace.name}, seed {seed}",
        "GPU asked for, % of capacity",
        "% of capacity",
        {p: [(load, frag) for load, _, frag in curve] for p, curve in curves.items()},
    )
    return [first, second]
