"""From settings to a transport."""

from __future__ import annotations

from shared.kube.access import Access, explain, load_access
from shared.kube.http1 import Http1Transport
from shared.kube.transport import Transport


async def connect(
    kubeconfig: str = "",
    context: str = "",
    *,
    strict_x509: bool = True,
    max_connections: int = 64,
    user_agent: str = "kerf",
) -> Transport:
    """A transport to the cluster that the settings name; nothing is sent yet. Raises AccessError."""
    access = await load_access(kubeconfig, context, strict_x509=strict_x509)
    return transport_for(access, max_connections=max_connections, user_agent=user_agent)


def transport_for(access: Access, *, max_connections: int = 64, user_agent: str = "kerf") -> Transport:
    """The lean client, or aiohttp where a proxy stands between."""
    if access.proxy:
        from shared.kube.aiohttp_transport import AiohttpTransport  # noqa: PLC0415 - a proxy is rare

        return AiohttpTransport(access, max_connections=max_connections, user_agent=user_agent)
    host, port, path = access.address()
    return Http1Transport(
        host,
        port,
        tls=access.tls,
        server_name=access.server_name,
        base_path=path,
        authorization=access.authorization,
        certificates=access.certificates,
        trust=access.trust,
        explain=explain,
        max_connections=max_connections,
        user_agent=user_agent,
    )
