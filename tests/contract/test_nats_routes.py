"""How the chart's three NATS servers join each other, and what does not join them."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.operator import certificates as pki
from services.operator.authority import server_names
from services.operator.config import Config
from services.operator.objects import ADMISSION_TLS, NATS_TLS
from services.operator.passwords import ROUTES
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from tests.support.nats_cluster import provision_cluster
from tests.support.waiting import eventually
from tools.control_plane import free_ports
from tools.manifests import template

PASSWORD = "k0123"
JOINS_WITHIN_S = 20.0


class Chart:
    """The chart's servers, on ports of this machine and with certificates of a CA as the operator makes them."""

    def __init__(self, folder: Path) -> None:
        documents = list(
            yaml.safe_load_all(template("--set=nats.replicas=3", "--show-only=templates/30-nats.yaml", "--no-hooks"))
        )
        (config,) = [d["data"]["nats.conf"] for d in documents if d["kind"] == "ConfigMap"]
        (self._servers,) = [d for d in documents if d["kind"] == "StatefulSet"]
        found = re.search(r"^cluster \{.*?^\}$", config, re.MULTILINE | re.DOTALL)
        assert found, "the chart's servers have no routes"
        self._cluster, self._folder, self.ports = found[0], folder, free_ports(4)
        signer = pki.new_authority(time.time(), 10, os.urandom)
        (folder / "ca.crt").write_text(signer.pem.certificate)
        for name, hosts in server_names(Config()).items():
            pair = pki.issue(signer, hosts, time.time(), 5, os.urandom, client=name == NATS_TLS)
            (folder / f"{name}.crt").write_text(pair.certificate)
            (folder / f"{name}.key").write_text(pair.key)

    def environment(self, password: str) -> dict[str, str]:
        """Of a server's container, as the kubelet expands it; Secret kerf-nats has this password for routes."""
        found: dict[str, str] = {}
        for entry in self._servers["spec"]["template"]["spec"]["containers"][0]["env"]:
            source: dict[str, Any] = entry.get("valueFrom", {}).get("secretKeyRef", {})
            if source.get("key") == ROUTES:
                found[entry["name"]] = password
            elif "value" in entry:
                text = re.sub(r"\$\((\w+)\)", lambda match: found.get(match[1], match[0]), entry["value"])
                found[entry["name"]] = self._here(text)
        return found

    def _here(self, text: str) -> str:
        return re.sub(r"kerf-nats-(\d)\.[\w.-]+:6222", lambda match: f"localhost:{self.ports[int(match[1])]}", text)

    def server(self, number: int, certificate: str = NATS_TLS) -> EmbeddedServer:
        own = self._folder / certificate
        cluster = (
            self._cluster.replace("port: 6222", f"listen: '127.0.0.1:{self.ports[number]}'")
            .replace("/etc/nats-tls/tls.crt", f"'{own}.crt'")
            .replace("/etc/nats-tls/tls.key", f"'{own}.key'")
            .replace("/etc/nats-tls/ca.crt", f"'{self._folder / 'ca.crt'}'")
        )
        log = f"log_file: '{self.log(number)}'"
        return EmbeddedServer(extra_config=f"{log}\n{cluster}", server_name=f"kerf-nats-{number}")

    def log(self, number: int) -> Path:
        return self._folder / f"{number}.log"


@pytest.fixture
def chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chart:
    made = Chart(tmp_path)
    for name, value in made.environment(PASSWORD).items():
        monkeypatch.setenv(name, value)
    return made


async def test_the_charts_three_servers_join_each_other(chart: Chart) -> None:
    async with chart.server(0) as first, chart.server(1), chart.server(2), await NatsBus.connect(first.url) as bus:
        await provision_cluster(bus, replicas=3)


@pytest.mark.parametrize(
    ("certificate", "password", "refusal"),
    [
        (NATS_TLS, "another", "authentication error"),
        (ADMISSION_TLS, PASSWORD, "incompatible key usage"),
    ],
)
async def test_a_server_without_the_password_or_with_the_webhooks_certificate_does_not_join(
    certificate: str, password: str, refusal: str, chart: Chart, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with chart.server(0):
        for name, value in chart.environment(password).items():
            monkeypatch.setenv(name, value)
        async with chart.server(3, certificate):
            await eventually(lambda: refusal in chart.log(0).read_text(), within_s=JOINS_WITHIN_S)
