"""Prints the peak of the private memory, in bytes, of a process that reads and renders an input."""

import sys
from pathlib import Path

from batchline.files.inputs.process import RenderRequest, answers_to
from tests.support.input_files import TRANSLATE, inputs_at


def main(path: str) -> int:
    inputs = inputs_at(path, template=TRANSLATE)
    cell = memoryview(bytearray(8)).cast("q")
    request = RenderRequest(inputs.files, inputs.template, inputs.limits, 0)
    # Mapped pages of a file can be dropped at any time, so they do not count.
    return max(_private() for _ in answers_to(request, cell))


def _private() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    print(main(sys.argv[1]))
