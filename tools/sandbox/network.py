"""A cluster's network on one machine: pods on a bridge, Service addresses, names.

python -m tools.sandbox.network KUBECONFIG, in a network namespace of its own, where `prepare` has set up the bridge. In
place of kube-proxy each Service's address is one of the loopback interface's, and connections to it are forwarded to a
ready pod; the API server reaches webhooks through it too. In place of CoreDNS it answers for Services and for the pods
behind headless ones. NetworkPolicies are not enforced.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

DNS = "192.0.2.1"
DOMAIN = "cluster.local"
_LOOK_EVERY_S = 0.3
_CHUNK = 65536

CNI = """#!/bin/sh
# One address a pod, counted up under a lock.
case $CNI_COMMAND in
  ADD)
    n=$(flock /run/cni.lock sh -c 'n=$(cat /run/cni.count 2>/dev/null || echo 9); echo $((n + 1)) | tee /run/cni.count')
    ip=10.244.$((n / 250)).$((n % 250 + 2)) link=veth$n
    # Named inside at once: the host may have an eth0.
    ip link add $link type veth peer name eth0 netns "$CNI_NETNS" && ip link set $link master br0 up || exit 1
    nsenter --net="$CNI_NETNS" sh -c "ip link set lo up; ip addr add $ip/16 dev eth0; ip link set eth0 up
      ip route add default via 10.244.0.1" || exit 1
    echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"'"$CNI_NETNS"'"}],' \\
         '"ips":[{"address":"'$ip'/16","gateway":"10.244.0.1","interface":0}]}' ;;
  VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
esac
"""


def prepare() -> None:
    """The bridge and the fixed addresses, in the calling process's network namespace. Raises CalledProcessError."""
    for command in (
        "link set lo up",
        "link add br0 type bridge",
        "addr add 10.244.0.1/16 dev br0",
        "link set br0 up",
        # A kubelet takes its address from the default route. It leads nowhere.
        "route add default dev br0",
        f"addr add {DNS}/32 dev lo",
    ):
        subprocess.run(["ip", *command.split()], check=True)


class Api:
    """Reads lists as the kubeconfig's user."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        self.address = config["clusters"][0]["cluster"]["server"].removeprefix("https://").split(":")
        self._context = ssl.create_default_context(cafile=config["clusters"][0]["cluster"]["certificate-authority"])
        user = config["users"][0]["user"]
        self._context.load_cert_chain(user["client-certificate"], user["client-key"])

    def items(self, path: str) -> list[dict[str, Any]]:
        """Raises OSError, and ValueError for an answer that is no list."""
        connection = http.client.HTTPSConnection(
            self.address[0], int(self.address[1]), context=self._context, timeout=5
        )
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = json.loads(connection.getresponse().read())
            if "items" not in answer:
                raise ValueError(f"{path}: {answer.get('message')}")
            return list(answer["items"])


class Network:
    """Forwards connections and answers questions by the Services and EndpointSlices of the moment."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._targets: dict[tuple[str, int], list[tuple[str, int]]] = {}
        self._names: dict[str, list[str]] = {}
        self._servers: dict[tuple[str, int], asyncio.Server] = {}
        self._turn = itertools.count()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: _Dns(self), local_addr=(DNS, 53))
        while True:
            try:
                services = await asyncio.to_thread(self._api.items, "/api/v1/services")
                slices = await asyncio.to_thread(self._api.items, "/apis/discovery.k8s.io/v1/endpointslices")
            except (OSError, ValueError) as error:  # the API server may be restarting
                sys.stderr.write(f"network: {error}\n")
            else:
                await self._take(services, slices)
            await asyncio.sleep(_LOOK_EVERY_S)

    def addresses(self, name: str) -> list[str] | None:
        """None where there is no such name."""
        return self._names.get(name)

    async def _take(self, services: Iterable[dict[str, Any]], slices: list[dict[str, Any]]) -> None:
        targets: dict[tuple[str, int], list[tuple[str, int]]] = {}
        names: dict[str, list[str]] = {}
        for service in services:
            namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
            spec, full = service["spec"], f"{name}.{namespace}.svc.{DOMAIN}"
            behind = [
                one
                for one in slices
                if one["metadata"]["namespace"] == namespace
                and one["metadata"].get("labels", {}).get("kubernetes.io/service-name") == name
            ]
            ready = [
                (a, e, one) for one in behind for e in one.get("endpoints") or () if _ready(e) for a in e["addresses"]
            ]
            if spec.get("clusterIP", "None") == "None":
                names[full] = sorted({address for address, _, _ in ready})
                for address, endpoint, _ in ready:
                    if host := endpoint.get("hostname"):
                        names[f"{host}.{full}"] = [address]
                continue
            names[full] = [spec["clusterIP"]]
            for port in spec["ports"]:
                targets[spec["clusterIP"], port["port"]] = (
                    [(self._api.address[0], int(self._api.address[1]))]
                    if (namespace, name) == ("default", "kubernetes")
                    else [
                        (address, p["port"])
                        for address, _, one in ready
                        for p in one["ports"]
                        if p.get("name", "") == port.get("name", "")
                    ]
                )
        self._targets, self._names = targets, names
        for address in targets.keys() - self._servers.keys():
            await asyncio.to_thread(
                subprocess.run, ["ip", "addr", "replace", f"{address[0]}/32", "dev", "lo"], check=True
            )
            self._servers[address] = await asyncio.start_server(
                lambda r, w, address=address: self._forward(r, w, address), *address
            )

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: tuple[str, int]
    ) -> None:
        targets = self._targets.get(address, [])
        first = next(self._turn)
        for index in range(len(targets)):
            host, port = targets[(first + index) % len(targets)]
            try:
                far_reader, far_writer = await asyncio.wait_for(asyncio.open_connection(host, port), 2)
            except (OSError, TimeoutError):
                continue
            await asyncio.gather(_pipe(reader, far_writer), _pipe(far_reader, writer))
            return
        writer.transport.abort()  # refused, as by kube-proxy


def _ready(endpoint: dict[str, Any]) -> bool:
    return bool(endpoint.get("conditions", {}).get("ready"))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    except OSError:
        writer.transport.abort()
    else:
        writer.close()


class _Dns(asyncio.DatagramProtocol):
    def __init__(self, network: Network) -> None:
        self._network = network

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: tuple[str | Any, int]) -> None:
        end, labels = 12, []
        while data[end]:
            labels.append(data[end + 1 : end + 1 + data[end]].decode().lower())
            end += data[end] + 1
        kind = struct.unpack(">H", data[end + 1 : end + 3])[0]
        found = self._network.addresses(".".join(labels))
        answers = [b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + socket.inet_aton(a) for a in (found or []) if kind == 1]
        flags = 0x8580 | (0 if found is not None else 3)
        head = data[:2] + struct.pack(">HHHHH", flags, 1, len(answers), 0, 0)
        self._transport.sendto(head + data[12 : end + 5] + b"".join(answers), address)


if __name__ == "__main__":
    asyncio.run(Network(Api(Path(sys.argv[1]))).run())
