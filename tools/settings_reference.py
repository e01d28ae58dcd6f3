"""Write the tables of the settings reference from the settings' definitions.

    python -m tools.settings_reference

It replaces what is between `<!-- settings: TABLE -->` and `<!-- end -->` in docs/reference/batchline-toml.md.
`commands` are the settings that are not in the file. The rest of the page is written by hand.
"""

import re
from pathlib import Path

from batchline.config.definitions import Setting, settings_of
from batchline.config.loading import TABLES
from batchline.config.settings import Settings

PAGE = Path(__file__).parents[1] / "docs/reference/batchline-toml.md"
_REGION = re.compile(r"(<!-- settings: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rendered(page: str) -> str:
    """The page with its tables as the definitions have them."""
    return _REGION.sub(lambda region: "\n".join((region[1], *_table(region[2]), "", region[3])), page)


def _table(name: str) -> list[str]:
    if name == "commands":
        rows = [f"| `{each.flag_name}` | `{each.variable_name()}` | {each.help} |" for each in _all(Settings)]
        return ["| option | variable | |", "|---|---|---|", *rows]
    rows = [
        f"| `{each.key}` | {_default(each)} | {_value(each)} | {each.help}{_names(each, name)} |"
        for each in _all(TABLES[name])
        if each.in_file
    ]
    return ["| key | default | value | |", "|---|---|---|---|", *rows]


def _all(owner: type) -> list[Setting]:
    return list(settings_of(owner).values())


def _default(each: Setting) -> str:
    if each.required:
        return "required"
    empty = each.default is None or each.default in ("", (), {})
    displayed = each.kind.display(each.default)
    return "none" if empty and displayed != '"never"' else f"`{displayed}`"


def _value(each: Setting) -> str:
    """What its errors say, without examples and advice."""
    return re.split(r",? such as|;", each.kind.expected)[0]


def _names(each: Setting, table: str) -> str:
    names = [each.flag_name] if each.flag else []
    names += [each.variable_name(table)] if each.variable else []
    return f" ({', '.join(f'`{name}`' for name in names)})" if names else ""


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
