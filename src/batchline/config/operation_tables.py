"""`[[operations]]` and `[packs]`: what can be submitted, and the upstreams that it wants."""

from collections.abc import Sequence
from typing import Any

from batchline.config.errors import SettingsError
from batchline.config.keys import OPERATION, PACK
from batchline.config.settings import OperationSettings, PackSettings
from batchline.config.source import Source


def read_operations(source: Source) -> Sequence[OperationSettings]:
    return [_operation(source, number, table) for number, table in enumerate(source.tables_of("operations"))]


def _operation(source: Source, number: int, table: Any) -> OperationSettings:
    values = source.table("operations", number, table, OPERATION)
    source.check_required("operations", number, values)
    positions = {key: source.where(("operations", number, key)) for key in values}
    return OperationSettings(**values, positions=positions | {"": source.where(("operations", number, None))})


def read_packs(source: Source) -> Sequence[PackSettings]:
    table = source.tables.get("packs", {})
    if not isinstance(table, dict):
        raise source.error(("packs", 0, None), "packs", "it must be a table")
    read = []
    for name, pack in table.items():
        values = source.table(f"packs.{name}", 0, pack, PACK)
        if "upstream" not in values:
            raise source.error(("packs", 0, name), f"packs.{name}.upstream", "it is missing")
        read.append(PackSettings(name, **values, position=source.where(("packs", 0, name))))
    return read


def wanted_upstreams(
    source: Source, operations: Sequence[OperationSettings], packs: Sequence[PackSettings]
) -> set[str]:
    """The names of the upstreams that operations go to, each of which must be there."""
    wanted = {each.upstream: each.position_of("upstream") for each in operations}
    wanted |= {each.upstream: each.position for each in packs}
    upstreams = source.tables_of("upstreams")
    for name, position in wanted.items():
        if not any(isinstance(table, dict) and table.get("name") == name for table in upstreams):
            raise SettingsError(f"{position}: there is no upstream {name!r}")
    return set(wanted)
