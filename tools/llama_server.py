"""Serve a small generated model with a real llama.cpp server, as an upstream for tests and benchmarks.

    python -m tools.llama_server [--slots N] [--port N] [--cache-ram MIB]

It prints its URL and serves until it is terminated. As llama.cpp does by default, it works on one request at
a time, queues all others, and never refuses. It keeps the last prompt of each slot as a cache, and copies of
earlier ones in memory, unless `--cache-ram` is 0. GET /metrics shows its load.
"""

import argparse
import tempfile
from pathlib import Path
from threading import Event
from typing import Any

from tools.tiny_llama import write_model


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.llama_server")
    parser.add_argument("--slots", type=int, default=1, help="requests at a time")
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument(
        "--cache-ram", type=int, help="MiB for copies of earlier prompts; default: llama.cpp's"
    )
    options = parser.parse_args()
    # The server keeps the file open, so its folder need not outlive the start.
    with tempfile.TemporaryDirectory(prefix="tiny-llama-", ignore_cleanup_errors=True) as folder:
        model = Path(folder, "tiny.gguf")
        write_model(model)
        server = serve(model, options.slots, options.port, options.cache_ram)
    print(server.listening_address, flush=True)
    Event().wait()


def serve(model: Path, slots: int, port: int, cache_ram: int | None = None) -> Any:
    """A server that has loaded the model and listens."""
    # Imported here, so that the module can be imported where llama.cpp is not installed.
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {"tiny"}
    params.n_parallel = slots
    params.n_ctx = 4096 * slots
    params.n_gpu_layers = 0
    # One thread, so that it leaves a core to its client.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.port = port
    params.endpoint_metrics = True
    if cache_ram is not None:
        params.cache_ram_mib = cache_ram
    # Only warnings and errors.
    params.verbosity = 1
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
