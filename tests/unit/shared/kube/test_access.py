"""How the way to the API server is found."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.kube.access import AccessError, load_access, make_tls, token_file
from shared.kube.client import transport_for
from shared.kube.http1 import Http1Transport
from shared.kube.transport import TransportError
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
        ({"current-context": "nowhere"}, "no context 'nowhere'"),
        ({"clusters": []}, "no cluster 'c'"),
        ({"users": None}, "no user 'u'"),
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
        with pytest.raises(AccessError, match=r"client-certificate-data is no base64|certificates cannot be used"):
            await load_access(config)


def test_a_token_is_read_again_when_it_is_old(tmp_path: Path) -> None:
    """The kubelet renews it; a minute-old one is well within its lifetime."""
    file, now = tmp_path / "token", [0.0]
    file.write_text("one")
    token = token_file(file, 60.0, lambda: now[0])
    file.write_text("two")
    now[0] = 59.0
    assert token() == "Bearer one"
    now[0] = 60.0
    assert token() == "Bearer two"
    file.unlink()
    now[0] = 200.0
    assert token() == "Bearer two", "the one we have may live on"


def test_no_token_at_first_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="token file"):
        token_file(tmp_path / "none")


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
