"""Sign-in by a proxy in front, which names the user in a header."""

from __future__ import annotations

import ipaddress

from services.metrics.page.sign_in import Caller, Denied


class ProxySignIn:
    asks_for_token = False

    def __init__(self, header: str, addresses: tuple[str, ...]) -> None:
        """`addresses` are networks or addresses that the header is believed from. Raises ValueError."""
        if not addresses:
            raise ValueError("page_sign_in is proxy: list the proxy's addresses in page_proxy_addresses")
        try:
            self._networks = [ipaddress.ip_network(address, strict=False) for address in addresses]
        except ValueError as error:
            raise ValueError(f"page_proxy_addresses: {error}; write 10.0.0.7 or 10.0.0.0/24") from error
        self._header = header

    async def by_request(self, caller: Caller) -> str:
        peer = ipaddress.ip_address(caller.address)
        if not any(peer in network for network in self._networks):
            raise Denied(f"{caller.address} is not in page_proxy_addresses; open the page through the proxy")
        user = caller.headers.get(self._header, "").strip()
        if not user:
            raise Denied(f"the proxy has not named a user in {self._header}; sign in there first", 401)
        return user

    def check_form(self, token: str) -> None:
        """Any: by_token refuses each without a question to the API server."""

    async def by_token(self, token: str) -> str:  # noqa: ARG002 - the proxy signs people in
        raise Denied("sign in at the proxy in front of this page", 400)
