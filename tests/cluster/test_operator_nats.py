"""The operator with a real API server and a real NATS server with TLS: agents come by their ServiceAccount's token."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import structlog
from cryptography import x509

from services.node_agent.config import Config as AgentConfig
from services.node_agent.remote.identity import Identity
from services.operator import nats_servers
from services.operator.service import Operator
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError, Incoming
from shared.bus.provision import provision, scale
from shared.contracts import permissions, subjects
from shared.contracts.base import encode
from shared.contracts.envelope import wrap
from shared.contracts.events import SliceEnforced, SliceReleased
from shared.contracts.identity import IdentityRequest
from shared.service import running
from tests.cluster.test_operator import Site
from tests.support.nats_cluster import cluster_section
from tests.support.waiting import eventually
from tools.control_plane import ControlPlane, free_ports

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "k8s" / "nats-callout.conf"
EXAMPLE = ROOT / "docs" / "examples" / "usage_account.py"


class Installation:
    """An operator, NATS with the Secrets that it made, and tokens of agents."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site, self.folder = site, folder
        self.port = free_ports(1)[0]
        self.server: EmbeddedServer
        self.ca = str(folder / "ca.crt")
        self.users = folder / "kerf.conf"

    def config(self, **settings: Any) -> Any:
        return self.site.config(
            nats_url=f"nats://127.0.0.1:{self.port}",
            check_s=0.5,
            retry_s=0.2,
            reload_after_s=0.5,
            reload_users_after_s=0.5,
            **settings,
        )

    def mount(self) -> None:
        """As the kubelet updates the volumes of the servers' and the clients' pods."""
        for key, text in self.site.data("secrets", "kerf-nats-tls").items():
            (self.folder / f"server-{key}").write_text(text)
        (self.folder / "ca.crt").write_text(self.site.data("configmaps", "kerf-ca")["ca.crt"])

    async def start_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        await self.site.until(lambda: self.site.data("secrets", "kerf-nats-tls"))
        self.mount()
        for key, text in self.site.data("secrets", "kerf-nats").items():
            monkeypatch.setenv(f"KERF_NATS_{key.upper()}", text)
        tls = (
            f"tls {{ cert_file: '{self.folder}/server-tls.crt', key_file: '{self.folder}/server-tls.key', timeout: 5 }}"
        )
        self.users.write_text(CONF.read_text())
        self.server = EmbeddedServer(config_file=self.users, extra_config=tls, port=self.port)
        await self.server.start()

    async def as_user(self, user: str) -> NatsBus:
        password = self.site.data("secrets", "kerf-nats")[user]
        url = f"nats://{user}:{password}@127.0.0.1:{self.port}"
        return await NatsBus.connect(url, ca_file=self.ca, inbox_prefix=f"_INBOX_{user}")

    def token(self, node: str, *, account: str = "kerf-node-agent", audience: str = "kerf-nats") -> Path:
        """The token of a pod of this account on the node."""
        call, space = self.site.call, self.site.namespace
        name = f"{account}-{node}"
        call("POST", "/api/v1/nodes", {"metadata": {"name": node}})
        call("POST", self.site.path("serviceaccounts"), {"metadata": {"name": account}})
        pod = {"metadata": {"name": name}, "spec": {"nodeName": node, "serviceAccountName": account,
               "containers": [{"name": "c", "image": "i"}]}}  # fmt: skip
        call("POST", self.site.path("pods"), pod)
        uid = call("GET", self.site.path("pods", name))[1]["metadata"]["uid"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid}
        return self._token_of(space, account, f"{name}-{len(audience)}", audiences=[audience], boundObjectRef=bound)

    def token_of_others(self, namespace: str, account: str) -> Path:
        """The token of an account of a namespace that is not Kerf's; both are made."""
        self.site.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self.site.call("POST", accounts, {"metadata": {"name": account}})
        return self._token_of(namespace, account, f"{namespace}-{account}", audiences=["kerf-nats"])

    def _token_of(self, namespace: str, account: str, name: str, **spec: Any) -> Path:
        body = {"spec": {"expirationSeconds": 3600, **spec}}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        status, made = self.site.call("POST", path, body)
        assert status == 201, made
        file = self.folder / f"token-{name}"
        file.write_text(made["status"]["token"])
        return file

    async def agent(self, node: str, token: Path | None = None, timeout_s: float = 10.0) -> NatsBus:
        file = token or self.token(node)
        return await NatsBus.connect(
            f"nats://127.0.0.1:{self.port}",
            token_file=str(file),
            ca_file=self.ca,
            inbox_prefix=permissions.agent_inbox(node),
            timeout_s=timeout_s,
        )


