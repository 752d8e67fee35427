"""No sign-in: for `kerf up`, `make demo` and port-forwards, on loopback alone."""

from __future__ import annotations

import ipaddress

from services.metrics.page.sign_in import Caller, Denied

_LOCAL_NAMES = {"localhost", "localhost.localdomain"}


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() in _LOCAL_NAMES


class NoSignIn:
    asks_for_token = False

    def __init__(self, host: str) -> None:
        """Raises ValueError where the page would be readable from elsewhere."""
        if not is_loopback(host):
            raise ValueError(
                f"page_sign_in is none and page_host is {host}: without sign-in the page listens on loopback alone. "
                "Set page_sign_in to token_review or proxy, or page_host to 127.0.0.1"
            )

    async def by_request(self, caller: Caller) -> str:
        """A page of another site that has its name resolve to loopback is refused by the name in the request."""
        host = caller.headers.get("Host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if not is_loopback(name):
            raise Denied(f"this page is served to localhost only, not to {name!r}; open it as http://localhost:PORT/")
        return "local"

    def check_form(self, token: str) -> None:
        """Any: by_token refuses each without a question to the API server."""

    async def by_token(self, token: str) -> str:  # noqa: ARG002 - there is nothing to sign in to
        raise Denied("no sign-in is needed here", 400)
