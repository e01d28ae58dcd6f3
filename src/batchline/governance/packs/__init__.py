"""Operations that come with Batchline: one pack per system, enabled in `[packs]` of the settings.

May import what governance may. Start with `kubevirt`; a new pack is a module like it, and an entry of PACKS.
"""

from collections.abc import Callable, Sequence

from batchline.config import SettingsError
from batchline.config.settings import PackSettings, ServerSettings
from batchline.governance.approvals import APPROVE
from batchline.governance.operations import InvalidOperation, Operation
from batchline.governance.packs import kubevirt
from batchline.governance.registry import Registry, registry_of

PACKS: dict[str, Callable[[PackSettings], tuple[Operation, ...]]] = {"kubevirt": kubevirt.operations}


def registry(settings: ServerSettings, more: Sequence[Operation] = ()) -> Registry:
    """All operations of the settings: those of packs, and `[[operations]]`; and `more`, of a Python app.

    Raises SettingsError, and InvalidOperation for two of one name.
    """
    made = [operation for pack in settings.packs for operation in _made(pack)]
    # Only other operations can need approval.
    own = [APPROVE] if made or more or settings.operations else []
    return registry_of(settings, [*own, *made, *more])


def _made(pack: PackSettings) -> tuple[Operation, ...]:
    make = PACKS.get(pack.name)
    if make is None:
        raise SettingsError(f"{pack.position}: unknown pack {pack.name!r}; known packs: {', '.join(PACKS)}")
    try:
        return make(pack)
    except InvalidOperation as error:
        raise SettingsError(f"{pack.position}: packs.{pack.name}.{error}") from None
