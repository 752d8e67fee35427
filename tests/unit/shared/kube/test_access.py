"""How the way to the API server is found."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from kubernetes_asyncio.config import incluster_config

from shared.kube import access as access_module
from shared.kube.access import Access, AccessError, load_access, make_tls
from shared.kube.aiohttp_transport import AiohttpTransport
from shared.kube.client import transport_for
from shared.kube.http1 import Http1Transport
from shared.kube.transport import Transport, TransportError
from tools import pki


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pki")
    pki.create_authority(directory)
    pki.issue(directory, "server", "/CN=server", names=pki.SERVER_NAMES, server=True)
    pki.issue(directory, "client", "/CN=me")
    return directory


def write(path: Path, *, cluster: Any = None, user: Any = None, **rest: Any) -> str:
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        **rest,
    }
    path.write_text(json.dumps(config))
    return str(path)


async def test_a_token_a_file_and_a_password_each_make_their_header(tmp_path: Path) -> None:
    (tmp_path / "tok").write_text("from-file\n")
    for user, header in (
        ({"token": "abc"}, "Bearer abc"),
        ({"tokenFile": "tok"}, "Bearer from-file"),
        ({}, ""),
        ({"username": "me", "password": "pw"}, "Basic " + base64.b64encode(b"me:pw").decode()),
    ):
        assert (await load_access(write(tmp_path / "config", user=user))).authorization() == header


async def test_certificates_may_be_in_separate_files_or_inline(tmp_path: Path, authority: Path) -> None:
    def inside(name: str) -> str:
        return base64.b64encode((authority / name).read_bytes()).decode()

    cluster = {"server": "https://127.0.0.1:7", "certificate-authority-data": inside("ca.crt")}
    user = {"client-certificate-data": inside("client.crt"), "client-key-data": inside("client.key")}
    access = await load_access(write(tmp_path / "config", cluster=cluster, user=user))
    assert access.tls is not None
    assert access.tls.verify_mode == ssl.CERT_REQUIRED
    assert access.address() == ("127.0.0.1", 7, "")
    assert isinstance(transport_for(access), Http1Transport)


async def test_kubeconfig_then_environment_then_service_account(tmp_path: Path, authority: Path) -> None:
    named, other = (
        write(tmp_path / "named", user={"token": "named"}),
        write(tmp_path / "other", user={"token": "other"}),
    )
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("pod")
    (account / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
    pod = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert (
        await load_access(named, environ={"KUBECONFIG": other, **pod}, service_account=account)
    ).authorization() == "Bearer named"
    assert (
        await load_access(environ={"KUBECONFIG": other, **pod}, service_account=account)
    ).authorization() == "Bearer other"
    access = await load_access(environ=pod, service_account=account)
    assert (access.authorization(), access.address()) == ("Bearer pod", ("fd00::1", 6443, ""))


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"current-context": "nowhere"}, "object with name nowhere in .*contexts list"),
        ({"clusters": []}, "object with name c in .*clusters list"),
        ({"users": None}, "object with name u in .*users list"),
        ({"contexts": [{"name": "here", "context": {"cluster": "c"}}]}, "its context names no user"),
    ],
)
async def test_what_is_missing_is_named(tmp_path: Path, change: Any, wanted: str) -> None:
    with pytest.raises(AccessError, match=wanted):
        await load_access(write(tmp_path / "config", **change))


@pytest.mark.parametrize("text", ["{", "[]", "just words"])
async def test_a_file_that_is_no_kubeconfig_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(AccessError):
        await load_access(str(tmp_path / "config"))


async def test_a_missing_kubeconfig_raises_an_error_on_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="KUBECONFIG, or run in a pod"):
        await load_access(str(tmp_path / "none"))


async def test_broken_certificates_are_named(tmp_path: Path, authority: Path) -> None:
    for data in ("not base64!", base64.b64encode(b"no certificate").decode()):
        config = write(tmp_path / "config", cluster={"server": "https://x:1"}, user={"client-certificate-data": data})
        with pytest.raises(AccessError, match=r"config cannot be used: |certificates cannot be used"):
            await load_access(config)


async def test_the_pods_token_is_read_again_when_it_is_old(
    tmp_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet renews it; a minute-old one is well within its lifetime."""
    (tmp_path / "ca.crt").write_bytes((authority / "ca.crt").read_bytes())
    token = tmp_path / "token"
    token.write_text("one\n")
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    access = await load_access(environ=pod, service_account=tmp_path)
    token.write_text("two")
    assert access.authorization() == "Bearer one", "it is not read at every request"
    monkeypatch.setattr(incluster_config, "TOKEN_REFRESH_PERIOD", timedelta(0))
    access = await load_access(environ=pod, service_account=tmp_path)
    token.write_text("three")
    assert access.authorization() == "Bearer three"
    token.unlink()
    assert access.authorization() == "Bearer three", "the one we have may live on"


async def test_a_pod_without_a_readable_account_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("")
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(AccessError, match=r"the service account of this pod.*empty"):
        await load_access(environ=pod, service_account=tmp_path)


