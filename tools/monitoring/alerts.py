"""The alerts: when each fires, what it says, and an example that its promtool test plays."""

from __future__ import annotations

from typing import Literal

import msgspec

RUNBOOKS = "docs/runbooks"
"""What `runbook_url` begins with, unless an installation names another base."""

Series = dict[str, str]
"""Samples a minute apart, in promtool's notation, by series."""


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """Samples on which the alert fires, when it has, and what it then says."""

    series: Series
    at: str
    labels: dict[str, str] = {}
    value: str = ""
    """The value as the text shows it."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    severity: Literal["critical", "warning"]
    expr: str
    wait: str
    """How long the expression must hold."""
    summary: str
    description: str
    example: Example
    more_examples: tuple[Example, ...] = ()


DAY_S = 86_400
_CERTIFICATE_ENDS = "kerf_certificate_not_after_seconds"
_CERTIFICATE_BEGINS = "kerf_certificate_not_before_seconds"

SERVICES = ("placement", "watcher", "admission", "metrics", "preemptor", "operator")
"""Those that run in each cluster, beside the agents."""

ALERTS = (
    Alert(
        name="KerfNoLeader",
        severity="critical",
        expr="(sum(kerf_placement_serving) or vector(0)) == 0",
        wait="1m",
        summary="No placement process leads: no pod is placed",
        description="For a minute no placement process has held the leader lease and recovered. Running pods are not "
        "affected; pending pods wait.",
        example=Example(
            series={
                'kerf_placement_leader{instance="a"}': "1x12",
                'kerf_placement_serving{instance="a"}': "1 1 0x10",
            },
            at="4m",
        ),
    ),
    Alert(
        name="KerfSeveralLeaders",
        severity="warning",
        expr="sum(kerf_placement_leader) > 1",
        wait="1m",
        summary="{{ $value }} placement processes say that they lead",
        description="Only one can write the log, so nothing is booked twice, but the others work in vain.",
        example=Example(series={f'kerf_placement_leader{{instance="{i}"}}': "1x10" for i in "ab"}, at="3m", value="2"),
    ),
    Alert(
        name="KerfLogAppendFailing",
        severity="critical",
        expr='sum(increase(kerf_placement_log_failures_total{request="AppendRecord",cause!="Refused"}[5m])) > 0',
        wait="2m",
        summary="Decisions cannot be written to the log",
        description="NATS did not answer appends in the last five minutes, or answered with an error. "
        "A decision that is not in the log is not carried out: pods wait.",
        example=Example(
            series={
                'kerf_placement_log_failures_total{cause="Unknown",instance="a",request="AppendRecord"}': "0 1+1x10"
            },
            at="6m",
        ),
    ),
    Alert(
        name="KerfDoubleBooking",
        severity="critical",
        expr="max(kerf_double_bookings) > 0",
        wait="0m",
        summary="{{ $value }} GPUs are booked beyond what they have",
        description="Kerf must never do this. Keep the logs and the stream KERF_LOG for the report.",
        example=Example(series={"kerf_double_bookings": "0 1x5"}, at="2m", value="1"),
    ),
    Alert(
        name="KerfServiceAbsent",
        severity="critical",
        expr=" or ".join(f'absent(kerf_build_info{{service="{name}"}})' for name in SERVICES),
        wait="5m",
        summary="No {{ $labels.service }} is scraped",
        description="For five minutes Prometheus has had no sample of service {{ $labels.service }}: it is down, or it "
        "is not scraped.",
        example=Example(
            series={
                f'kerf_build_info{{service="{name}",version="0.2.0"}}': "1x20"
                for name in SERVICES
                if name != "preemptor"
            },
            at="8m",
            labels={"service": "preemptor"},
        ),
    ),
    Alert(
        name="KerfNatsDisconnected",
        severity="critical",
        expr="kerf_bus_connected == 0",
        wait="1m",
        summary="{{ $labels.instance }} has no connection to NATS",
        description="Without NATS nothing new is decided or handed over. Running containers keep their slices.",
        example=Example(
            series={'kerf_bus_connected{instance="10.0.0.1:8080"}': "1 0x10"},
            at="3m",
            labels={"instance": "10.0.0.1:8080"},
        ),
    ),
    Alert(
        name="KerfNatsPermissionDenied",
        severity="warning",
        expr="increase(kerf_bus_denied_total[15m]) > 0",
        wait="0m",
        summary="NATS denies {{ $labels.instance }} a subject",
        description="The NATS user of this service lacks a permission. The service's log line "
        "`bus_permission_denied` names the subject.",
        example=Example(series={'kerf_bus_denied_total{instance="a"}': "0 0 1x10"}, at="5m", labels={"instance": "a"}),
    ),
    Alert(
        name="KerfAgentNotReady",
        severity="warning",
        expr="max(kerf_agents) - max(kerf_agents_ready) > 0",
        wait="5m",
        summary="{{ $value }} enrolled nodes have no ready agent",
        description="New pods do not go to these nodes. `kerf inspect` marks them as not synced.",
        example=Example(series={"kerf_agents": "4x20", "kerf_agents_ready": "4 3x20"}, at="8m", value="1"),
    ),
    Alert(
        name="KerfSliceLimitExceeded",
        severity="warning",
        expr="max by (namespace, pod, gpu) (kerf_agent_slice_hidden_bytes) > 0\n"
        "or max by (namespace, pod, gpu) (kerf_agent_slice_compute_excess_ratio) > 0",
        wait="2m",
        summary="Pod {{ $labels.namespace }}/{{ $labels.pod }} uses more of a GPU than its slice",
        description="On {{ $labels.gpu }} the driver reports use that the slice's limits do not cover: a process "
        "bypasses the interposer.",
        example=Example(
            series={'kerf_agent_slice_hidden_bytes{gpu="GPU-1",namespace="team",pod="a"}': "0 52428800x10"},
            at="4m",
            labels={"gpu": "GPU-1", "namespace": "team", "pod": "a"},
        ),
    ),
    Alert(
        name="KerfPodsNotBound",
        severity="critical",
        # With the offset: after a restart of metrics there is one sample, which is not ten minutes.
        expr="min_over_time(kerf_pods_holding[10m]) > 0 and kerf_pods_holding offset 10m\n"
        'and on () (sum(increase(kerf_placement_outcomes_total{outcome="bound"}[10m])) or vector(0)) == 0',
        wait="0m",
        summary="{{ $value }} pods are decided and none of them gets bound",
        description="For ten minutes no Binding was seen while pods waited for one: the watcher or the API server "
        "refuses or does not answer.",
        example=Example(
            series={"kerf_pods_holding": "0 3x20", 'kerf_placement_outcomes_total{outcome="decided"}': "3x20"},
            at="15m",
            value="3",
        ),
    ),
    Alert(
        name="KerfPodPendingLong",
        severity="warning",
        expr="max(kerf_pods_waiting_oldest_seconds) > 4 * 3600",
        wait="5m",
        summary="A pod has been pending for {{ $value | humanizeDuration }}",
        description="It may just be a full cluster: `kerf why POD` says what is missing, `kerf when POD` when it could "
        "start.",
        example=Example(series={"kerf_pods_waiting_oldest_seconds": "14460+60x20"}, at="10m", value="4h 11m 0s"),
    ),
    Alert(
        name="KerfPodsExcluded",
        severity="warning",
        expr="max(kerf_placement_pods_excluded) > 0",
        wait="5m",
        summary="{{ $value }} pending pods cannot be updated and are not placed",
        description="After the log was lost Kerf must update each pending pod once. These could not be: look for a "
        "webhook that undoes or denies it.",
        example=Example(series={'kerf_placement_pods_excluded{instance="a"}': "2x20"}, at="8m", value="2"),
    ),
    Alert(
        name="KerfConfigInvalid",
        severity="warning",
        expr="kerf_config_invalid == 1",
        wait="1m",
        summary="The settings file of {{ $labels.instance }} is invalid",
        description="The last valid settings stay in force, and would be lost with a restart: then the service does "
        "not start.",
        example=Example(series={'kerf_config_invalid{instance="a"}': "0 1x10"}, at="3m", labels={"instance": "a"}),
    ),
    Alert(
        name="KerfPolicyInvalid",
        severity="warning",
        expr="max(kerf_policy_invalid) == 1",
        wait="1m",
        summary="ConfigMap kerf-policy cannot be read",
        description="The queues that were read before stay in force. A new leader would have none and would place no "
        "pod.",
        example=Example(series={'kerf_policy_invalid{instance="a"}': "0 1x10"}, at="3m"),
    ),
    Alert(
        name="KerfClusterViewStale",
        severity="warning",
        expr="max(kerf_watcher_kinds_troubled) > 0",
        wait="5m",
        summary="{{ $value }} kinds of Kubernetes objects are not followed",
        description="The watcher cannot list or watch them, so Kerf decides by what it last saw.",
        example=Example(series={'kerf_watcher_kinds_troubled{instance="a"}': "1x20"}, at="8m", value="1"),
    ),
    Alert(
        name="KerfGpuUnhealthy",
        severity="warning",
        expr="sum by (node) (kerf_node_gpus_unhealthy) > 0",
        wait="5m",
        summary="{{ $value }} GPUs of node {{ $labels.node }} take no new slices",
        description="`kerf inspect -d {{ $labels.node }}` has the reason. Cordoned GPUs count too.",
        example=Example(
            series={'kerf_node_gpus_unhealthy{model="H200",node="n1"}': "0 1x20"},
            at="8m",
            labels={"node": "n1"},
            value="1",
        ),
    ),
    Alert(
        name="KerfUsageBookBehind",
        severity="warning",
        expr="max(kerf_usage_records_waiting) > 4000 or max(kerf_event_lag_seconds) > 300\n"
        "or sum(increase(kerf_usage_write_failures_total[10m])) > 0",
        wait="5m",
        summary="The usage book does not keep up with the events",
        description="Usage is late but not lost as long as the event stream keeps it (seven days). Most often the "
        "volume is full or slow.",
        example=Example(
            series={
                "kerf_usage_records_waiting": "0x20",
                "kerf_event_lag_seconds": "0x20",
                "kerf_usage_write_failures_total": "0 1+1x20",
            },
            at="9m",
        ),
    ),
    Alert(
        name="KerfEventsMissed",
        severity="warning",
        # The second: a service that was away has a new series, which begins with what it missed.
        expr="increase(kerf_bus_events_missed_total[1h]) > 0\n"
        "or (kerf_bus_events_missed_total > 0 unless kerf_bus_events_missed_total offset 1h)",
        wait="0m",
        summary="{{ $labels.instance }} missed events of the stream",
        description="The event stream dropped them before they were read. The usage, the bills and the counters of "
        "that time are incomplete, and stay so.",
        example=Example(
            series={'kerf_bus_events_missed_total{instance="a"}': "_ _ 7x10"}, at="5m", labels={"instance": "a"}
        ),
    ),
    Alert(
        name="KerfStatusUnknown",
        severity="warning",
        expr="max(kerf_status_age_seconds) > 60",
        wait="5m",
        summary="Placement has not answered the metrics service for {{ $value | humanizeDuration }}",
        description="The figures of placement, such as double bookings, agents and waiting pods, have no samples now: "
        "alerts on them cannot fire.",
        example=Example(series={"kerf_status_age_seconds": "1 61+60x20"}, at="8m", value="8m 1s"),
    ),
    Alert(
        name="KerfNoOperatorLeader",
        severity="warning",
        expr="sum(kerf_operator_leading) == 0",
        wait="5m",
        summary="No operator leads: nodes are not enrolled and certificates not renewed",
        description="Operators run, and for five minutes none of them has held the Lease. Pods are placed and run as "
        "before.",
        example=Example(series={f'kerf_operator_leading{{instance="{i}"}}': "0x12" for i in "ab"}, at="6m"),
    ),
    Alert(
        name="KerfConditionNotMet",
        severity="warning",
        expr='max by (type) (kerf_operator_condition{type!="NodesEnrolled"} and ignoring (type) '
        "kerf_operator_leading == 1) == 0",
        wait="1h",
        summary="Condition {{ $labels.type }} of Kerf's installation has not been met for an hour",
        description="ConfigMap kerf-status says what is wrong and what to do. What the operator mends by itself takes "
        "minutes.",
        example=Example(
            series={
                'kerf_operator_condition{instance="a",type="NatsReady"}': "1 1 0x80",
                'kerf_operator_condition{instance="b",type="NatsReady"}': "1x90",
                'kerf_operator_leading{instance="a"}': "1x90",
                'kerf_operator_leading{instance="b"}': "0x90",
            },
            at="64m",
            labels={"type": "NatsReady"},
        ),
    ),
    Alert(
        name="KerfCertificateExpires",
        severity="warning",
        # A certificate is renewed when a third of its life is left: one of 30 days, 10 days before its end. Operators
        # of the version before do not export its beginning.
        expr=f"min by (name) ({_CERTIFICATE_ENDS} - time() "
        f"< clamp_max(({_CERTIFICATE_ENDS} - {_CERTIFICATE_BEGINS}) / 4, {14 * DAY_S}) "
        f"or ({_CERTIFICATE_ENDS} unless {_CERTIFICATE_BEGINS}) - time() < {14 * DAY_S})",
        wait="10m",
        summary="Certificate {{ $labels.name }} expires in {{ $value | humanizeDuration }}",
        description="It should have been renewed long before. With an expired certificate the API server refuses pods "
        "with foreign dialects, or the services lose NATS.",
        example=Example(
            series={
                'kerf_certificate_not_after_seconds{name="kerf-admission"}': f"{7 * DAY_S + 1200}x20",
                'kerf_certificate_not_before_seconds{name="kerf-admission"}': f"{1200 - 23 * DAY_S}x20",
            },
            at="20m",
            labels={"name": "kerf-admission"},
            value="7d 0h 0m 0s",
        ),
        more_examples=(
            Example(
                series={
                    'kerf_certificate_not_after_seconds{name="kerf-ca"}': f"{13 * DAY_S + 1200}x20",
                    'kerf_certificate_not_before_seconds{name="kerf-ca"}': f"{1200 - 1812 * DAY_S}x20",
                },
                at="20m",
                labels={"name": "kerf-ca"},
                value="13d 0h 0m 0s",
            ),
            Example(
                series={'kerf_certificate_not_after_seconds{name="kerf-nats-tls"}': f"{DAY_S + 1200}x20"},
                at="20m",
                labels={"name": "kerf-nats-tls"},
                value="1d 0h 0m 0s",
            ),
        ),
    ),
)