@pytest.fixture
async def installation(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Installation]:
    made = Installation(Site(control_plane, namespace), tmp_path)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(running(Operator, made.config()))
        await made.start_server(monkeypatch)
        stack.push_async_callback(made.server.stop)
        yield made


async def test_an_agent_speaks_for_its_own_node_alone(installation: Installation) -> None:
    node = "worker-1.example.com"
    async with await installation.as_user("placement") as placement, await installation.agent(node) as agent:
        await provision(placement)
        heard: list[str] = []

        async def came(incoming: Incoming) -> None:
            heard.append(incoming.subject)

        await placement.subscribe(subjects.HEARTBEAT_ALL, came)
        await placement.subscribe(subjects.RELEASES_ALL, came)
        for one in (node, "worker-2"):
            await agent.publish(subjects.heartbeat(one), b"{}")
            await agent.publish(subjects.release(one), b"{}")
        assert await agent.alive()
        await eventually(lambda: len(heard) == 2)
        assert set(heard) == {subjects.heartbeat(node), subjects.release(node)}
        assert agent.stats.denied == 2
        kv = agent.kv(subjects.KV_NODES)
        await kv.put(subjects.token(node), b"{}")
        with pytest.raises(BusError, match="not permitted to publish"):
            await kv.put("worker-2", b"{}")
        with pytest.raises(BusError, match="not permitted"):
            await agent.subscribe(subjects.node_command("worker-2", "grant"), came)
        with pytest.raises(BusError, match="not permitted"):
            await agent.subscribe(permissions.AUTH_REQUEST, came)


async def test_an_agent_answers_placements_orders_on_the_subject_that_they_name(installation: Installation) -> None:
    async with await installation.as_user("placement") as placement, await installation.agent("n1") as agent:

        async def order(incoming: Incoming) -> None:
            await agent.respond(incoming, b"done")

        heard: list[bytes] = []

        async def came(incoming: Incoming) -> None:
            heard.append(incoming.payload)

        await agent.subscribe(subjects.node_command("n1", "sync"), order)
        await placement.subscribe(subjects.ack("p1", "sync", "*"), came)
        await placement.publish(subjects.node_command("n1", "sync"), b"", reply=subjects.ack("p1", "sync", "n1"))
        await eventually(lambda: heard == [b"done"])
        assert await placement.request(subjects.node_command("n1", "sync"), b"") == b"done"


async def test_other_accounts_audiences_and_texts_are_refused(installation: Installation) -> None:
    garbage = installation.folder / "garbage"
    garbage.write_text("not a token")
    for token in (
        installation.token("n2", account="kerf-metrics"),
        installation.token("n2", audience="https://kubernetes.default.svc"),
        garbage,
    ):
        with pytest.raises(BusError, match="cannot connect to NATS"):
            await installation.agent("n2", token, timeout_s=1.5)
    with pytest.raises(BusError, match="Authorization Violation"):
        await NatsBus.connect(f"nats://placement:guess@127.0.0.1:{installation.port}", ca_file=installation.ca)


@pytest.fixture
async def listened(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Installation]:
    """Which a tenant and a tool listen to: team-NAMESPACE and tools-NAMESPACE/usage."""
    made = Installation(Site(control_plane, namespace), tmp_path)
    config = made.config(listening_namespaces=(f"team-{namespace}",), listening_accounts=(f"tools-{namespace}/usage",))
    async with running(Operator, config):
        await made.start_server(monkeypatch)
        async with await made.as_user("placement") as placement:
            await provision(placement)
        yield made
        await made.server.stop()


