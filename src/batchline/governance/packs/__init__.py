"""Operations that come with the program, a pack for each system, switched on in `[packs]` of the settings."""

from collections.abc import Callable

from batchline.config import SettingsError
from batchline.config.settings import PackSettings, ServerSettings
from batchline.governance.approvals import APPROVE
from batchline.governance.operations import InvalidOperation, Operation
from batchline.governance.packs import kubevirt
from batchline.governance.registry import Registry, registry_of

PACKS: dict[str, Callable[[PackSettings], tuple[Operation, ...]]] = {"kubevirt": kubevirt.operations}


def registry(settings: ServerSettings) -> Registry:
    """All operations of the settings: those of its packs, and its own. Raises SettingsError."""
    made = [operation for pack in settings.packs for operation in _made(pack)]
    # Without other operations there is nothing to approve.
    own = [APPROVE] if made or settings.operations else []
    return registry_of(settings, [*own, *made])


def _made(pack: PackSettings) -> tuple[Operation, ...]:
    make = PACKS.get(pack.name)
    if make is None:
        raise SettingsError(f"{pack.position}: there is no pack {pack.name!r}; there are {', '.join(PACKS)}")
    try:
        return make(pack)
    except InvalidOperation as error:
        raise SettingsError(f"{pack.position}: packs.{pack.name}.{error}") from None
