"""Metrics in Prometheus' text format, logs as JSON lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shared.telemetry import Metrics, configure_logging
from shared.telemetry.metrics import MIB, Former


def values(metrics: Metrics) -> dict[str, float]:
    """Sample name with labels to value, read by prometheus_client's own parser; without those of the process."""
    samples = {}
    families = text_string_to_metric_families(metrics.render().decode())
    for family in (family for family in families if not family.name.startswith("process_")):
        for sample in family.samples:
            samples[sample.name + "".join(f",{k}={v}" for k, v in sorted(sample.labels.items()))] = sample.value
    return samples


def test_counters_gauges_and_histograms_read_as_prometheus_wants_them() -> None:
    metrics = Metrics()
    metrics.counter("kerf_decisions", "Decisions.", ("outcome",)).add(3, "bound")
    metrics.gauge("kerf_queue", "Waiting pods.").set(7)
    histogram = metrics.histogram("kerf_decide_seconds", "Time.", buckets=(0.1, 1.0))
    for seconds in (0.1, 0.5, 5.0):
        histogram.observe(seconds)
    assert values(metrics) == {
        "kerf_decisions_total,outcome=bound": 3.0,
        "kerf_queue": 7.0,
        "kerf_decide_seconds_bucket,le=0.1": 1.0,
        "kerf_decide_seconds_bucket,le=1.0": 2.0,
        "kerf_decide_seconds_bucket,le=+Inf": 3.0,
        "kerf_decide_seconds_count": 3.0,
        "kerf_decide_seconds_sum": 5.6,
    }


def test_a_counter_that_never_rose_shows_zero() -> None:
    metrics = Metrics()
    metrics.counter("kerf_failures", "Failures.")
    assert values(metrics) == {"kerf_failures_total": 0.0}


def test_a_metric_may_be_computed_when_it_is_scraped() -> None:
    metrics = Metrics()
    state = {("a",): 1.0}
    metrics.observe_by("kerf_free", "Free.", lambda: state, labels=("node",))
    state["b",] = 2.0
    assert values(metrics) == {"kerf_free,node=a": 1.0, "kerf_free,node=b": 2.0}


def test_a_renamed_metric_is_exported_under_both_names_in_their_units() -> None:
    metrics = Metrics()
    metrics.observe_by(
        "kerf_used_bytes", "Used.", lambda: {("a",): 2.0 * MIB}, labels=("gpu",), former=Former("kerf_used_mib", MIB)
    )
    metrics.observe_by("kerf_p50_seconds", "Time.", lambda: 0.25, former=Former("kerf_us_p50", 1e-6))
    assert values(metrics) == {
        "kerf_used_bytes,gpu=a": 2097152.0,
        "kerf_used_mib,gpu=a": 2.0,
        "kerf_p50_seconds": 0.25,
        "kerf_us_p50": 250_000.0,
    }
    assert metrics.described()["kerf_used_mib"].text == "Former name, until 0.3. Used."


def test_the_process_is_measured() -> None:
    assert "process_resident_memory_bytes " in Metrics().render().decode()


def test_metrics_are_described_by_the_names_of_their_samples() -> None:
    metrics = Metrics()
    metrics.counter("kerf_x", "X.", ("a",))
    metrics.histogram("kerf_y_seconds", "Y.", ("b",))
    metrics.observe_by("kerf_z", "Z.", dict, labels=("c",))
    assert {name: (made.kind, made.labels) for name, made in metrics.described().items()} == {
        "kerf_x_total": ("counter", ("a",)),
        "kerf_y_seconds_bucket": ("histogram", ("b", "le")),
        "kerf_y_seconds_sum": ("histogram", ("b",)),
        "kerf_y_seconds_count": ("histogram", ("b",)),
        "kerf_z": ("gauge", ("c",)),
    }


def test_the_same_name_gives_the_same_family_and_another_kind_is_refused() -> None:
    metrics = Metrics()
    metrics.counter("kerf_x", "X.").add(1)
    metrics.counter("kerf_x", "X.").add(1)
    assert values(metrics) == {"kerf_x_total": 2.0}
    with pytest.raises(ValueError, match="exists as a counter"):
        metrics.histogram("kerf_x", "X.")
    with pytest.raises(ValueError, match="1 values were given"):
        metrics.counter("kerf_x", "X.").add(1, "label")


def test_logs_are_one_json_object_a_line_above_the_level() -> None:
    """In a separate process, because logging is per process."""
    program = (
        "import structlog\nfrom shared.telemetry import configure_logging\nconfigure_logging('warning', pretty=False)\n"
        "log = structlog.get_logger().bind(service='s')\nlog.info('quiet')\nlog.warning('loud', node='n1', "
        "odd={1, 2}.__class__)\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    log.error('broken', exc_info=error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["event"], line["level"], line["service"]) for line in lines] == [
        ("loud", "warning", "s"),
        ("broken", "error", "s"),
    ]
    assert lines[0]["node"] == "n1"
    assert lines[0]["timestamp"].endswith("Z")
    assert lines[1]["exception"][0]["exc_type"] == "ZeroDivisionError"


def test_a_logged_exception_keeps_local_variables_to_itself() -> None:
    """They may hold credentials, and whole pods by the hundred."""
    program = (
        "import structlog\nfrom shared.telemetry import configure_logging\nconfigure_logging(pretty=False)\n"
        "def open_door(token):\n    return 1 / 0\n"
        "try:\n    open_door('very-' + 'secret')\nexcept ZeroDivisionError as error:\n    "
        "structlog.get_logger().error('broken', exc_info=error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stderr)["exception"][0]["frames"][-1]["name"] == "open_door"
    assert "very-secret" not in done.stderr


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="log level 'loud' is none of"):
        configure_logging("loud")


def _run(program: str, **env: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ | env
    )
    return done.stderr.splitlines()


def test_libraries_that_use_the_standard_librarys_logging_log_json_too() -> None:
    program = (
        "import logging; from shared.telemetry import configure_logging; configure_logging(pretty=False)\n"
        "try: 1/0\n"
        "except ZeroDivisionError: logging.getLogger('grpc').exception('bad %s', 3)\n"
    )
    (line,) = _run(program)
    told = json.loads(line)
    assert (told["event"], told["logger"], told["level"]) == ("bad 3", "grpc", "error")
    assert told["exception"][0]["exc_type"] == "ZeroDivisionError"


def test_what_grpc_itself_says_is_not_between_the_json_lines() -> None:
    """A server that cannot bind: the core would log a line of its own beside the exception."""
    program = (
        "import asyncio, services.node_agent.handover.registration as r\n"
        "async def main():\n"
        "    try: r.grpc.aio.server().add_insecure_port('unix:/nonexistent/dir/x.sock')\n"
        "    except RuntimeError: pass\n"
        "asyncio.run(main())\n"
    )
    assert _run(program) == []
    shown = _run(program, GRPC_VERBOSITY="DEBUG")
    assert any("Failed to add port" in line for line in shown), "a user who asks for these lines sees them"


@pytest.mark.parametrize("pretty", [False, True])
def test_passwords_in_urls_are_not_logged(pretty: bool) -> None:
    program = (
        f"import structlog; from shared.telemetry import configure_logging; configure_logging(pretty={pretty})\n"
        "structlog.get_logger().info('connects', url='nats://reader:s3cret@host:4222', deep={'a': ['tls://t0ken@h']})\n"
    )
    (line,) = _run(program)
    assert "nats://reader:***@host:4222" in line
    assert "s3cret" not in line
    assert "t0ken" not in line
