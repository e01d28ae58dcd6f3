"""Items with very many secrets."""

from typing import Any

from batchline.config.settings import PackSettings
from batchline.governance.packs import kubevirt

VM_CREATE = next(
    each for each in kubevirt.operations(PackSettings("kubevirt", "cluster")) if each.name == "vm_create"
)
LABELS = 20_000


def machine(**labels: str) -> dict[str, Any]:
    return {"namespace": "a", "name": "b", "cpu": 1, "memory": "1Gi", "image": "i", "labels": labels}


def secret_labels(count: int) -> dict[str, str]:
    return {f"token{number}": f"value{number}" for number in range(count)}


def plain_labels(count: int) -> dict[str, str]:
    return {f"label{number}": f"value{number}" for number in range(count)}
