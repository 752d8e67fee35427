"""Service levels: objectives, their error ratios over several windows, and alerts by how fast a budget burns.

The windows and factors are those of Google's SRE workbook, chapter 5: a page where 2 % of a month's budget goes in an
hour or 5 % in six, a ticket where 10 % goes in three days.
"""

from __future__ import annotations

import msgspec

from tools.monitoring.alerts import Alert, Example

ERRORS = "kerf:slo_errors:ratio_rate{}"
BUDGET = "kerf:slo_error_budget:ratio"
WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
PAGES = ((14.4, "1h", "5m"), (6, "6h", "30m"))
TICKETS = ((3, "1d", "2h"), (1, "3d", "6h"))


class Level(msgspec.Struct, frozen=True):
    """`errors` is the ratio of what went wrong, with {w} for the window."""

    name: str
    objective: float
    text: str
    errors: str


BENIGN_REFUSALS = "gpu-memory-full|gpu-compute-full|mig-slices-taken|suspended"
"""The kubelet asks again, and gets the slice when the previous pod has ended."""
_REFUSED = f'(sum(rate(kerf_agent_refused_total{{{{code!~"{BENIGN_REFUSALS}"}}}}[{{w}}])) or vector(0))'

LEVELS = (
    Level(
        "scheduling-latency",
        0.99,
        "Decided pods are seen bound within 2.5 s.",
        'clamp_min(1 - sum(rate(kerf_pod_bind_seconds_bucket{{le="2.5"}}[{w}]))'
        " / (sum(rate(kerf_pod_bind_seconds_count[{w}])) > 0), 0)",
    ),
    Level(
        "decision-success",
        0.995,
        "Bindings succeed, but for pods that were changed or deleted meanwhile.",
        '(sum(rate(kerf_watcher_writes_total{{kind="bind",outcome!~"done|conflict|gone"}}[{w}])) or vector(0))'
        ' / (sum(rate(kerf_watcher_writes_total{{kind="bind"}}[{w}])) > 0)',
    ),
    Level(
        "enforcement",
        0.99,
        "Slices are handed over when the kubelet asks for them.",
        f"{_REFUSED} / ({_REFUSED} + sum(rate(kerf_agent_handed_over_total[{{w}}])) > 0)",
    ),
    Level(
        "agent-availability",
        0.995,
        "Enrolled nodes have a ready agent.",
        "1 - avg_over_time((max(kerf_agents_ready) / (max(kerf_agents) > 0))[{w}:1m])",
    ),
)


def recordings() -> list[dict[str, object]]:
    """Recording rules: the error ratio of every level over every window, and the budgets."""
    rules: list[dict[str, object]] = [
        {"record": BUDGET, "expr": f"vector({1 - level.objective:.4g})", "labels": {"slo": level.name}}
        for level in LEVELS
    ]
    rules += [
        {"record": ERRORS.format(window), "expr": level.errors.format(w=window), "labels": {"slo": level.name}}
        for window in WINDOWS
        for level in LEVELS
    ]
    return rules


def _burns(pairs: tuple[tuple[float, str, str], ...]) -> str:
    return "\nor\n".join(
        f"({ERRORS.format(long)} > on (slo) {factor} * {BUDGET}\n"
        f"  and on (slo) {ERRORS.format(short)} > on (slo) {factor} * {BUDGET})"
        for factor, long, short in pairs
    )


_HALF_REFUSED = {
    'kerf_agent_refused_total{code="no-grant",instance="a"}': "0+1x{n}",
    'kerf_agent_handed_over_total{instance="a"}': "0+{ok}x{n}",
}

ALERTS = (
    Alert(
        name="KerfErrorBudgetBurnFast",
        severity="critical",
        expr=_burns(PAGES),
        wait="2m",
        summary="Service level {{ $labels.slo }} is missed: {{ $value | humanizePercentage }} errors",
        description="At this rate the error budget of a month is gone within days. The runbook says what each level "
        "measures.",
        example=Example(
            series={name: values.format(n=70, ok=1) for name, values in _HALF_REFUSED.items()},
            at="1h10m",
            labels={"slo": "enforcement"},
            value="50%",
        ),
    ),
    Alert(
        name="KerfErrorBudgetBurnSlow",
        severity="warning",
        expr=_burns(TICKETS),
        wait="15m",
        summary="Service level {{ $labels.slo }} is missed slowly: {{ $value | humanizePercentage }} errors",
        description="At this rate the error budget of a month does not last. The runbook says what each level "
        "measures.",
        example=Example(
            series={name: values.format(n=3000, ok=24) for name, values in _HALF_REFUSED.items()},
            at="2d",
            labels={"slo": "enforcement"},
            value="4%",
        ),
    ),
)
