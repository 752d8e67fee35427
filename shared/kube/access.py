"""Where the API server is and how to authenticate: a kubeconfig or the pod's service account, by kubernetes-asyncio.

The library is imported only when a cluster is connected to: it brings the models of the whole API (docs/decisions,
0011).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import structlog

from shared.trusted_file import TrustedFile

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
RENEW_S = 60.0
"""How often credentials of a kubeconfig are looked at again. An exec plugin runs only when its token nears its end."""

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
    certificates: Callable[[], int] = lambda: 0
    """How often the client certificate was renewed. A kept connection has the one of its opening, and the server looks
    at its end with every request."""
    trust: Callable[[], None] = lambda: None
    """To be called before a connection is opened: CAs that have come to the server's CA file are trusted then."""
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
    if not any(os.path.exists(os.path.expanduser(file)) for file in path.split(os.pathsep)):  # noqa: ASYNC240 - at start
        raise AccessError(f"kubeconfig {path}: No such file; name one by kubeconfig or KUBECONFIG, or run in a pod")
    return await _from_kubeconfig(path, context, strict_x509=strict_x509)


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


def _in_cluster(env: Mapping[str, str], account: Path, *, strict_x509: bool) -> Access:
    from kubernetes_asyncio import client, config  # noqa: PLC0415 - heavy

    origin = "the service account of this pod"
    settings: Any = client.Configuration()
    try:
        config.load_incluster_config(  # type: ignore[no-untyped-call]
            settings,
            token_filename=str(account / "token"),
            cert_filename=str(account / "ca.crt"),
            environ=env,
        )
    except (config.ConfigException, OSError) as error:
        raise AccessError(f"{origin}, {account}: {error}") from error

    def authorization() -> str:
        # A token that cannot be read again may still be valid; otherwise the server refuses it.
        with contextlib.suppress(config.ConfigException, OSError):
            settings.refresh_api_key_hook(settings)
        return _token_of(settings)

    return _access(settings, authorization, origin, strict_x509=strict_x509)


async def _from_kubeconfig(path: str, context: str, *, strict_x509: bool) -> Access:
    from kubernetes_asyncio import client  # noqa: PLC0415 - heavy
    from kubernetes_asyncio.config.kube_config import KubeConfigLoader, KubeConfigMerger  # noqa: PLC0415

    origin = f"kubeconfig {path}"
    settings: Any = client.Configuration()
    try:
        files: Any = KubeConfigMerger(path)
        loader: Any = KubeConfigLoader(
            files.config, active_context=context or None, config_base_path=None, config_persister=files.save_changes
        )
        name = loader.current_context["context"].get("user")
        if not name:
            raise ValueError("its context names no user")
        user = files.config["users"].get_with_name(name)["user"]
        await loader.load_and_set(settings)
    except Exception as error:  # whatever the library runs into in a file that is not as it should be
        raise AccessError(f"{origin} cannot be used: {error}") from error
    access = _access(settings, lambda: _token_of(settings), origin, strict_x509=strict_x509)
    if any(field in user for field in ("exec", "auth-provider", "tokenFile", "client-certificate")):
        renewed = _Renewed(loader, settings, access.tls, origin)
        access.authorization, access.certificates = renewed, renewed.certificates
    return access


def _access(settings: Any, authorization: Callable[[], str], origin: str, *, strict_x509: bool) -> Access:
    try:
        tls = make_tls(
            ca=settings.ssl_ca_cert or "",
            certificate=settings.cert_file or "",
            key=settings.key_file or "",
            verify=settings.verify_ssl,
            strict=strict_x509,
        )
    except OSError as error:
        raise AccessError(f"{origin}: its certificates cannot be used: {error}") from error
    return Access(
        server=settings.host,
        tls=tls if settings.host.startswith("https") else None,
        server_name=settings.tls_server_name or "",
        proxy=settings.proxy or "",
        authorization=authorization,
        trust=_trust(tls, settings.ssl_ca_cert) if settings.ssl_ca_cert else lambda: None,
        origin=origin,
    )


def _token_of(settings: Any) -> str:
    return str(settings.api_key.get("BearerToken", "")).strip()  # a token file ends with a newline


def _trust(tls: ssl.SSLContext, file: str) -> Callable[[], None]:
    def unreadable(error: OSError) -> None:
        structlog.get_logger("kube").error("ca_unreadable", file=file, error=str(error))

    return TrustedFile(tls, file, unreadable).read


class _Renewed:
    """The Authorization header by a kubeconfig whose credentials expire.

    They are renewed in the background while the old ones are used: by the library, which runs an exec plugin or asks a
    provider when they near their end, and reads a token file again. A client certificate is compared with the one in
    use, for a file is replaced under its name. New certificates serve new connections.
    """

    def __init__(
        self,
        loader: Any,
        settings: Any,
        tls: ssl.SSLContext | None,
        origin: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loader, self._settings, self._tls, self._origin, self._clock = loader, settings, tls, origin, clock
        self._renewed_at = clock()
        self._task: asyncio.Task[None] | None = None
        self._pair = self._read_pair()
        self._renewals = 0

    def __call__(self) -> str:
        if self._clock() - self._renewed_at >= RENEW_S and (self._task is None or self._task.done()):
            self._renewed_at = self._clock()
            self._task = asyncio.get_running_loop().create_task(self._renew())
        return _token_of(self._settings)

    def certificates(self) -> int:
        return self._renewals

    async def _renew(self) -> None:
        try:
            await self._loader.load_and_set(self._settings)
            pair = self._read_pair()
            if self._tls is not None and pair and pair != self._pair:
                certificate, key = self._settings.cert_file, self._settings.key_file or None
                # A certificate without its key, in the midst of a renewal, would take the old pair from the context.
                ssl.create_default_context().load_cert_chain(certificate, key)
                self._tls.load_cert_chain(certificate, key)
                self._pair, self._renewals = pair, self._renewals + 1
        except Exception as error:  # noqa: BLE001 - of a plugin, a provider or a file; the old credentials may still do
            structlog.get_logger("kube").warning("credentials_not_renewed", origin=self._origin, error=str(error))

    def _read_pair(self) -> tuple[bytes, ...]:
        """The client's certificate and its key; empty without one."""
        files = (self._settings.cert_file, self._settings.key_file)
        return tuple(Path(file).read_bytes() for file in files if file)