async def test_a_listed_namespaces_accounts_hear_its_events_and_say_nothing(listened: Installation) -> None:
    team = f"team-{listened.site.namespace}"
    mine, others = (subjects.event_in_namespace("slice", "enforced", space) for space in (team, "others"))
    heard: list[str] = []

    async def came(incoming: Incoming) -> None:
        heard.append(incoming.subject)

    async with await listened.as_user("node_agent") as agent:
        for account in ("default", "trainer"):
            heard.clear()
            async with await NatsBus.connect(
                f"nats://127.0.0.1:{listened.port}",
                token_file=str(listened.token_of_others(team, account)),
                ca_file=listened.ca,
                inbox_prefix=permissions.tenant_of(team).inbox_prefix,
            ) as tenant:
                await tenant.subscribe(mine, came)
                for subject in (others, subjects.FEED_ALL, "_INBOX_tool.>", "_INBOX_reader.>"):
                    with pytest.raises(BusError, match="not permitted"):
                        await tenant.subscribe(subject, came)
                denied = tenant.stats.denied
                for subject in (mine, subjects.CMD_BIND, "$JS.API.STREAM.INFO.KERF_EVENTS"):
                    await tenant.publish(subject, b"{}")
                await eventually(lambda bus=tenant, before=denied: bus.stats.denied == before + 3)
                agent.publish_event(others, b"{}", f"others-{account}")
                agent.publish_event(mine, b"{}", f"mine-{account}")
                await eventually(lambda: heard == [mine])


async def test_a_listed_account_reads_the_stream_with_the_documented_example(listened: Installation) -> None:
    """And another account of its namespace does not come in."""
    space = f"tools-{listened.site.namespace}"
    user = permissions.tool_of(space, "usage")
    pod = {"uid": "u", "namespace": "team-a", "name": "p", "node": "n", "grant_id": "g"}
    begun = SliceEnforced(container="c", strategy="advisory", promise="soft", gpus={"G": (40_960, 500)}, **pod)
    async with await listened.as_user("node_agent") as agent:
        for event, hours in ((begun, 0), (SliceReleased(boot_id="b", **pod), 2)):
            identity, payload = wrap(event, source="/test", now_s=1_790_000_000 + hours * 3600)
            subject = subjects.event_in_namespace(event.ENTITY, event.VERB, "team-a")
            agent.publish_event(subject, payload, identity)
        await eventually(lambda: agent.stats.events_acknowledged == 2)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        str(EXAMPLE),
        env={
            "NATS_URL": f"tls://127.0.0.1:{listened.port}",
            "NATS_TOKEN_FILE": str(listened.token_of_others(space, "usage")),
            "NATS_INBOX_PREFIX": user.inbox_prefix,
            "NATS_CA": listened.ca,
        },
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().split()
        assert line[1:] == ["team-a", "gpu_hours=1.000", "gib_hours=80.000"]
    finally:
        process.kill()
        await process.wait()
    with pytest.raises(BusError, match="cannot connect to NATS"):
        await NatsBus.connect(
            f"nats://127.0.0.1:{listened.port}",
            token_file=str(listened.token_of_others(space, "another")),
            ca_file=listened.ca,
            timeout_s=1.5,
        )


