"""Parse an input that is given as bytes."""

from batchline.files.parsing import LineColumns, Reader, ReadingRules


def read(
    *contents: bytes, rules: ReadingRules | None = None, block: int | None = None
) -> tuple[Reader, list[LineColumns]]:
    """Reads each content as a source named a, b, c …, in blocks of the given size."""
    reader = Reader(rules or ReadingRules())
    taken = []
    for name, content in zip("abcdefgh", contents, strict=False):
        reader.begin(name)
        size = block or max(len(content), 1)
        taken += [reader.feed(content[start : start + size]) for start in range(0, len(content), size)]
        taken.append(reader.end())
    return reader, taken
