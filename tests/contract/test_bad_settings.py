"""Invalid settings, by service: each is refused by name before anything starts, with what would be valid."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.bus.embedded import EmbeddedServer
from shared.service import ConfigError, load, read_config, running
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]

BAD: list[tuple[str, str, str]] = [
    (
        "placement",
        "polcy: spread",
        "there is no setting polcy; known are advertise_capacity, autoscaler, exclude_after_s, learn_use, max_batch",
    ),
    ("placement", "policy: best-fit", "policy is 'best-fit'; it must be one of kerf, binpack, spread"),
    ("placement", "policy: fgd", "policy is 'fgd'; it must be one of kerf, binpack, spread, least-loaded-nearest"),
    ("placement", "max_holds: many", "setting max_holds: Expected `int`, got `str`; given was 'many'"),
    ("placement", "max_holds: 0", "setting max_holds: Expected `int` >= 1; given was 0"),
    ("placement", "renew_term_s: -1", "setting renew_term_s: Expected `float` > 0.0; given was -1"),
    ("watcher", "source: mesos", "setting source: Invalid enum value 'mesos'; given was 'mesos'"),
    ("watcher", "binds_in_flight: few", "setting binds_in_flight: Expected `int`"),
    ("watcher", "binds_in_flight: 0", "setting binds_in_flight: Expected `int` >= 1; given was 0"),
    ("watcher", "batch_facts: -3", "setting batch_facts: Expected `int` >= 1; given was -3"),
    ("watcher", "heartbeat_s: 0", "setting heartbeat_s: Expected `float` > 0.0; given was 0"),
    ("watcher", "kubeconfg: /x", "there is no setting kubeconfg"),
    ("node_agent", "poll_s: often", "setting poll_s: Expected `float`"),
    ("node_agent", "beat_s: -2", "setting beat_s: Expected `float` > 0.0; given was -2"),
    ("node_agent", "hollow: {name: a}", "setting hollow: Expected `array`, got `object`"),
    ("node_agent", "hollow: [{count: 8}]", "missing required field `name`"),
    ("node_agent", "hollow: [{name: a, memory_mib: -1}]", "memory_mib: Expected `int` >= 1; given was -1"),
    ("node_agent", "hollow: [{name: a, count: -1}]", "count: Expected `int` >= 0; given was -1"),
    ("metrics", "keep_days: for ever", "setting keep_days: Expected `int`"),
    ("metrics", "keep_days: 0", "setting keep_days: Expected `int` >= 1; given was 0"),
    ("metrics", "status_every_s: 0", "setting status_every_s: Expected `float` > 0.0; given was 0"),
    ("metrics", "{page_port: 0, page_host: 0.0.0.0}", "without sign-in the page listens on loopback alone"),
    ("metrics", "page_sign_in: password", "setting page_sign_in: Invalid enum value 'password'"),
    ("metrics", "databse: x", "there is no setting databse"),
    ("admission", "port: 99999", "setting port: Expected `int` <= 65535; given was 99999"),
    ("admission", "gpushare_unit: TiB", "setting gpushare_unit: Invalid enum value 'TiB'"),
    ("admission", "excluded_namespaces: kube-system", "setting excluded_namespaces: Expected `array`, got `str`"),
    ("admission", "max_body_bytes: 0", "setting max_body_bytes: Expected `int` >= 1; given was 0"),
    (
        "metrics",
        "lifecycle: {http_port: 70000}",
        "setting lifecycle.http_port: Expected `int` <= 65535; given was 70000",
    ),
    ("metrics", "lifecycle: {trace_ratio: 2}", "setting lifecycle.trace_ratio: Expected `float` <= 1.0; given was 2"),
    ("metrics", "lifecycle: {nats_replicas: 0}", "setting lifecycle.nats_replicas: Expected `int` >= 1; given was 0"),
    ("metrics", "lifecycle: {nats_wait_s: -1}", "setting lifecycle.nats_wait_s: Expected `float` >= 0.0; given was -1"),
]


@pytest.mark.parametrize(("service", "text", "words"), BAD, ids=[f"{row[0]}: {row[1]}" for row in BAD])
def test_an_invalid_setting_is_refused_by_name(tmp_path: Path, service: str, text: str, words: str) -> None:
    kind = load(service)
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refusal:
        read_config(service, kind.config_type, file=file, environ={})
    assert words in str(refusal.value)
    assert str(file) in str(refusal.value)
    file.write_text("{}")
    assert read_config(service, kind.config_type, file=file, environ={})[0] == kind.config_type()


@pytest.mark.parametrize("service", ["placement", "watcher", "admission", "node_agent", "metrics"])
def test_invalid_settings_end_the_process_with_status_2_and_one_sentence(tmp_path: Path, service: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("colour: green")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KERF_")}
    done = subprocess.run(
        [sys.executable, "-m", f"services.{service}", "--config", str(file)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "there is no setting colour; known are" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_price_file_that_cannot_be_used_ends_the_process_with_status_2(tmp_path: Path, nats: EmbeddedServer) -> None:
    (tmp_path / "prices.yaml").write_text("models: {H200: 3}\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("KERF_")}
    environment |= {"KERF_NATS_URL": nats.url, "KERF_PRICES": str(tmp_path / "prices.yaml")}
    done = subprocess.run(
        [sys.executable, "-m", "services.metrics"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert "it has prices and no currency; add one" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
async def nats() -> AsyncIterator[EmbeddedServer]:
    async with EmbeddedServer() as server:
        yield server


async def test_an_invalid_change_keeps_the_last_valid_settings(tmp_path: Path, nats: EmbeddedServer) -> None:
    kind = load("placement")
    file = tmp_path / "settings.json"
    file.write_text('{"max_holds": 9}')
    config, reload = read_config("placement", kind.config_type, file=file, environ={})[0], asyncio.Event()
    async with running(kind, config, bus_url=nats.url, config_file=file, reload=reload) as ctx:
        file.write_text('{"max_holds": "few"}')
        reload.set()

        def complaint() -> str:
            return str(ctx.health.report()["parts"].get("config", {}).get("detail", ""))

        await eventually(lambda: "given was 'few'" in complaint(), what="the complaint")
        assert ctx.health.report()["parts"]["config"]["ok"]
        assert ctx.config.max_holds == 9
        file.write_text('{"max_holds": 10}')
        reload.set()
        await eventually(lambda: ctx.config.max_holds == 10, what="the valid change")
        assert not ctx.failure.done()