async def test_an_agent_waits_for_an_operator_and_survives_without_one(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passwords work without an operator; an agent that comes meanwhile is admitted when one is there."""
    made = Installation(Site(control_plane, namespace), tmp_path)
    async with running(Operator, made.config()):
        await made.start_server(monkeypatch)
        agent = await made.agent("n3")
    token = made.token("n4")
    try:
        async with await made.as_user("placement") as placement:
            assert await placement.alive()
            assert await agent.alive()
            late = asyncio.create_task(made.agent("n4", token, timeout_s=30))
            async with running(Operator, made.config()), await late as other:
                await eventually(other.alive)
    finally:
        await agent.close()
        await made.server.stop()


async def test_an_agents_session_begins_anew_with_its_newest_token(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Installation(Site(control_plane, namespace), tmp_path)
    async with running(Operator, made.config(agent_session_s=1.0)):
        await made.start_server(monkeypatch)
        async with await made.agent("n5") as agent:
            await eventually(lambda: agent.stats.reconnects >= 2)
            await eventually(agent.alive)
        await made.server.stop()


async def test_a_renewed_certificate_is_served_without_a_restart(installation: Installation) -> None:
    site, pid = installation.site, installation.server.pid
    before = site.data("secrets", "kerf-nats-tls")["tls.crt"]

    async def served() -> int:
        """The serial number that the server shows."""
        reader, writer = await asyncio.open_connection("127.0.0.1", installation.port)
        await reader.readline()
        context = ssl.create_default_context(cafile=installation.ca)
        await writer.start_tls(context, server_hostname="127.0.0.1")
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return x509.load_der_x509_certificate(found).serial_number

    async with await installation.as_user("placement") as placement, await installation.agent("n6") as agent:
        assert await served() == x509.load_pem_x509_certificate(before.encode()).serial_number
        first, renewed = (x509.load_pem_x509_certificate(before.encode()),) * 2
        while renewed.not_valid_after_utc == first.not_valid_after_utc:  # what servers tell has whole seconds
            text = site.data("secrets", "kerf-nats-tls")["tls.crt"]
            site.call("PATCH", site.path("secrets", "kerf-nats-tls"), {"data": {"tls.crt": ""}}, patch=True)
            await site.until(lambda old=text: site.data("secrets", "kerf-nats-tls")["tls.crt"] not in ("", old))
            renewed = x509.load_pem_x509_certificate(site.data("secrets", "kerf-nats-tls")["tls.crt"].encode())
        installation.mount()

        async def is_served() -> bool:
            return await served() == renewed.serial_number

        await eventually(is_served)
        assert installation.server.pid == pid
        await eventually(agent.alive)
        assert await placement.alive()
        await eventually(lambda: "NATS" not in site.data("configmaps", "kerf-status")["summary"])


async def test_new_permissions_are_read_and_new_settings_replace_the_pod(installation: Installation) -> None:
    """The server's process stays for the first. For the second its pod is deleted: its StatefulSet makes a new one."""
    site, sets = installation.site, f"/apis/apps/v1/namespaces/{installation.site.namespace}/statefulsets"
    labels = {"app.kubernetes.io/part-of": "kerf"}
    spec = {"containers": [{"name": "nats", "image": "i"}]}

    def template(restart: str) -> dict[str, Any]:
        return {"metadata": {"labels": labels, "annotations": {"kerf.dev/nats-restart": restart}}, "spec": spec}

    body = {
        "metadata": {"name": "kerf-nats", "annotations": {nats_servers.USERS: "abc"}},
        "spec": {"selector": {"matchLabels": labels}, "serviceName": "kerf-nats", "template": template("1")},
    }
    status, made = site.call("POST", sets, body)
    assert status == 201, made
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "kerf-nats", "uid": made["metadata"]["uid"]}
    site.call(
        "POST",
        site.path("pods"),
        template("1") | {"metadata": template("1")["metadata"] | {"name": "kerf-nats-0", "ownerReferences": [owner]}},
    )

    def pod() -> Any:
        status, found = site.call("GET", site.path("pods", "kerf-nats-0"))
        return found["metadata"]["annotations"] if status == 200 else None

    await site.until(lambda: pod().get(nats_servers.USERS) == "abc")
    await site.until(lambda: "earlier permissions" in site.data("configmaps", "kerf-status")["summary"])
    installation.users.write_text(f'server_tags: ["{nats_servers.USERS}:abc"]\n{CONF.read_text()}')
    pid = installation.server.pid
    await site.until(lambda: "earlier permissions" not in site.data("configmaps", "kerf-status")["summary"])
    assert (installation.server.pid, pod() is None) == (pid, False)
    site.call("PATCH", f"{sets}/kerf-nats", {"spec": {"template": template("2")}}, patch=True)
    await site.until(lambda: pod() is None)


