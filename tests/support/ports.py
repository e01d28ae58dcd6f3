"""Ports for servers that cannot choose one themselves."""

import random
import socket


def free_ports(count: int) -> list[int]:
    """Ports that nobody is given by the system before the server takes them: those begin at 32768."""
    taken: list[socket.socket] = []
    try:
        while len(taken) < count:
            one = socket.socket()
            try:
                one.bind(("127.0.0.1", random.randrange(15_000, 32_000)))
            except OSError:
                one.close()
            else:
                taken.append(one)
        return [one.getsockname()[1] for one in taken]
    finally:
        for one in taken:
            one.close()


def following_ports(count: int) -> int:
    """The first of so many free ports that follow each other."""
    while True:
        first = random.randrange(15_000, 32_000 - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) != 0
