"""Environment variables: their names, and which of those that begin with BATCHLINE_ are mistakes."""

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches

from batchline.config.definitions import PREFIX

# Every variable that begins so is a setting, or a mistake.
_STRICT = tuple(PREFIX + table for table in ("SERVER_", "LIMITS_", "WORKER_", "UPSTREAM_", "TRACES_"))
# The test suite's, and those that Kubernetes sets in every pod for a Service named batchline or batchline-….
_FOREIGN = re.compile(r"BATCHLINE_(TEST_\w+|(\w+_)?(SERVICE_(HOST|PORT\w*)|PORT(_\d+_(TCP|UDP|SCTP)\w*)?))")


def is_service_link(variable: str, value: str) -> bool:
    """Whether this is Kubernetes' address of a Service, such as BATCHLINE_SERVER_PORT=tcp://10.0.0.1:80."""
    return variable.endswith("_PORT") and "://" in value


def upstream_table(name: str) -> str:
    """The table of an upstream, as its variables name it."""
    return "upstream_" + re.sub(r"[^A-Za-z0-9]", "_", str(name)).lower()


def mistakes(variables: Iterable[str], known: Collection[str]) -> Iterable[tuple[str, str]]:
    """Each variable that looks like a setting and is none, and a hint.

    Others may have variables that begin with BATCHLINE_ too. Outside of the tables, only a variable that is
    nearly a setting is a mistake.
    """
    for variable in variables:
        if variable.startswith(PREFIX) and variable not in known and not _FOREIGN.fullmatch(variable):
            strict = variable.startswith(_STRICT)
            near = get_close_matches(variable, known, 1, 0.6 if strict else 0.8)
            if near or strict:
                yield variable, f"; did you mean {near[0]}?" if near else ""
