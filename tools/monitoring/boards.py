"""The Grafana dashboards, each a list of rows of panels."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tools.monitoring import levels

SCHEMA_VERSION = 39
"""Of Grafana 11; later ones migrate it when they load it."""
WIDTH = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    title: str
    queries: dict[str, str]
    """PromQL by legend; a legend may name labels, {{node}}."""
    unit: str = "short"
    kind: Literal["timeseries", "stat", "table"] = "timeseries"
    text: str = ""
    width: int = 8
    red_from: float | None = None
    """The value from which it is shown red."""
    red_below: float | None = None
    stacked: bool = False
    maximum: float | None = None


class Row(msgspec.Struct, frozen=True):
    title: str
    panels: tuple[Panel, ...]


class Board(msgspec.Struct, frozen=True):
    uid: str
    title: str
    rows: tuple[Row, ...]
    variables: dict[str, str] = {}
    """Queries of label values by name."""


def _stat(title: str, query: str, unit: str = "short", **more: Any) -> Panel:
    return Panel(title=title, queries={"": query}, unit=unit, kind="stat", **{"width": 4, **more})


def _quantiles(metric: str, *, by: str = "") -> dict[str, str]:
    labels = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return {
        f"p{100 * q:g}{legend}": f"histogram_quantile({q}, sum by ({labels}) (rate({metric}_bucket[$__rate_interval])))"
        for q in (0.5, 0.99)
    }


def _rate(metric: str, by: str) -> dict[str, str]:
    return {f"{{{{{by}}}}}": f"sum by ({by}) (rate({metric}[$__rate_interval]))"}


OVERVIEW = Board(
    "kerf-overview",
    "Kerf / Overview",
    (
        Row(
            "Now",
            (
                _stat("GPUs", "max(kerf_gpus)"),
                _stat(
                    "Compute allocated",
                    "max(kerf_gpu_compute_allocated_gpus) / max(kerf_gpu_compute_gpus)",
                    "percentunit",
                ),
                _stat(
                    "Memory allocated",
                    "max(kerf_gpu_memory_allocated_bytes) / max(kerf_gpu_memory_bytes)",
                    "percentunit",
                ),
                _stat("Pods pending", "max(kerf_pods_waiting)"),
                _stat("Longest wait", "max(kerf_pods_waiting_oldest_seconds)", "s", red_from=4 * 3600),
                _stat("Double bookings", "max(kerf_double_bookings)", red_from=1),
            ),
        ),
        Row(
            "Capacity",
            (
                Panel(
                    title="GPU compute",
                    queries={
                        "in total": "max(kerf_gpu_compute_gpus)",
                        "allocated": "max(kerf_gpu_compute_allocated_gpus)",
                        "free, but no usual request fits": "max(kerf_fragmented_gpus)",
                    },
                    text="In GPUs.",
                ),
                Panel(
                    title="GPU memory",
                    queries={
                        "in total": "max(kerf_gpu_memory_bytes)",
                        "allocated": "max(kerf_gpu_memory_allocated_bytes)",
                    },
                    unit="bytes",
                ),
                Panel(
                    title="Pods",
                    queries={
                        "bound": "max(kerf_pods_bound)",
                        "being bound": "max(kerf_pods_holding)",
                        "pending": "max(kerf_pods_waiting)",
                        "gated": "max(kerf_pods_gated)",
                        "leaving": "max(kerf_pods_leaving)",
                    },
                ),
            ),
        ),
        Row(
            "Decisions",
            (
                Panel(
                    title="Decided, rejected, bound per second",
                    queries=_rate("kerf_placement_outcomes_total", "outcome"),
                    unit="ops",
                ),
                Panel(
                    title="Why pods do not fit",
                    queries=_rate("kerf_placement_rejections_total", "code"),
                    unit="ops",
                    stacked=True,
                    text="New reasons per second, by the most frequent one of each pod.",
                ),
                Panel(
                    title="CPU time of a decision",
                    queries={"p50": "max(kerf_decision_p50_seconds)", "p99": "max(kerf_decision_p99_seconds)"},
                    unit="s",
                ),
                Panel(
                    title="Wait until the decision",
                    queries=_quantiles("kerf_pod_wait_seconds"),
                    unit="s",
                    text="Of pods that got a place. Most of it is waiting for capacity.",
                ),
                Panel(
                    title="From decision to Binding",
                    queries=_quantiles("kerf_pod_bind_seconds"),
                    unit="s",
                ),
                Panel(
                    title="Preemption plans per second",
                    queries=_rate("kerf_preemptor_plans_total", "outcome"),
                    unit="ops",
                ),
            ),
        ),
        Row(
            "Queues",
            (
                Panel(
                    title="GPUs used by queue", queries={"{{queue}}": "max by (queue) (kerf_queue_gpus_used)"}, width=12
                ),
                Panel(
                    title="Pods pending by queue",
                    queries={"{{queue}}": "max by (queue) (kerf_queue_pods_waiting)"},
                    width=12,
                ),
            ),
        ),
    ),
)

GPUS = Board(
    "kerf-gpus",
    "Kerf / GPUs and slices",
    (
        Row(
            "Nodes",
            (
                Panel(
                    title="Compute allocated by model",
                    queries={
                        "{{model}}": "sum by (model) (kerf_node_gpu_compute_allocated_gpus) "
                        "/ sum by (model) (kerf_node_gpus)"
                    },
                    unit="percentunit",
                    maximum=1,
                ),
                Panel(
                    title="Memory allocated by model",
                    queries={
                        "{{model}}": "sum by (model) (kerf_node_gpu_memory_allocated_bytes) "
                        "/ sum by (model) (kerf_node_gpu_memory_bytes)"
                    },
                    unit="percentunit",
                    maximum=1,
                ),
                Panel(
                    title="GPUs that take no new slices",
                    queries={"{{node}}": "sum by (node) (kerf_node_gpus_unhealthy) > 0"},
                ),
                Panel(
                    title="Slices by node",
                    queries={"{{node}}": 'topk(20, sum by (node) (kerf_node_gpu_slices{node=~"$node"}))'},
                ),
                Panel(
                    title="GPU state changes per second",
                    queries=_rate("kerf_gpu_state_changes_total", "state"),
                    unit="ops",
                ),
                Panel(
                    title="XIDs",
                    queries={"{{gpu}} {{xid}}": "sum by (gpu, xid) (increase(kerf_agent_xids_total[1h])) > 0"},
                    text="Reported in the last hour.",
                ),
            ),
        ),
        Row(
            "Use",
            (
                Panel(
                    title="GPU memory in use",
                    queries={"{{gpu}}": "topk(20, max by (gpu) (kerf_agent_gpu_used_bytes))"},
                    unit="bytes",
                ),
                Panel(
                    title="GPU memory without a slice",
                    queries={"{{gpu}}": "topk(20, max by (gpu) (kerf_agent_gpu_foreign_bytes) > 0)"},
                    unit="bytes",
                    text="Of the host's processes and of pods that got the GPU otherwise.",
                ),
                Panel(
                    title="Time in which a kernel ran",
                    queries={"{{gpu}}": "topk(20, max by (gpu) (kerf_agent_gpu_sm_ratio))"},
                    unit="percentunit",
                    maximum=1,
                ),
            ),
        ),
        Row(
            "Slices",
            (
                Panel(
                    title="Memory of slices, beside the limit",
                    queries={
                        "{{namespace}}/{{pod}}": "topk(20, sum by (namespace, pod) "
                        "(kerf_agent_slice_counted_bytes) / sum by (namespace, pod) (kerf_agent_slice_limit_bytes))"
                    },
                    unit="percentunit",
                    maximum=1,
                ),
                Panel(
                    title="Compute of slices, beside the limit",
                    queries={
                        "{{namespace}}/{{pod}}": "topk(20, sum by (namespace, pod) "
                        "(kerf_agent_slice_compute_used_ratio) "
                        "/ (sum by (namespace, pod) (kerf_agent_slice_compute_limit_ratio) > 0))"
                    },
                    unit="percentunit",
                ),
                Panel(
                    title="Time that launches waited",
                    queries={
                        "{{namespace}}/{{pod}}": "topk(20, max by (namespace, pod) (kerf_agent_slice_waited_ratio))"
                    },
                    unit="percentunit",
                ),
                Panel(
                    title="Allocations refused at the limit, per second",
                    queries=_rate("kerf_agent_slice_refused_total", "pod"),
                    unit="ops",
                ),
                Panel(
                    title="Memory that bypasses slices",
                    queries={"{{namespace}}/{{pod}}": "max by (namespace, pod) (kerf_agent_slice_hidden_bytes) > 0"},
                    unit="bytes",
                ),
                Panel(
                    title="Compute beyond the share",
                    queries={
                        "{{namespace}}/{{pod}}": "max by (namespace, pod) (kerf_agent_slice_compute_excess_ratio) > 0"
                    },
                    unit="percentunit",
                ),
            ),
        ),
    ),
    variables={"node": "label_values(kerf_node_gpus, node)"},
)

CONTROL_PLANE = Board(
    "kerf-control-plane",
    "Kerf / Control plane",
    (
        Row(
            "Now",
            (
                _stat("Leaders", "sum(kerf_placement_leader)", red_below=1),
                _stat("Term", "max(kerf_term)", "none"),
                _stat("Agents ready", "max(kerf_agents_ready) / (max(kerf_agents) > 0)", "percentunit", red_below=0.99),
                _stat("Without NATS", "count(kerf_bus_connected == 0) or vector(0)", red_from=1),
                _stat("Invalid settings", "sum(kerf_config_invalid) or vector(0)", red_from=1),
                _stat(
                    "Next certificate to expire",
                    "min(kerf_certificate_not_after_seconds) - time()",
                    "s",
                    red_below=14 * 86_400,
                ),
            ),
        ),
        Row(
            "Services",
            (
                Panel(
                    title="Versions",
                    queries={"": "count by (service, version) (kerf_build_info)"},
                    kind="table",
                ),
                Panel(
                    title="CPU",
                    queries={
                        "{{service}} {{instance}}": "rate(process_cpu_seconds_total[$__rate_interval]) "
                        "* on (instance) group_left (service) kerf_build_info"
                    },
                    text="Cores.",
                ),
                Panel(
                    title="Memory",
                    queries={
                        "{{service}} {{instance}}": "process_resident_memory_bytes "
                        "* on (instance) group_left (service) kerf_build_info"
                    },
                    unit="bytes",
                ),
            ),
        ),
        Row(
            "Placement and the log",
            (
                Panel(
                    title="Failed log requests per second",
                    queries={
                        "{{request}}: {{cause}}": "sum by (request, cause) "
                        "(rate(kerf_placement_log_failures_total[$__rate_interval]))"
                    },
                    unit="ops",
                ),
                Panel(title="Inputs that wait", queries={"{{instance}}": "kerf_placement_inbox"}),
                Panel(
                    title="GPUs reserved for the head of the queue",
                    queries={
                        "reserved": "sum(kerf_placement_reserved_gpus)",
                        "free of them": "sum(rate(kerf_placement_reserved_idle_gpu_seconds_total[$__rate_interval]))",
                    },
                ),
                Panel(
                    title="Time until a new leader decides",
                    queries=_quantiles("kerf_term_recovery_seconds"),
                    unit="s",
                ),
            ),
        ),
        Row(
            "Kubernetes",
            (
                Panel(
                    title="Writes per second",
                    queries={
                        "{{kind}} {{outcome}}": "sum by (kind, outcome) "
                        "(rate(kerf_watcher_writes_total[$__rate_interval]))"
                    },
                    unit="ops",
                ),
                Panel(title="Time of a Binding", queries=_quantiles("kerf_watcher_bind_seconds"), unit="s"),
                Panel(
                    title="Admission reviews per second",
                    queries=_rate("kerf_admission_reviews_total", "outcome"),
                    unit="ops",
                ),
            ),
        ),
        Row(
            "Node agents",
            (
                Panel(
                    title="Slices handed over, and refused",
                    queries={
                        "handed over": "sum(rate(kerf_agent_handed_over_total[$__rate_interval]))",
                        "refused: {{code}}": "sum by (code) (rate(kerf_agent_refused_total[$__rate_interval]))",
                    },
                    unit="ops",
                ),
                Panel(
                    title="Time that a hand-over adds",
                    queries=_quantiles("kerf_agent_handover_seconds", by="step"),
                    unit="s",
                ),
                Panel(
                    title="Nodes without proven limits",
                    queries={"nodes": "count(kerf_agent_enforcement_proven == 0) or vector(0)"},
                ),
            ),
        ),
        Row(
            "NATS",
            (
                Panel(
                    title="Errors per second",
                    queries={
                        "errors {{instance}}": "rate(kerf_bus_errors_total[$__rate_interval]) > 0",
                        "timeouts {{instance}}": "rate(kerf_bus_timeouts_total[$__rate_interval]) > 0",
                        "denied {{instance}}": "rate(kerf_bus_denied_total[$__rate_interval]) > 0",
                    },
                    unit="ops",
                ),
                Panel(
                    title="Events published and lost per second",
                    queries={
                        "published": "sum(rate(kerf_bus_events_published_total[$__rate_interval]))",
                        "lost": "sum(rate(kerf_bus_events_lost_total[$__rate_interval]))",
                    },
                    unit="ops",
                ),
                Panel(
                    title="Usage book",
                    queries={
                        "records that wait": "max(kerf_usage_records_waiting)",
                        "age of the newest event (s)": "max(kerf_event_lag_seconds)",
                        "since placement's last answer (s)": "max(kerf_status_age_seconds)",
                    },
                ),
            ),
        ),
    ),
)

SERVICE_LEVELS = Board(
    "kerf-service-levels",
    "Kerf / Service levels",
    tuple(
        Row(
            f"{level.name}: {level.text} Objective {100 * level.objective:g} %",
            (
                _stat(
                    "Errors, 3 days",
                    f'{levels.ERRORS.format("3d")}{{slo="{level.name}"}}',
                    "percentunit",
                    red_from=1 - level.objective,
                ),
                Panel(
                    title="Error ratio",
                    queries={
                        **{w: f'{levels.ERRORS.format(w)}{{slo="{level.name}"}}' for w in ("5m", "1h", "6h", "3d")},
                        "budget": f'{levels.BUDGET}{{slo="{level.name}"}}',
                    },
                    unit="percentunit",
                    width=20,
                ),
            ),
        )
        for level in levels.LEVELS
    ),
)

BOARDS = (OVERVIEW, GPUS, CONTROL_PLANE, SERVICE_LEVELS)


def render(board: Board) -> dict[str, Any]:
    """The dashboard as Grafana reads it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in board.rows:
        panels.append({"type": "row", "id": len(panels) + 1, "title": row.title, "collapsed": False,
                       "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y}, "panels": []})  # fmt: skip
        y, x, height = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y = 0, y + height
            height = 4 if all(p.kind == "stat" for p in row.panels) else 8
            at = {"h": height, "w": panel.width, "x": x, "y": y}
            panels.append(_panel(panel, len(panels) + 1, at))
            x += panel.width
        y += height
    return {
        "uid": board.uid,
        "title": board.title,
        "tags": ["kerf"],
        "timezone": "browser",
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["kerf"], "title": "Kerf", "asDropdown": True, "keepTime": True}],
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
                *(
                    {
                        "name": name,
                        "type": "query",
                        "label": name.capitalize(),
                        "datasource": SOURCE,
                        "query": {"query": query, "refId": name},
                        "refresh": 2,
                        "multi": True,
                        "includeAll": True,
                        "allValue": ".*",
                        "current": {"text": "All", "value": "$__all"},
                    }
                    for name, query in board.variables.items()
                ),
            ]
        },
        "panels": panels,
    }


def _panel(panel: Panel, number: int, at: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red_from is not None:
        steps.append({"color": "red", "value": panel.red_from})
    if panel.red_below is not None:
        steps = [{"color": "red", "value": None}, {"color": "green", "value": panel.red_below}]
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    made: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": at,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": query,
                "legendFormat": legend or "__auto",
                **({"instant": True, "format": "table"} if panel.kind == "table" else {}),
                **({"instant": True} if panel.kind == "stat" else {}),
            }
            for index, (legend, query) in enumerate(panel.queries.items())
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {},
    }
    if panel.kind == "timeseries":
        defaults["custom"] = {"fillOpacity": 15 if panel.stacked else 5, "showPoints": "never"}
        if panel.stacked:
            defaults["custom"]["stacking"] = {"mode": "normal"}
        made["options"] = {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.kind == "stat":
        made["options"] = {"colorMode": "value", "graphMode": "none", "reduceOptions": {"calcs": ["lastNotNull"]}}
    return made
