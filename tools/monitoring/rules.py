"""The rules and their tests as Prometheus and promtool read them."""

from __future__ import annotations

import re
from typing import Any

from tools.monitoring import levels
from tools.monitoring.alerts import ALERTS, RUNBOOKS, SERVICES, Alert, Example

EVERY = (*ALERTS, *levels.ALERTS)
_TEMPLATE = re.compile(r"\{\{ \$(?:labels\.(\w+)|value)[^}]*\}\}")

HEALTHY = {
    'kerf_placement_leader{instance="a"}': "1x300",
    'kerf_placement_leader{instance="b"}': "0x300",
    'kerf_placement_serving{instance="a"}': "1x300",
    'kerf_placement_serving{instance="b"}': "0x300",
    **{f'kerf_build_info{{service="{name}",version="0.2.0"}}': "1x300" for name in SERVICES},
    'kerf_placement_log_failures_total{cause="Unknown",instance="a",request="AppendRecord"}': "3x300",
    'kerf_placement_log_failures_total{cause="Refused",instance="a",request="AppendRecord"}': "0+1x300",
    "kerf_double_bookings": "0x300",
    'kerf_bus_connected{instance="a"}': "1x300",
    'kerf_bus_denied_total{instance="a"}': "0x300",
    "kerf_agents": "4x300",
    "kerf_agents_ready": "4x300",
    'kerf_agent_slice_hidden_bytes{gpu="GPU-1",namespace="team",pod="a"}': "0x300",
    'kerf_agent_slice_compute_excess_ratio{gpu="GPU-1",namespace="team",pod="a"}': "0x300",
    "kerf_pods_holding": "1x300",
    'kerf_placement_outcomes_total{outcome="bound"}': "0+5x300",
    "kerf_pods_waiting_oldest_seconds": "600x300",
    'kerf_placement_pods_excluded{instance="a"}': "0x300",
    'kerf_config_invalid{instance="a"}': "0x300",
    'kerf_policy_invalid{instance="a"}': "0x300",
    'kerf_watcher_kinds_troubled{instance="a"}': "0x300",
    'kerf_node_gpus_unhealthy{model="H200",node="n1"}': "0x300",
    "kerf_usage_records_waiting": "10x300",
    "kerf_event_lag_seconds": "0.2x300",
    "kerf_status_age_seconds": "1x300",
    "kerf_usage_write_failures_total": "0x300",
    'kerf_operator_leading{instance="a"}': "1x300",
    'kerf_operator_leading{instance="b"}': "0x300",
    'kerf_operator_condition{instance="a",type="NatsReady"}': "1x300",
    'kerf_operator_condition{instance="a",type="NodesEnrolled"}': "0x300",
    'kerf_operator_condition{instance="b",type="NatsReady"}': "0x300",
    # 30 days are left; of how many is not exported.
    'kerf_certificate_not_after_seconds{name="kerf-nats-tls"}': "2592000x300",
    # 9 days of 30, in which it is renewed; 15 of a CA's 1,825.
    'kerf_certificate_not_after_seconds{name="kerf-admission"}': "777600x300",
    'kerf_certificate_not_before_seconds{name="kerf-admission"}': "-1814400x300",
    'kerf_certificate_not_after_seconds{name="kerf-ca"}': "1296000x300",
    'kerf_certificate_not_before_seconds{name="kerf-ca"}': "-156384000x300",
    'kerf_pod_bind_seconds_bucket{le="2.5"}': "0+10x300",
    "kerf_pod_bind_seconds_count": "0+10x300",
    'kerf_watcher_writes_total{kind="bind",outcome="done"}': "0+10x300",
    'kerf_watcher_writes_total{kind="bind",outcome="gone"}': "0+1x300",
    'kerf_agent_handed_over_total{instance="a"}': "0+10x300",
    'kerf_agent_refused_total{code="gpu-memory-full",instance="a"}': "0+10x300",
}
"""A cluster in which nothing fires."""


def rules(base: str = RUNBOOKS) -> dict[str, Any]:
    """Prometheus' rules; `base` is where the runbooks are read."""
    return {
        "groups": [
            {"name": "kerf-service-levels", "interval": "1m", "rules": levels.recordings()},
            {"name": "kerf-alerts", "rules": [_rule(alert, base) for alert in EVERY]},
        ]
    }


def _rule(alert: Alert, base: str) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.wait,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{base.rstrip('/')}/{alert.name}.md",
        },
    }


def tests() -> dict[str, Any]:
    """promtool's tests: each alert fires on its examples and not before, and none on a healthy cluster."""
    return {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "name": "a healthy cluster",
                "interval": "1m",
                "input_series": _series(HEALTHY),
                "alert_rule_test": [{"eval_time": "4h", "alertname": alert.name, "exp_alerts": []} for alert in EVERY],
            },
            *(_test(alert, example) for alert in EVERY for example in (alert.example, *alert.more_examples)),
        ],
    }


def _test(alert: Alert, example: Example) -> dict[str, Any]:
    def shown(text: str) -> str:
        return _TEMPLATE.sub(lambda m: example.labels[m[1]] if m[1] else example.value, text)

    annotations = {name: shown(text) for name, text in _rule(alert, RUNBOOKS)["annotations"].items()}
    expected = [{"exp_labels": {"severity": alert.severity, **example.labels}, "exp_annotations": annotations}]
    return {
        "name": alert.name,
        "interval": "1m",
        "input_series": _series(example.series),
        "alert_rule_test": [
            {"eval_time": "0m", "alertname": alert.name, "exp_alerts": []},
            {"eval_time": example.at, "alertname": alert.name, "exp_alerts": expected},
        ],
    }


def _series(series: dict[str, str]) -> list[dict[str, str]]:
    return [{"series": name, "values": values} for name, values in series.items()]
