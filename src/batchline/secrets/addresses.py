"""URLs without what may be secret in them, to be displayed."""

import re

# A host, with a port or without.
_PLAIN_HOST = re.compile(r"[^:@\[\]]*(:[0-9]*)?|\[[0-9a-fA-F:.%]*\](:[0-9]*)?")


def public_url(url: str) -> str:
    """A URL without credentials, query and fragment.

    A password may have a character that ends the host, such as `/` or `?`. So everything up to the last `@`
    is cut. If that `@` may belong to a query, everything is hidden unless the beginning is plainly a host.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    address = re.split("[?#]", rest, maxsplit=1)[0]
    if "@" in rest[len(address) :] and not _PLAIN_HOST.fullmatch(address.partition("/")[0]):
        return f"{scheme}{mark}…"
    return f"{scheme}{mark}{address.rpartition('@')[2]}"