# --- credentials that expire ------------------------------------------------------------------------------------------


class Plugin:
    """An exec plugin: a script that counts its runs and prints what `status` is, or fails without one."""

    def __init__(self, folder: Path) -> None:
        self._script, self._runs, self._status = folder / "plugin", folder / "runs", folder / "status"
        self._runs.write_text("")
        self._script.write_text(
            f"#!/bin/sh\necho run >> {self._runs}\n"
            f"[ -e {self._status} ] || {{ echo 'log in first' >&2; exit 3; }}\ncat {self._status}\n"
        )
        self._script.chmod(0o755)

    @property
    def user(self) -> dict[str, Any]:
        return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(self._script)}}

    @property
    def runs(self) -> int:
        return len(self._runs.read_text().split())

    def gives(self, valid_s: float | None = None, **status: str) -> None:
        if valid_s is not None:
            ends = datetime.now(UTC) + timedelta(seconds=valid_s)
            status["expirationTimestamp"] = ends.strftime("%Y-%m-%dT%H:%M:%SZ")
        self._status.write_text(
            json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status})
        )

    def fails(self) -> None:
        self._status.unlink()


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


async def renewed(access: Access) -> None:
    """Makes a renewal due, asks for the header, which starts it, and waits for its end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(access_module, "RENEW_S", 0.0)
        access.authorization()
    await access.authorization._task  # type: ignore[attr-defined]


async def test_an_exec_plugin_runs_again_only_when_its_token_nears_its_end(plugin: Plugin, tmp_path: Path) -> None:
    plugin.gives(token="first", valid_s=3600)
    access = await load_access(write(tmp_path / "config", user=plugin.user))
    assert access.authorization() == "Bearer first"
    assert access.authorization._task is None, "nothing is due within a minute"  # type: ignore[attr-defined]
    await renewed(access)
    assert plugin.runs == 1, "its token is good for an hour"


async def test_a_token_that_nears_its_end_is_renewed_while_the_old_one_is_used(plugin: Plugin, tmp_path: Path) -> None:
    plugin.gives(token="first", valid_s=30)
    access = await load_access(write(tmp_path / "config", user=plugin.user))
    plugin.gives(token="second", valid_s=3600)
    assert access.authorization() == "Bearer first"
    await renewed(access)
    assert access.authorization() == "Bearer second"
    assert plugin.runs == 2


async def test_a_plugin_that_fails_later_leaves_the_old_token_and_is_logged(plugin: Plugin, tmp_path: Path) -> None:
    plugin.gives(token="first", valid_s=30)
    access = await load_access(write(tmp_path / "config", user=plugin.user))
    plugin.fails()
    with structlog.testing.capture_logs() as logs:
        await renewed(access)
    assert access.authorization() == "Bearer first"
    assert [(entry["event"], "log in first" in entry["error"]) for entry in logs] == [("credentials_not_renewed", True)]


async def test_a_plugin_that_fails_at_first_is_an_error_with_its_words(plugin: Plugin, tmp_path: Path) -> None:
    with pytest.raises(AccessError, match=r"process returned 3\. log in first"):
        await load_access(write(tmp_path / "config", user=plugin.user))


@pytest.fixture
async def names_seen(authority: Path) -> AsyncIterator[tuple[str, list[str]]]:
    """The address of a server that keeps connections, and the name in the client's certificate at each request."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority / "ca.crt"))
    context.load_cert_chain(authority / "server.crt", authority / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    seen: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # the client's end is the server's
            while await reader.readuntil(b"\r\n\r\n"):
                seen.append(dict(part[0] for part in writer.get_extra_info("peercert")["subject"])["commonName"])
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}", seen
    server.close()


MakeTransport = Callable[[Access], Transport]


@pytest.mark.parametrize("make", [transport_for, AiohttpTransport])
async def test_certificates_of_a_plugin_are_used_and_renewed(
    make: MakeTransport, plugin: Plugin, tmp_path: Path, authority: Path, names_seen: tuple[str, list[str]]
) -> None:
    """Also for a server whose connections are kept."""

    def gives(name: str) -> None:
        pki.issue(authority, name, f"/CN={name}")
        certificate, key = ((authority / f"{name}.{suffix}").read_text() for suffix in ("crt", "key"))
        plugin.gives(clientCertificateData=certificate, clientKeyData=key, valid_s=30)

    address, seen = names_seen
    gives("first")
    cluster = {"server": address, "certificate-authority": str(authority / "ca.crt")}
    access = await load_access(write(tmp_path / "config", cluster=cluster, user=plugin.user))
    client = make(access)
    for name in ("second", "third"):
        await client.request("GET", "/")
        await client.request("GET", "/")
        gives(name)
        await renewed(access)
    await client.request("GET", "/")
    assert seen == ["first", "first", "second", "second", "third"]
    await client.close()