async def test_three_servers_with_tls_between_them_serve_and_reload(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The users, the system account and the callout work on every server of a cluster; each reloads by itself."""
    made = Installation(Site(control_plane, namespace), tmp_path)
    ports, routes = [made.port, *free_ports(2)], free_ports(3)
    urls = ",".join(f"nats://127.0.0.1:{port}" for port in ports)
    async with contextlib.AsyncExitStack() as stack:
        config = msgspec.structs.replace(made.config(nats_servers=3), nats_url=urls)
        await stack.enter_async_context(running(Operator, config))
        await made.site.until(lambda: made.site.data("secrets", "kerf-nats-tls"))
        made.mount()
        for key, text in made.site.data("secrets", "kerf-nats").items():
            monkeypatch.setenv(f"KERF_NATS_{key.upper()}", text)
        own = tmp_path / "server-tls"
        files = f"cert_file: '{own}.crt', key_file: '{own}.key', timeout: 5"
        servers = []
        for i, port in enumerate(ports):
            between = f"tls {{ {files}, ca_file: '{tmp_path}/server-ca.crt', verify: true }}"
            extra = f"tls {{ {files} }}\n{cluster_section(i, routes, between)}"
            server = EmbeddedServer(config_file=CONF, extra_config=extra, port=port, server_name=f"kerf-nats-{i}")
            servers.append(server)
            stack.push_async_callback(server.stop)
        await asyncio.gather(*(server.start() for server in servers))

        def condition() -> str:
            found = json.loads(made.site.data("configmaps", "kerf-status")["conditions"])
            return next(c["message"] for c in found if c["type"] == "NatsReady")

        await eventually(lambda: condition() == "3 NATS servers answer", within_s=30)
        async with await made.as_user("placement") as placement:

            async def provisioned() -> bool:
                with contextlib.suppress(BusError):
                    await provision(placement, replicas=3)
                    return not await scale(placement, replicas=3)
                return False

            await eventually(provisioned, within_s=40, every_s=0.2)
            token = made.token("n7")
            for port in ports:
                made.port = port
                async with await made.agent("n7", token) as agent:
                    assert await agent.alive()
                    await agent.kv(subjects.KV_NODES).put("n7", b"{}")


async def test_an_agent_gets_the_certificate_of_its_own_node_and_of_no_other(
    installation: Installation, tmp_path: Path
) -> None:
    """With it two nodes show each other who they are: the operator signs, and no private key leaves a node."""
    for node in ("gpu-1", "cpu-1"):
        async with await installation.agent(node) as bus:
            identity = Identity(
                _context(bus), AgentConfig(node=node, checkpoint_file=str(tmp_path / node / "agent.json"))
            )
            assert await identity.obtain() == ""
            files = identity.certificates
            certificate = x509.load_pem_x509_certificates(files.certificate.read_bytes())[-1]
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            assert names.get_values_for_type(x509.DNSName) == [f"{node}.nodes.kerf.dev"]
            assert identity.grants_key().decode() == installation.site.data("secrets", "kerf-nats")["remote_grants_key"]
            with pytest.raises(BusError):
                await bus.request(subjects.identity("gpu-2"), encode(IdentityRequest(node="gpu-2", public_key="")))
    assert await _shake_hands(tmp_path / "gpu-1" / "remote", tmp_path / "cpu-1" / "remote", "gpu-1.nodes.kerf.dev")


async def _shake_hands(server: Path, client: Path, name: str) -> bool:
    """Whether the two files' owners accept each other by TLS, the client under this name of the server."""
    serves = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(server / "ca.crt"))
    serves.load_cert_chain(str(server / "tls.pem"))
    serves.verify_mode = ssl.CERT_REQUIRED
    asks = ssl.create_default_context(cafile=str(client / "ca.crt"))
    asks.load_cert_chain(str(client / "tls.pem"))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(2))
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=serves)
    port = listener.sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=asks, server_hostname=name)
    writer.write(b"hi")
    said = await reader.readexactly(2)
    writer.close()
    listener.close()
    return said == b"hi"


def _context(bus: NatsBus) -> Any:
    """What `Identity` needs of a service's context."""
    return SimpleNamespace(bus=bus, now=time.time, log=structlog.get_logger("test"))
