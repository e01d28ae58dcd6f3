"""Read the settings: the file, then the environment, then the flags; the later ones win."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from batchline.config import variables
from batchline.config.budget_checks import budget_contradictions
from batchline.config.definitions import Setting, settings_of
from batchline.config.file import SettingsError, SettingsFile, read_file
from batchline.config.settings import (
    ANY_MODEL,
    BudgetSettings,
    LimitSettings,
    OperationSettings,
    PackSettings,
    PriceSettings,
    ServerSettings,
    Settings,
    SpendingSettings,
    StageSettings,
    TraceSettings,
    UpstreamSettings,
    WorkerSettings,
)
from batchline.config.upstream_checks import contradictions

DEFAULT_NAME = "batchline.toml"
SINGLE = ("server", "limits", "worker", "spending", "traces")
TABLES: dict[str, type[Any]] = {
    "server": ServerSettings,
    "worker": WorkerSettings,
    "limits": LimitSettings,
    "upstreams": UpstreamSettings,
    "budgets": BudgetSettings,
    "operations": OperationSettings,
    "packs": PackSettings,
    "stages": StageSettings,
    "prices": PriceSettings,
    "spending": SpendingSettings,
    "traces": TraceSettings,
}


def load(path: Path | None, environ: Mapping[str, str], flags: Mapping[str, Any] | None = None) -> Settings:
    """Read all settings. Raises SettingsError, which names the line, the variable or the flag."""
    return _Loader(read_file(path), environ, flags or {}).load()


def missing_keys(settings: ServerSettings, environ: Mapping[str, str]) -> list[str]:
    """The upstreams whose API keys are not in the environment, one sentence each."""
    return [
        f"upstream {upstream.name}: set the environment variable {upstream.api_key_env} to its API key"
        for upstream in settings.upstreams
        if upstream.api_key_env and not environ.get(upstream.api_key_env, "").strip()
    ]


class _Loader:
    def __init__(self, file: SettingsFile, environ: Mapping[str, str], flags: Mapping[str, Any]) -> None:
        self._file = file
        self._environ = environ
        self._flags = {key: value for key, value in flags.items() if value is not None}
        self._origins: dict[str, str] = {}
        self._variables = {each.variable_name() for each in settings_of(Settings).values()}

    def load(self) -> Settings:
        for name in self._file.tables:
            if name not in TABLES:
                raise self._file.error((name, 0, None), name, f"unknown table{_hint(name, TABLES)}")
        server, limits, worker, spending, traces = (
            self._values(name, self._table(name), name) for name in SINGLE
        )
        operations = [self._operation(*each) for each in enumerate(self._tables("operations"))]
        packs = [self._pack(*each) for each in self._table("packs").items()]
        stages = [self._stage(*each) for each in self._table("stages").items()]
        upstreams = [self._upstream(*each) for each in enumerate(self._tables("upstreams"))]
        upstreams = self._for_operations(upstreams, operations, packs)
        self._check_upstreams(upstreams)
        self._check_variables(upstreams)
        # The upstream for any model decides for models that have no upstream of their own.
        caps = [upstream.concurrency for upstream in upstreams if ANY_MODEL in upstream.models]
        return Settings(
            **{key: value for key, value in self._flags.items() if key in settings_of(Settings)},
            server=ServerSettings(
                tuple(upstreams),
                tuple(operations),
                tuple(packs),
                self._prices(),
                SpendingSettings(**spending),
                limits=LimitSettings(**limits),
                stages=tuple(stages),
                budgets=self._budgets(upstreams),
                **server,
            ),
            worker=WorkerSettings(**({"concurrency": caps[0]} if caps else {}) | worker),
            traces=TraceSettings(**traces),
            origins=self._origins,
        )

    def _upstream(self, number: int, table: Any) -> UpstreamSettings:
        name = table.get("name", "") if isinstance(table, dict) else ""
        return UpstreamSettings(**self._values("upstreams", table, variables.upstream_table(name), number))

    def _budgets(self, upstreams: Sequence[UpstreamSettings]) -> tuple[BudgetSettings, ...]:
        budgets = tuple(
            BudgetSettings(**self._values("budgets", table, None, number))
            for number, table in enumerate(self._tables("budgets"))
        )
        for table, number, key, why in budget_contradictions(upstreams, budgets):
            path = f"{table}[{number}].{key}"
            if (where := self._origins.get(path)) is not None:
                raise SettingsError(f"{where}: {path}: {why}")
            raise self._file.error((table, number, None), path, why)
        return budgets

    def _prices(self) -> tuple[PriceSettings, ...]:
        """A model has one price."""
        prices: dict[str, PriceSettings] = {}
        for number, table in enumerate(self._tables("prices")):
            price = PriceSettings(**self._values("prices", table, None, number))
            if price.model in prices:
                position, key = ("prices", number, "model"), f"prices[{number}].model"
                raise self._file.error(position, key, f"{price.model!r} has a price already")
            prices[price.model] = price
        return tuple(prices.values())

    def _operation(self, number: int, table: Any) -> OperationSettings:
        values = self._values("operations", table, None, number)
        positions = {key: self._origins[f"operations[{number}].{key}"] for key in values}
        where = self._file.where(("operations", number, None))
        return OperationSettings(**values, positions=positions | {"": where})

    def _pack(self, name: str, table: Any) -> PackSettings:
        values = self._values(f"packs.{name}", table, None)
        return PackSettings(name, **values, position=self._file.where(("packs", 0, name)))

    def _stage(self, name: str, table: Any) -> StageSettings:
        path = f"stages.{name}"
        values = self._values(path, table, None)
        positions = {key: self._origins[f"{path}.{key}"] for key in values}
        return StageSettings(name, **values, positions=positions | {"": self._file.where((path, 0, None))})

    def _table(self, name: str) -> dict[str, Any]:
        table = self._file.tables.get(name, {})
        if not isinstance(table, dict):
            raise self._file.error((name, 0, None), name, "must be a table")
        return table

    def _tables(self, name: str) -> list[Any]:
        tables = self._file.tables.get(name, [])
        if not isinstance(tables, list):
            raise self._file.error((name, 0, None), name, f"write it as [[{name}]], once for each")
        return tables

    def _values(
        self, name: str, table: Any, environment: str | None, number: int | None = None
    ) -> dict[str, Any]:
        """The values of a table: the file's, the environment's if the table has variables, the flags'."""
        path, at = name if number is None else f"{name}[{number}]", (name, number or 0)
        if not isinstance(table, dict):
            raise self._file.error((*at, None), path, "must be a table")
        settings = settings_of(TABLES[name.partition(".")[0]])
        known = {key: each for key, each in settings.items() if each.in_file}
        values = {}
        for key, value in table.items():
            if key not in known:
                raise self._file.error((*at, key), f"{path}.{key}", f"unknown key{_hint(key, known)}")
            self._origins[f"{path}.{key}"] = where = self._file.where((*at, key))
            values[key] = _read(known[key], value, f"{where}: {path}.{key}")
        if environment is not None:
            values |= self._from_environment(path, environment, known)
        for key, each in settings.items():
            if each.flag and key in self._flags:
                self._origins[f"{path}.{key}"] = each.flag_name
                values[key] = self._flags[key]
            if each.required and key not in values:
                raise self._file.error((*at, None), f"{path}.{key}", "is missing")
        return values

    def _from_environment(self, path: str, environment: str, known: Mapping[str, Setting]) -> dict[str, Any]:
        values = {}
        for key, each in known.items():
            # A name identifies its table, so it has no variable.
            for variable in each.variables(environment) if key != "name" else ():
                self._variables.add(variable)
                text = self._environ.get(variable)
                if text is not None and not variables.is_service_link(variable, text):
                    self._origins[f"{path}.{key}"] = variable
                    values[key] = _read(each, each.kind.from_text(text), f"environment variable {variable}")
        return values

    def _for_operations(
        self,
        upstreams: Sequence[UpstreamSettings],
        operations: Sequence[OperationSettings],
        packs: Sequence[PackSettings],
    ) -> list[UpstreamSettings]:
        """The upstreams that operations name must exist, and serve no models unless they list them."""
        wanted = {each.upstream: each.position_of("upstream") for each in operations}
        wanted |= {each.upstream: each.position for each in packs}
        names = [upstream.name for upstream in upstreams]
        for name, position in wanted.items():
            if name not in names:
                raise SettingsError(f"{position}: there is no upstream {name!r}")
        return [
            replace(each, models=())
            if each.name in wanted and f"upstreams[{number}].models" not in self._origins
            else each
            for number, each in enumerate(upstreams)
        ]

    def _check_upstreams(self, upstreams: Sequence[UpstreamSettings]) -> None:
        def is_set(number: int, key: str) -> bool:
            return f"upstreams[{number}].{key}" in self._origins

        for number, key, why in contradictions(upstreams, is_set):
            raise self._file.error(("upstreams", number, key), f"upstreams[{number}].{key}", why)

    def _check_variables(self, upstreams: Sequence[UpstreamSettings]) -> None:
        known = self._variables | {upstream.api_key_env for upstream in upstreams if upstream.api_key_env}
        for variable, hint in variables.mistakes(self._environ, known):
            raise SettingsError(f"environment variable {variable}: there is no such setting{hint}")


def _read(setting: Setting, value: Any, where: str) -> Any:
    try:
        return setting.kind.read(value)
    except ValueError as error:
        raise SettingsError(f"{where}: {error}") from None


def _hint(key: str, known: Mapping[str, Any]) -> str:
    near = get_close_matches(key, known, 1)
    return f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(known))}"