async def test_a_certificate_file_that_is_replaced_is_used(
    tmp_path: Path, authority: Path, names_seen: tuple[str, list[str]]
) -> None:
    """As a kubelet replaces its own; between the two files it is a certificate without its key."""
    address, seen = names_seen
    user = {"client-certificate": str(tmp_path / "tls.crt"), "client-key": str(tmp_path / "tls.key")}

    def put(name: str, *suffixes: str) -> None:
        for suffix in suffixes:
            shutil.copy(authority / f"{name}.{suffix}", tmp_path / f"tls.{suffix}")

    for name in ("first", "second"):
        pki.issue(authority, name, f"/CN={name}")
    put("first", "crt", "key")
    cluster = {"server": address, "certificate-authority": str(authority / "ca.crt")}
    access = await load_access(write(tmp_path / "config", cluster=cluster, user=user))
    client = transport_for(access)
    await client.request("GET", "/")
    put("second", "crt")
    with structlog.testing.capture_logs() as logs:
        await renewed(access)
    assert [entry["event"] for entry in logs] == ["credentials_not_renewed"]
    another = transport_for(access)
    await another.request("GET", "/")
    put("second", "key")
    await renewed(access)
    await client.request("GET", "/")
    assert seen == ["first", "first", "second"]
    await another.close()
    await client.close()


@pytest.mark.parametrize("make", [transport_for, AiohttpTransport])
async def test_a_ca_that_comes_to_the_pods_file_later_is_trusted(
    make: MakeTransport, tmp_path: Path, names_seen: tuple[str, list[str]], authority: Path
) -> None:
    """As in a rotation, after which the server's certificate is of the new CA. No pod is restarted for it."""
    (old := tmp_path / "old").mkdir()
    pki.create_authority(old)
    shutil.copy(old / "ca.crt", tmp_path / "ca.crt")
    (tmp_path / "token").write_text("t")
    host, port = names_seen[0].removeprefix("https://").split(":")
    pod = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    access = await load_access(environ=pod, service_account=tmp_path)
    assert access.tls is not None
    access.tls.load_cert_chain(authority / "client.crt", authority / "client.key")
    client = make(access)
    with pytest.raises(TransportError, match="CERTIFICATE_VERIFY_FAILED"):
        await client.request("GET", "/")
    (tmp_path / "ca.crt").write_text("half of a f")
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            with pytest.raises(TransportError):
                await client.request("GET", "/")
    assert [entry["event"] for entry in logs] == ["ca_unreadable"]
    (tmp_path / "ca.crt").write_bytes((old / "ca.crt").read_bytes() + (authority / "ca.crt").read_bytes())
    assert (await client.request("GET", "/")).status == 200
    await client.close()


async def test_a_token_file_of_a_kubeconfig_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "tok").write_text("one")
    access = await load_access(write(tmp_path / "config", user={"tokenFile": "tok"}))
    (tmp_path / "tok").write_text("two")
    await renewed(access)
    assert access.authorization() == "Bearer two"


async def test_several_files_are_merged(tmp_path: Path) -> None:
    first = write(tmp_path / "first", users=[])
    second = write(tmp_path / "second", user={"token": "abc"})
    access = await load_access(environ={"KUBECONFIG": f"{first}:{second}:{tmp_path / 'none'}"})
    assert access.authorization() == "Bearer abc"


# --- strict certificates ----------------------------------------------------------------------------------------------


@pytest.fixture
async def old_cluster(tmp_path: Path) -> AsyncIterator[tuple[int, Path]]:
    """A server whose authority has no key usage, as in clusters that were created years ago."""
    (tmp_path / "ca.cnf").write_text(
        "[req]\ndistinguished_name=dn\nx509_extensions=v3\nprompt=no\n[dn]\nCN=old\n[v3]\nbasicConstraints=critical,CA:true\n"
    )
    pki.openssl(tmp_path, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "ca.key")
    pki.openssl(
        tmp_path, "req", "-x509", "-new", "-key", "ca.key", "-config", "ca.cnf", "-days", "30", "-out", "ca.crt"
    )
    pki.issue(tmp_path, "server", "/CN=server", names=pki.SERVER_NAMES, server=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    yield server.sockets[0].getsockname()[1], tmp_path / "ca.crt"
    server.close()


async def test_the_workaround_that_a_strict_refusal_names_works(old_cluster: tuple[int, Path], tmp_path: Path) -> None:
    port, ca = old_cluster
    config = write(
        tmp_path / "config", cluster={"server": f"https://127.0.0.1:{port}", "certificate-authority": str(ca)}
    )
    strict = await load_access(config)
    assert strict.tls is not None
    strict.tls.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 and later do by default
    client = transport_for(strict)
    with pytest.raises(TransportError, match=r"set strict_x509: false"):
        await client.request("GET", "/")
    await client.close()
    client = transport_for(await load_access(config, strict_x509=False))
    assert (await client.request("GET", "/")).status == 200
    await client.close()


def test_the_switch_clears_what_python_sets(authority: Path) -> None:
    assert not make_tls(ca=str(authority / "ca.crt"), strict=False).verify_flags & ssl.VERIFY_X509_STRICT
