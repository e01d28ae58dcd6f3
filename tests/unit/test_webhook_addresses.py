"""Which addresses a webhook may be sent to."""

import ipaddress
from collections.abc import Sequence

import pytest

from batchline.webhooks.addresses import AddressRefused, NameNotFound, locate, may_reach, parse


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.0.0.1",
        "100.64.0.1",
        "127.0.0.1",
        "127.9.9.9",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.0.8",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "203.0.113.7",
        "224.0.1.1",
        "239.1.1.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "::8.8.8.8",
        "64:ff9b::10.0.0.1",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1::8.8.8.8",
        "2001:db8::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2002:7f00:1::1",
        "100::1",
        "3fff::1",
        "fc00::1",
        "fd12:3456::1",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ],
)
def test_a_private_address_is_refused(address: str) -> None:
    assert not may_reach(ipaddress.ip_address(address), allow_private=False)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]
)
def test_a_public_address_is_reached(address: str) -> None:
    assert may_reach(ipaddress.ip_address(address), allow_private=False)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.1.2.3", "192.168.0.9", "100.64.0.1", "fd00::1"])
def test_the_operator_may_allow_private_addresses(address: str) -> None:
    assert may_reach(ipaddress.ip_address(address), allow_private=True)


@pytest.mark.parametrize("address", ["169.254.169.254", "0.0.0.0", "::", "224.0.0.1", "fe80::1", "240.0.0.1"])
def test_some_addresses_are_refused_even_if_private_ones_are_allowed(address: str) -> None:
    assert not may_reach(ipaddress.ip_address(address), allow_private=True)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "receiver.example/hook",
        "ftp://receiver.example/",
        "file:///etc/passwd",
        "https://",
        "https://user@receiver.example/",
        "https://user:word@receiver.example/",
        "https://receiver.example:22/",
        "http://receiver.example:25/",
        "https://receiver.example/" + "x" * 3000,
    ],
)
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(AddressRefused):
        parse(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000/",
        "http://2130706433:8000/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://localhost/",
        "http://localhost./",
        "http://169.254.169.254/latest/meta-data",
    ],
)
async def test_this_machine_is_refused_in_every_spelling(url: str) -> None:
    with pytest.raises(AddressRefused):
        await locate(url, allow_private=False)


async def test_a_name_is_refused_if_one_of_its_addresses_is_private() -> None:
    async def address_of(*addresses: str) -> str:
        target = await locate(
            "https://receiver.example/", allow_private=False, lookup=lambda host, port: addresses
        )
        return target.address

    assert await address_of("93.184.216.34", "2606:4700::1111") == "93.184.216.34"
    for addresses in (("93.184.216.34", "10.0.0.1"), ("10.0.0.1",), ("fe80::1%eth0",)):
        with pytest.raises(AddressRefused, match=r"receiver\.example is not a public address"):
            await address_of(*addresses)


async def test_an_unknown_name_has_its_own_error() -> None:
    def unknown(host: str, port: int) -> Sequence[str]:
        raise OSError("no such name")

    with pytest.raises(NameNotFound):
        await locate("https://receiver.example/", allow_private=False, lookup=unknown)
