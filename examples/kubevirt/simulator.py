"""Serve a simulated Kubernetes API with KubeVirt's virtual machines until Ctrl-C.

    python -m examples.kubevirt.simulator --port 8001

It keeps real objects: resource versions, conflicts, finalizers. GET /stats returns what it executed.
"""

import argparse
import json
import os
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence

from batchline.simulate import Handler, Simulator, serve
from examples.kubevirt.kubernetes import KubernetesRoutes
from examples.kubevirt.settings import NAMESPACES, ClusterSettings


def simulator(settings: ClusterSettings) -> Simulator:
    """Create the API as a server in the running event loop."""
    return Simulator(settings, routes(settings))


def routes(settings: ClusterSettings) -> Callable[[AbstractEventLoop], Handler]:
    return lambda loop: KubernetesRoutes(settings, loop).handle


def main(arguments: Sequence[str]) -> None:
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    as_json, token_env, namespaces = (options.pop(name) for name in ("json", "token_env", "namespace"))
    token = None if token_env is None else os.environ.get(token_env, "").strip()
    if token == "":
        parser.error(f"the environment variable {token_env} for the token is not set")
    try:
        settings = ClusterSettings(**options, token=token, namespaces=tuple(namespaces or NAMESPACES))
    except ValueError as error:
        parser.error(str(error))
    try:
        serve(settings, routes=routes(settings), on_ready=lambda host, port: _ready(host, port, as_json))
    except OSError as error:
        parser.error(f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.kubevirt.simulator", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001, help="0 picks a free one")
    for name, default, meaning in (
        ("latency", 0.0, "of each answer"),
        ("jitter", 0.0, "added at random"),
        ("controller", 50.0, "until a machine runs, has stopped or is gone"),
    ):
        parser.add_argument(
            f"--{name}", type=float, default=default, metavar="MS", dest=f"{name}_ms", help=meaning
        )
    parser.add_argument("--concurrency", type=int, default=0, help="requests answered at once; others queue")
    parser.add_argument("--rate-limit", type=float, default=0.0, metavar="RPS", help="beyond it: 429")
    parser.add_argument("--error-rate", type=float, default=0.0, help="share answered 5xx")
    parser.add_argument("--hang-rate", type=float, default=0.0, help="share never answered")
    parser.add_argument("--drop-rate", type=float, default=0.0, help="share whose connection is cut")
    parser.add_argument("--seed", type=int, default=0, help="determines the faults")
    parser.add_argument("--record", action="store_true", help="keep every request for GET /executions")
    parser.add_argument(
        "--token-env", metavar="NAME", help="the environment variable with the required token"
    )
    parser.add_argument(
        "--namespace", action="append", metavar="NAME", help="a namespace that exists; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="print the address as JSON")
    return parser


def _ready(host: str, port: int, as_json: bool) -> None:
    url = f"http://{host}:{port}"
    said = json.dumps({"url": url}) if as_json else f"simulated Kubernetes API at {url}, Ctrl-C stops it"
    print(said, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
