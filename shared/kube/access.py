"""Where the API server is and how to authenticate: kubeconfig, or the service account of the pod.

Plain kubeconfigs (certificates, tokens) and service accounts are read here in milliseconds. Exec plugins and auth
providers need kubernetes-asyncio, whose import costs 4 s and 114 MB because it brings the models of the whole API: it
is imported only if a kubeconfig names one (docs/decisions, 0011).
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_MAX_AGE_S = 60.0
PLUGIN_TOKEN_MAX_AGE_S = 300.0

STRICT_CODES = range(80, 95)
"""OpenSSL's X509_V_ERR codes of checks that only X509_V_FLAG_X509_STRICT makes (openssl/x509_vfy.h)."""

STRICT_HINT = (
    "the cluster's certificates are not made as RFC 5280 wants (key usage, authority key identifier, critical "
    "constraints), and Python 3.13 and later insist on that; renew them, or set strict_x509: false "
    "(KERF_WATCHER_STRICT_X509=false) to accept them as they are"
)


class AccessError(ValueError):
    """There is no usable way to the API server. The text says what was examined and what is wrong with it."""


class Access(msgspec.Struct, kw_only=True):
    """How to reach one API server."""

    server: str
    """https://host:port, perhaps with a path."""
    tls: ssl.SSLContext | None
    server_name: str = ""
    proxy: str = ""
    authorization: Callable[[], str] = lambda: ""
    """The value of the Authorization header, "" with client certificates."""
    origin: str = ""
    """Where this was found, for people."""

    def address(self) -> tuple[str, int, str]:
        """Host, port and path."""
        parts = urlsplit(self.server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AccessError(f"{self.origin}: {self.server!r} is no server address")
        return parts.hostname, parts.port or (443 if parts.scheme == "https" else 80), parts.path


async def load_access(
    kubeconfig: str = "",
    context: str = "",
    *,
    strict_x509: bool = True,
    environ: Mapping[str, str] | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Access:
    """`kubeconfig`, else $KUBECONFIG, else the service account, else ~/.kube/config. Raises AccessError."""
    env = os.environ if environ is None else environ
    path = kubeconfig or env.get("KUBECONFIG", "")
    if not path and env.get("KUBERNETES_SERVICE_HOST") and (service_account / "token").exists():
        return _in_cluster(env, service_account, strict_x509=strict_x509)
    path = path or str(Path.home() / ".kube" / "config")
    if os.pathsep in path:
        return await _by_library(path, context, strict_x509=strict_x509)  # several files are merged
    file = Path(path)
    try:
        config = msgspec.yaml.decode(file.read_bytes())  # noqa: ASYNC240 - at start, before anything else runs
    except OSError as error:
        raise AccessError(
            f"kubeconfig {file}: {error.strerror}; name one by kubeconfig or KUBECONFIG, or run in a pod"
        ) from error
    except msgspec.DecodeError as error:
        raise AccessError(f"kubeconfig {file} cannot be read: {error}") from error
    cluster, user = _select(config, context, str(file))
    if "exec" in user or "auth-provider" in user:
        return await _by_library(path, context, strict_x509=strict_x509)
    return _plain(file, cluster, user, strict_x509=strict_x509)


def explain(error: OSError) -> str:
    """A failed connection as a sentence. Certificates that only strict checks refuse get the remedy."""
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in STRICT_CODES:
        return f"{error.verify_message}: {STRICT_HINT}"
    return str(error)


def make_tls(
    *,
    ca: str = "",
    ca_data: bytes = b"",
    certificate: str = "",
    key: str = "",
    verify: bool = True,
    strict: bool = True,
) -> ssl.SSLContext:
    """Raises OSError or ssl.SSLError. `strict` False clears VERIFY_X509_STRICT, which Python sets from 3.13 on."""
    made = ssl.create_default_context(cafile=ca or None, cadata=ca_data.decode() if ca_data else None)
    if not strict:
        made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not verify:
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    if certificate:
        made.load_cert_chain(certificate, key or None)
    return made


def token_file(
    path: Path, max_age_s: float = TOKEN_MAX_AGE_S, clock: Callable[[], float] = time.monotonic
) -> Callable[[], str]:
    """The token in a file that the kubelet renews; read again when it is older than `max_age_s`. The first read may
    raise AccessError."""
    value, read_at = "", float("-inf")

    def read() -> str:
        nonlocal value, read_at
        if clock() - read_at >= max_age_s:
            try:
                token = path.read_text().strip()
            except OSError as error:
                if not value:
                    raise AccessError(f"token file {path}: {error.strerror}") from error
                return value  # the present token may still be valid; otherwise the server refuses it
            value, read_at = f"Bearer {token}", clock()
        return value

    read()
    return read


def _in_cluster(env: Mapping[str, str], account: Path, *, strict_x509: bool) -> Access:
    host, port = env["KUBERNETES_SERVICE_HOST"], env.get("KUBERNETES_SERVICE_PORT", "443")
    try:
        tls = make_tls(ca=str(account / "ca.crt"), strict=strict_x509)
    except OSError as error:
        raise AccessError(f"{account}/ca.crt: {error}") from error
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Access(
        server=server, tls=tls, authorization=token_file(account / "token"), origin="the service account of this pod"
    )


def _select(config: Any, context: str, origin: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The cluster and the user that the context names."""
    if not isinstance(config, dict):
        raise AccessError(f"kubeconfig {origin} holds no object")
    wanted = context or config.get("current-context", "")
    chosen = _named(config, "contexts", wanted, "context", origin)
    cluster = _named(config, "clusters", chosen.get("cluster", ""), "cluster", origin)
    user = _named(config, "users", chosen["user"], "user", origin) if chosen.get("user") else {}
    return cluster, user


def _named(config: dict[str, Any], group: str, name: str, field: str, origin: str) -> dict[str, Any]:
    for entry in config.get(group) or ():
        if isinstance(entry, dict) and entry.get("name") == name:
            return entry.get(field) or {}
    raise AccessError(f"kubeconfig {origin} has no {field} {name!r}")


def _plain(file: Path, cluster: dict[str, Any], user: dict[str, Any], *, strict_x509: bool) -> Access:
    base, origin = file.parent, f"kubeconfig {file}"
    server = cluster.get("server", "")
    tls = None
    if server.startswith("https"):
        with _Pem(base, user, origin) as (certificate, key):
            try:
                tls = make_tls(
                    ca=str(base / cluster["certificate-authority"]) if cluster.get("certificate-authority") else "",
                    ca_data=_decoded(cluster, "certificate-authority-data", origin),
                    certificate=certificate,
                    key=key,
                    verify=not cluster.get("insecure-skip-tls-verify", False),
                    strict=strict_x509,
                )
            except OSError as error:
                raise AccessError(f"{origin}: its certificates cannot be used: {error}") from error
    authorization: Callable[[], str] = lambda: ""  # noqa: E731
    if user.get("tokenFile"):
        authorization = token_file(base / user["tokenFile"])
    elif user.get("token"):
        bearer = f"Bearer {user['token']}"
        authorization = lambda: bearer  # noqa: E731
    elif user.get("username"):
        basic = base64.b64encode(f"{user['username']}:{user.get('password', '')}".encode()).decode()
        authorization = lambda: f"Basic {basic}"  # noqa: E731
    return Access(
        server=server,
        tls=tls,
        server_name=cluster.get("tls-server-name", ""),
        proxy=cluster.get("proxy-url", ""),
        authorization=authorization,
        origin=origin,
    )


def _decoded(section: dict[str, Any], field: str, origin: str) -> bytes:
    try:
        return base64.b64decode(section.get(field) or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise AccessError(f"{origin}: {field} is no base64: {error}") from error


class _Pem:
    """Paths of the client's certificate and key. If the kubeconfig embeds them: in files that only this user can read
    and that are gone after the block (the ssl module loads from files only)."""

    def __init__(self, base: Path, user: dict[str, Any], origin: str) -> None:
        self._base, self._user, self._origin = base, user, origin
        self._made: list[str] = []

    def __enter__(self) -> tuple[str, str]:
        return self._path("client-certificate"), self._path("client-key")

    def __exit__(self, *_: object) -> None:
        for path in self._made:
            os.unlink(path)

    def _path(self, field: str) -> str:
        if self._user.get(field):
            return str(self._base / self._user[field])
        data = _decoded(self._user, f"{field}-data", self._origin)
        if not data:
            return ""
        import tempfile  # noqa: PLC0415 - rare

        handle, path = tempfile.mkstemp(prefix="kerf-")
        self._made.append(path)
        with os.fdopen(handle, "wb") as out:
            out.write(data)
        return path


async def _by_library(path: str, context: str, *, strict_x509: bool) -> Access:
    """Exec plugins, auth providers and merged kubeconfigs, by kubernetes-asyncio. An old token is requested again."""
    try:
        from kubernetes_asyncio import client, config  # noqa: PLC0415 - 4 s and 114 MB
    except ImportError as error:
        raise AccessError(
            f"kubeconfig {path} needs kubernetes-asyncio (exec plugin, auth provider or several files): {error}"
        ) from error
    settings = client.Configuration()
    try:
        await config.load_kube_config(config_file=path, context=context or None, client_configuration=settings)
        tls = make_tls(
            ca=settings.ssl_ca_cert or "",
            certificate=settings.cert_file or "",
            key=settings.key_file or "",
            verify=settings.verify_ssl,
            strict=strict_x509,
        )
    except (config.ConfigException, OSError) as error:
        raise AccessError(f"kubeconfig {path}: {error}") from error
    return Access(
        server=settings.host or "",
        tls=tls,
        server_name=settings.tls_server_name or "",
        proxy=settings.proxy or "",
        authorization=_Renewed(path, context, settings),
        origin=f"kubeconfig {path}",
    )


class _Renewed:
    """The token of an exec plugin or provider. It is refreshed in the background while the old one is used."""

    def __init__(self, path: str, context: str, settings: Any) -> None:
        self._path, self._context, self._settings = path, context, settings
        self._fetched_at = time.monotonic()
        self._task: Any = None

    def __call__(self) -> str:
        if time.monotonic() - self._fetched_at > PLUGIN_TOKEN_MAX_AGE_S and (self._task is None or self._task.done()):
            import asyncio  # noqa: PLC0415

            self._fetched_at = time.monotonic()
            self._task = asyncio.get_running_loop().create_task(self._fetch())
        return str(self._settings.api_key.get("BearerToken", ""))

    async def _fetch(self) -> None:
        from kubernetes_asyncio import config  # noqa: PLC0415

        await config.load_kube_config(
            config_file=self._path, context=self._context or None, client_configuration=self._settings
        )
