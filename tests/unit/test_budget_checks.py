"""Budgets in batchline.toml: contradictions are refused at the start, with their line."""

from pathlib import Path

import pytest

from batchline.config import SettingsError, load
from batchline.config.settings import BudgetSettings

UPSTREAMS = """\
[[upstreams]]
name = "gpu"
base_url = "http://gpu:8000/v1"
models = ["small", "large"]

[[upstreams]]
name = "cluster"
base_url = "http://cluster"
models = []

"""
FIRST = len(UPSTREAMS.splitlines()) + 1


def loaded(tmp_path: Path, text: str, before: str = UPSTREAMS) -> tuple[BudgetSettings, ...]:
    path = tmp_path / "batchline.toml"
    path.write_text(before + text)
    return load(path, {}).server.budgets


def test_budgets_are_of_upstreams_models_and_tenants(tmp_path: Path) -> None:
    budgets = loaded(
        tmp_path,
        """
        [[budgets]]
        upstream = "gpu"
        model = "large"
        tokens_per_minute = 1000
        [[budgets]]
        tenant = "*"
        requests_per_minute = 60
        """,
    )
    assert budgets == (
        BudgetSettings("gpu", "large", None, None, 1000),
        BudgetSettings(None, None, "*", 60, None),
    )


@pytest.mark.parametrize(
    ("line", "text", "why"),
    [
        (1, '[[budgets]]\nupstream = "gpu"', "requests_per_minute: set it, or tokens_per_minute, or both"),
        (1, "[[budgets]]\nrequests_per_minute = 5", "upstream: say what it is for"),
        (
            2,
            '[[budgets]]\nupstream = "gpux"\nrequests_per_minute = 5',
            "there is no upstream 'gpux'; did you mean gpu?",
        ),
        (3, '[[budgets]]\nupstream = "gpu"\nrequests_per_minute = 0', "must be a whole number from 1"),
        (3, '[[budgets]]\nupstream = "gpu"\ntokens_per_minute = -1', "must be a whole number from 1"),
        (
            3,
            '[[budgets]]\nupstream = "gpu"\nmodel = "tiny"\nrequests_per_minute = 5',
            "upstream gpu does not serve 'tiny'",
        ),
        (2, '[[budgets]]\nmodel = "tiny"\nrequests_per_minute = 5', "no upstream serves 'tiny'"),
        (
            4,
            '[[budgets]]\ntenant = "a"\nrequests_per_minute = 50\ntokens_per_minute = 49',
            "is less than requests_per_minute (50)",
        ),
        (
            3,
            '[[budgets]]\nupstream = "cluster"\ntokens_per_minute = 5',
            "serves no models, so its requests have no tokens",
        ),
        (
            6,
            2 * '[[budgets]]\ntenant = "a"\nrequests_per_minute = 5\n',
            "budgets[0] sets it for the same requests",
        ),
    ],
)
def test_contradictions_are_refused_with_their_line(tmp_path: Path, line: int, text: str, why: str) -> None:
    with pytest.raises(SettingsError) as refused:
        loaded(tmp_path, text)
    assert f"line {FIRST + line - 1}: budgets[" in str(refused.value)
    assert why in str(refused.value)


def test_the_budget_of_an_upstream_is_not_repeated(tmp_path: Path) -> None:
    own = UPSTREAMS.replace('"large"]', '"large"]\nrequests_per_minute = 10')
    with pytest.raises(SettingsError, match="upstream gpu sets it for the same requests"):
        loaded(tmp_path, '[[budgets]]\nupstream = "gpu"\nrequests_per_minute = 5', own)
    # Tokens are another matter.
    assert loaded(tmp_path, '[[budgets]]\nupstream = "gpu"\ntokens_per_minute = 5', own)


def test_upstreams_with_one_url_have_one_budget(tmp_path: Path) -> None:
    again = """
    requests_per_minute = 5
    [[upstreams]]
    name = "again"
    base_url = "http://CLUSTER/"
    models = ["tiny"]
    requests_per_minute = 6
    """
    with pytest.raises(SettingsError, match="upstream cluster sets it for the same requests"):
        loaded(tmp_path, again)


def test_a_tenant_may_have_more_than_its_upstream(tmp_path: Path) -> None:
    assert loaded(
        tmp_path,
        """
        [[budgets]]
        upstream = "gpu"
        requests_per_minute = 5
        [[budgets]]
        upstream = "gpu"
        tenant = "a"
        requests_per_minute = 500
        """,
    )
