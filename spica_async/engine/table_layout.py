"""Performance tables as a replay reads them fastest: of one system and one backend alone.

A replay builds its tables anew each time. From the folder that ships with the engine it lists the
directories of all backends and versions for every kind of table, parses one long list of what may
be borrowed from whom, and reads whole rows, of which no look-up uses the origin. What is written
here leaves out what cannot be looked up, and nothing else: a replay's report stays the same to the
last bit.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from schemas.search_space import Backend
from spica_async.engine import runtime

LAYOUT: Final = 2
"""Goes up whenever a folder would be written differently."""
# Where a row comes from: no look-up in the long tables asks for it.
_ORIGIN_COLUMNS: Final = frozenset({"framework", "version", "device", "op_name"})
# Reading them takes most of a short replay. All others are copied as they are.
_LONG_TABLES: Final = frozenset(
    {
        "context_attention_perf.parquet",
        "gemm_perf.parquet",
        "generation_attention_perf.parquet",
        "moe_perf.parquet",
    }
)
# Those of them that older or newer versions lend many rows to. Where two versions measured the
# very same, the engine takes the row of the one that comes first.
_LENT_TABLES: Final = frozenset({"gemm_perf.parquet", "moe_perf.parquet"})
_MEASURED_COLUMNS: Final = frozenset({"latency", "power", "power_limit"})
_BORROWING_RULES: Final = "perf_data_reuse_manifest.yaml"
_ATTENTION_LANES: Final = "attention_lane_defaults.yaml"
_BACKENDS: Final = frozenset(get_args(Backend))


class TablesDifferError(Exception):
    """The engine would read other tables from the folder than from its own."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the engine has its tables of one system and one backend.

    Attributes:
        systems: The engine's folder of all systems.
        sku: The system.
        backend: The backend.
        version: The backend's version, as the engine writes it.
    """

    systems: Path
    sku: str
    backend: str
    version: str


def write_tables(origin: Origin, target: Path) -> None:
    """Fill an empty folder, which can then stand for the engine's folder of systems.

    Raises:
        TablesDifferError: if the engine would read other tables from it than from its own.
        OSError: if a file cannot be read or written.
    """
    data_folder = Path(_system(origin)["data_dir"])
    source, copy = origin.systems / data_folder, target / data_folder
    sources = _sources(origin, source)
    files = {*(file for table in sources.values() for file, _ in table), *_common_files(source)}
    for file in sorted(files):
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        if file.name in _LONG_TABLES:
            earlier = [source / other for other in _read_before(file, sources)]
            _rewrite_table(source / file, copy / file, earlier)
        else:
            shutil.copyfile(source / file, copy / file)
    for folder in sorted({file.parent for file in files} | set(_own_folders(source, origin))):
        _copy_notes(source / folder, copy / folder)
    _write_rules(origin, target, {file.name for file in files})
    shutil.copyfile(origin.systems / _ATTENTION_LANES, target / _ATTENTION_LANES)
    _write_yaml(target / f"{origin.sku}.yaml", _system(origin))
    if _sources(Origin(target, origin.sku, origin.backend, origin.version), copy) != sources:
        raise TablesDifferError(f"{origin.backend} {origin.version} on {origin.sku}")


_Source = tuple[Path, tuple[str, ...] | None]
"""A file below the folder of a system's data, and the kernels whose rows are taken from it."""


def _sources(origin: Origin, data: Path) -> dict[str, list[_Source]]:
    """By name of table, the files that the engine itself would read, in its order."""
    resolve = runtime.load("aisimulate_core").resolve_op_sources_report_json
    names = sorted({file.name for file in data.rglob("*.parquet")})
    found = {}
    for name in names:
        place = (str(origin.systems), str(data), origin.backend, origin.version, name)
        report = json.loads(resolve(*place, None, enable_shared_layer=True, strict=False))
        files = [
            (
                Path(record["path"]).relative_to(data),
                None if record["ks_filter"] is None else tuple(record["ks_filter"]),
            )
            for record in report["records"]
            if record["exists"]
        ]
        if files:
            found[name] = files
    return found


def _common_files(data: Path) -> Iterator[Path]:
    """Tables of no backend, those of the collective operations, relative to `data`."""
    for file in data.glob("*/*/*/*.parquet"):
        if file.parent.parent.name not in _BACKENDS:
            yield file.relative_to(data)


def _own_folders(data: Path, origin: Origin) -> Iterator[Path]:
    """What the backend's own version was measured for, even if it borrows all rows."""
    for folder in data.glob(f"*/{origin.backend}/{origin.version}"):
        yield folder.relative_to(data)


def _read_before(file: Path, sources: Mapping[str, Sequence[_Source]]) -> Iterator[Path]:
    """The files whose rows all count before those of `file`, where that is worth a look."""
    if file.name in _LENT_TABLES:
        for other, kernels in sources.get(file.name, ()):
            if other == file:
                return
            if kernels is None:
                yield other


def _rewrite_table(source: Path, target: Path, earlier: Sequence[Path]) -> None:
    """Copy a table, uncompressed, without its origin and without what `earlier` ones measured."""
    arrow, parquet = runtime.load("pyarrow"), runtime.load("pyarrow.parquet")
    table = parquet.read_table(source)
    for other in earlier:
        table = _without_rows_of(table, parquet.read_table(other))
    table = table.drop_columns([name for name in table.column_names if name in _ORIGIN_COLUMNS])
    # The reader is spared a look per value where it knows that none is missing.
    fields = [
        arrow.field(field.name, field.type, nullable=column.null_count > 0)
        for field, column in zip(table.schema, table.columns, strict=True)
    ]
    parquet.write_table(
        arrow.table(table.columns, schema=arrow.schema(fields)),
        target,
        compression="NONE",
        write_statistics=False,
        store_schema=False,
    )


def _without_rows_of(table: Any, other: Any) -> Any:
    """The rows of `table`, in their order, that `other` has not measured likewise."""
    key = [name for name in table.column_names if name not in _ORIGIN_COLUMNS | _MEASURED_COLUMNS]
    if not set(key) <= set(other.column_names):
        return table
    known = set(zip(*(other[name].to_pylist() for name in key), strict=True))
    rows = zip(*(table[name].to_pylist() for name in key), strict=True)
    return table.take([index for index, row in enumerate(rows) if row not in known])


def _copy_notes(source: Path, target: Path) -> None:
    """Copy what is said about a version's tables, such as what it borrows."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.suffix == ".yaml":
            _write_yaml(target / file.name, _read_yaml(file))
        elif file.is_file() and file.suffix != ".parquet":
            shutil.copyfile(file, target / file.name)


def _write_rules(origin: Origin, target: Path, names: set[str]) -> None:
    """Write who may borrow whose rows, as far as it concerns this backend and these tables."""
    rules = _read_yaml(origin.systems / _BORROWING_RULES)
    rules["groups"] = [
        group
        for group in rules["groups"]
        if group["op_file"] in names and origin.backend in group["frameworks"]
    ]
    _write_yaml(target / _BORROWING_RULES, rules)


def _system(origin: Origin) -> dict[str, Any]:
    return _read_yaml(origin.systems / f"{origin.sku}.yaml")


def _read_yaml(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = runtime.load("yaml").safe_load(file.read_text(encoding="utf-8"))
    return document


def _write_yaml(file: Path, document: dict[str, Any]) -> None:
    """Without comments: a replay parses these files dozens of times, and slowly."""
    text = runtime.load("yaml").safe_dump(document, default_flow_style=True, width=10_000)
    file.write_text(text, encoding="utf-8")
