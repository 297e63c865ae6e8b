"""The cluster's name service, in the place of CoreDNS: A records of services and of the pods behind headless ones.

Told by the API server twice a second. One process of its own: `python -m tests.kubernetes.plane.names TOKEN CA`."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import struct
import sys
from typing import Any

import aiohttp

from tests.kubernetes.plane.folders import DOMAIN, HOST, PORT

A, ANY = 1, 255
NO_ERROR, NO_NAME = 0, 3
EVERY = 0.5


def addresses(services: list[dict[str, Any]], slices: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Name: addresses. `services` and `slices` (EndpointSlices) are the API's objects."""
    found: dict[str, list[str]] = {}
    headless = set()
    for service in services:
        name = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc.{DOMAIN}"
        if (address := service["spec"].get("clusterIP", "None")) != "None":
            found[name] = [address]
        else:
            headless.add(name)
            found[name] = []
    for part in slices:
        labels = part["metadata"].get("labels", {})
        name = f"{labels.get('kubernetes.io/service-name')}.{part['metadata']['namespace']}.svc.{DOMAIN}"
        for end in part.get("endpoints") or []:
            # `ready` is true for all where the service publishes addresses that are not ready.
            if name not in headless or end.get("conditions", {}).get("ready") is False:
                continue
            found[name] += end["addresses"]
            if host := end.get("hostname"):
                found.setdefault(f"{host}.{name}", []).extend(end["addresses"])
    return found


def answer(query: bytes, names: dict[str, list[str]]) -> bytes:
    """The datagram for a query with one question (RFC 1035). Raises IndexError, struct.error for rubbish."""
    at, labels = 12, []
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length])
        at += 1 + length
    end = at + 5
    (kind,) = struct.unpack(">H", query[at + 1 : at + 3])
    known = names.get(b".".join(labels).decode("latin-1").lower())
    records = known if known and kind in (A, ANY) else []
    flags = 0x8580 | (NO_ERROR if known is not None else NO_NAME)  # an answer with authority
    head = query[:2] + struct.pack(">HHHHH", flags, 1, len(records), 0, 0)
    body = b"".join(
        b"\xc0\x0c" + struct.pack(">HHIH", A, 1, 1, 4) + ipaddress.IPv4Address(record).packed for record in records
    )
    return head + query[12:end] + body


class Names(asyncio.DatagramProtocol):
    """Answers with what it was told last."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {}
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        assert self._transport is not None
        try:
            self._transport.sendto(answer(data, self.names), addr)
        except (IndexError, struct.error) as error:
            print(f"no question: {data[:64]!r}: {error!r}", flush=True)


async def serve(token: str, ca: str) -> None:
    names = Names()
    await asyncio.get_running_loop().create_datagram_endpoint(lambda: names, local_addr=(HOST, 53))
    context = ssl.create_default_context(cafile=ca)
    headers = {"Authorization": f"Bearer {token}"}
    timeout = aiohttp.ClientTimeout(total=5)
    async with aiohttp.ClientSession(f"https://127.0.0.1:{PORT}", headers=headers, timeout=timeout) as session:

        async def items(path: str) -> list[dict[str, Any]]:
            async with session.get(path, ssl=context, raise_for_status=True) as found:
                return list((await found.json())["items"])

        while True:
            try:
                slices = await items("/apis/discovery.k8s.io/v1/endpointslices")
                names.names = addresses(await items("/api/v1/services"), slices)
            except (aiohttp.ClientError, TimeoutError) as error:
                print(f"the API server does not answer: {error!r}", flush=True)
            await asyncio.sleep(EVERY)


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
