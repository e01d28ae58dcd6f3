"""Checks the addresses of webhooks: tenants may reach the public internet, and no private network.

A name is resolved once, and the connection uses the address that was checked. So DNS rebinding, a name that
resolves differently the second time, has no effect.
"""

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyreqwest.http import Url

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Lookup = Callable[[str, int], Sequence[str]]

MAX_URL = 2048
# Lower ports belong to other protocols, whose servers might misinterpret a POST.
_FIRST_FREE_PORT = 1024
_WEB_PORTS = (80, 443)
_LOOKUP_LIMIT = 5.0
_MAX_LOOKUPS = 32

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Special in IANA's registries, but not in every supported Python. Some embed an IPv4 address: 6to4, Teredo,
# IPv4-compatible, local NAT64.
_SPECIAL = tuple(
    ipaddress.ip_network(network)
    for network in (
        "192.0.0.0/24",
        "192.88.99.0/24",
        "::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
        "fec0::/10",
    )
)
_SHARED = ipaddress.IPv4Network("100.64.0.0/10")

_lookups = threading.BoundedSemaphore(_MAX_LOOKUPS)


class AddressRefused(ValueError):
    """The URL is not allowed. The message is for a person."""


class NameNotFound(AddressRefused):
    """The host's name cannot be resolved at present."""


@dataclass(frozen=True, slots=True)
class DeliveryTarget:
    """A URL, and the checked address to connect to."""

    url: Url
    host: str
    port: int
    address: str


def parse(url: str) -> Url:
    """Check the form of a URL. Raises AddressRefused."""
    if len(url) > MAX_URL:
        raise AddressRefused(f"the URL is longer than {MAX_URL} characters")
    try:
        parsed = Url(url)
    except ValueError:
        raise AddressRefused("it is not a URL") from None
    if parsed.scheme not in ("http", "https"):
        raise AddressRefused("the URL must begin with https:// or http://")
    if parsed.username or parsed.password:
        raise AddressRefused("the URL must not contain a user name or password")
    if not parsed.host_str:
        raise AddressRefused("the URL has no host")
    port = parsed.port_or_known_default
    if port is None or (port < _FIRST_FREE_PORT and port not in _WEB_PORTS):
        raise AddressRefused(f"port {port} is not allowed; use 443, 80, or {_FIRST_FREE_PORT} and above")
    return parsed


async def locate(url: str, *, allow_private: bool, lookup: Lookup | None = None) -> DeliveryTarget:
    """Resolve the URL's host and check all its addresses. Raises AddressRefused."""
    parsed = parse(url)
    host, port = parsed.host_str or "", parsed.port_or_known_default or 0
    bare = host.strip("[]")
    try:
        found: Sequence[str] = [str(ipaddress.ip_address(bare))]
    except ValueError:
        found = await _looked_up(lookup or _system_lookup, host, port)
    for text in found:
        if not may_reach(ipaddress.ip_address(text.partition("%")[0]), allow_private=allow_private):
            # The message hides the address, so that internal names cannot be probed.
            raise AddressRefused(f"{host} is not a public address")
    if not found:
        raise NameNotFound(f"the host {host} was not found")
    return DeliveryTarget(parsed, host, port, found[0])


def may_reach(address: Address, *, allow_private: bool) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return may_reach(address.ipv4_mapped, allow_private=allow_private)
        if address in _NAT64:
            return may_reach(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF), allow_private=allow_private)
    if address.is_loopback:
        return allow_private
    # Cloud machines serve credentials at a link-local address, so these are never allowed.
    if address.is_unspecified or address.is_link_local or address.is_multicast or address.is_reserved:
        return False
    if any(address in network for network in _SPECIAL):
        return False
    if address in _SHARED:
        return allow_private
    return address.is_global or (allow_private and address.is_private)


async def _looked_up(lookup: Lookup, host: str, port: int) -> Sequence[str]:
    """In a new thread: name servers may be slow, and the threads of the event loop are needed for files."""
    if not _lookups.acquire(blocking=False):
        raise NameNotFound("too many names are being resolved; try again")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Sequence[str]] = loop.create_future()

    def report(found: Sequence[str] | None) -> None:
        if not answer.done():
            if found is None:
                answer.set_exception(NameNotFound(f"the host {host} was not found"))
            else:
                answer.set_result(found)

    def look_up() -> None:
        try:
            found = lookup(host, port)
        except (OSError, UnicodeError):
            found = None
        finally:
            _lookups.release()
        if not loop.is_closed():
            loop.call_soon_threadsafe(report, found)

    threading.Thread(target=look_up, name="lookup", daemon=True).start()
    try:
        async with asyncio.timeout(_LOOKUP_LIMIT):
            return await answer
    except TimeoutError:
        raise NameNotFound(f"the host {host} could not be resolved within {_LOOKUP_LIMIT:g} s") from None


def _system_lookup(host: str, port: int) -> Sequence[str]:
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
