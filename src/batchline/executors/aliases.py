"""The name of a model as an upstream knows it: written into a body instead of the name that the line has.

The body is a JSON object, which was checked when its file was read. The values of all other fields stay as
they are, byte by byte. Of a field that a body has twice, the last counts, as it did when the line was read.
"""

import msgspec

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def with_model(body: bytes, name: str) -> bytes:
    """The body with this model. One that is not a JSON object stays as it is: the upstream refuses it."""
    try:
        fields = _fields(body)
    except msgspec.DecodeError:
        return body
    fields["model"] = msgspec.Raw(_encode(name))
    return _encode(fields)
