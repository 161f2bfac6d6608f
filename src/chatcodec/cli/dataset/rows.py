"""The rows of a data set: JSON lines, a JSON list, Parquet or Arrow, in batches that a process can be handed.

In: a file. Out: `Batch`es, in the order of the file, each with the number of its first row, counted from 0; of a batch,
its `Row`s. What holds: the same file gives the same batches; no more of it is held than a batch, save of a JSON list,
which is read whole; blank lines are no rows; a row that cannot be read is a row with an error, and the rest goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from ...errors import SourceError
from ..inputs import Document, InputError, documents, holds_lines, name_of, opened, parse

PARQUET_SUFFIXES = (".parquet", ".pq")
ARROW_SUFFIXES = (".arrow", ".feather", ".ipc")
ROWS = 256
"""Most rows of a batch."""
BYTES = 8 << 20
"""A batch is full when it holds as many bytes."""
EXTRA = "reading and writing Parquet and Arrow needs the extra: pip install 'chatcodec[samples]'"

Table: TypeAlias = Any
"""A `pyarrow.RecordBatch`."""


class Batch(NamedTuple):
    """Rows `first` to `first + size`: of JSON, each its text with the line where it stands, or None; or a table.

    `share` is how much of the file is read with it, where that is known.
    """

    first: int
    size: int
    data: list[tuple[int | None, bytes]] | Table
    share: float | None


class Row(NamedTuple):
    """A row of the data set, its number, and where it stands, for people. `error` says why it could not be read; then
    `value` is its text."""

    number: int
    where: str
    value: Any
    error: InputError | None = None


def is_columnar(path: str) -> bool:
    return path.lower().endswith((*PARQUET_SUFFIXES, *ARROW_SUFFIXES))


def arrow() -> Any:
    """The library for columnar files. Raises `SourceError` where it is not installed."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.ipc  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise SourceError(EXTRA) from error
    return pyarrow


# -- batches


def batches(path: str, rows: int = ROWS) -> Iterator[Batch]:
    """The rows of a file, or of standard input for `-`. Raises `InputError` for a file that cannot be read."""
    lower = path.lower()
    if lower.endswith(PARQUET_SUFFIXES):
        return _table_batches(path, _parquet_tables(path, rows), rows)
    if lower.endswith(ARROW_SUFFIXES):
        return _table_batches(path, _arrow_tables(path), rows)
    return _text_batches(_json_rows(path) if lower.endswith(".json") else _lines(path), rows)


def _text_batches(found: Iterable[tuple[int | None, bytes, float | None]], rows: int) -> Iterator[Batch]:
    first, size, share = 0, 0, None
    data: list[tuple[int | None, bytes]] = []
    for line, text, share in found:
        data.append((line, text))
        size += len(text)
        if len(data) >= rows or size >= BYTES:
            yield Batch(first, len(data), data, share)
            first, size, data = first + len(data), 0, []
    if data:
        yield Batch(first, len(data), data, share)


def _lines(path: str) -> Iterator[tuple[int, bytes, float | None]]:
    whole = 0 if path == "-" or not os.path.isfile(path) else os.path.getsize(path)
    read = 0
    for document in documents(path, lines=True):
        read += len(document.data) + 1
        yield document.line, document.data, min(read / whole, 1.0) if whole else None


def _json_rows(path: str) -> Iterator[tuple[int | None, bytes, float | None]]:
    """The rows of a `.json` file: JSON lines after all, a list of rows, or a single conversation."""
    with opened(path) as file:
        data = file.read()
    if holds_lines(data):
        yield from _lines(path)
        return
    value = parse(Document(name_of(path), 1, False, data))
    several = isinstance(value, list) and not any(isinstance(item, dict) and "role" in item for item in value)
    rows = value if several else [value]
    for number, row in enumerate(rows, 1):
        yield None, json.dumps(row).encode(), number / len(rows)


def _table_batches(path: str, tables: Iterable[tuple[Table, float | None]], rows: int) -> Iterator[Batch]:
    first = 0
    try:
        for table, share in tables:
            for start in range(0, table.num_rows, rows):
                part = table.slice(start, rows)
                yield Batch(first, part.num_rows, part, share)
                first += part.num_rows
    except (arrow().ArrowException, OSError) as error:
        why = (isinstance(error, OSError) and error.strerror) or error
        raise InputError(f"{path}: cannot be read: {why}") from error


def _parquet_tables(path: str, rows: int) -> Iterator[tuple[Table, float]]:
    with arrow().parquet.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
        whole, size = file.metadata.num_rows, 0
        for group in range(file.num_row_groups):
            size += file.metadata.row_group(group).total_byte_size
        fitting = max(1, min(rows, BYTES * max(whole, 1) // max(size, 1)))
        read = 0
        for table in file.iter_batches(batch_size=fitting):
            read += table.num_rows
            yield table, read / whole


def _arrow_tables(path: str) -> Iterator[tuple[Table, float | None]]:
    """Both kinds of Arrow's files: with an index at the end, and a mere stream, which the library datasets writes."""
    pa = arrow()
    with pa.memory_map(path) as memory:
        if memory.read(6) == b"ARROW1":
            file = pa.ipc.open_file(memory)
            for number in range(file.num_record_batches):
                yield file.get_batch(number), (number + 1) / file.num_record_batches
            return
        memory.seek(0)
        for table in pa.ipc.open_stream(memory):
            yield table, memory.tell() / max(memory.size(), 1)


# -- rows


def rows_of(batch: Batch, name: str, *, keep_nulls: bool) -> Iterator[Row]:
    """The rows of a batch as plain values; without `keep_nulls`, objects lose the keys that are null."""
    data = batch.data
    rows = _as_text(batch.first, data, name) if isinstance(data, list) else _as_table(batch.first, data, name)
    for row in rows:
        yield row if keep_nulls or row.error else row._replace(value=without_nulls(row.value))


def _as_text(first: int, data: list[tuple[int | None, bytes]], name: str) -> Iterator[Row]:
    for number, (line, text) in enumerate(data, first):
        document = Document(name, line or 1, line is not None, text)
        where = document.where if line is not None else _numbered(name, number)
        try:
            yield Row(number, where, parse(document))
        except InputError as error:
            yield Row(number, where, text.decode("utf-8", "replace"), error)


def _as_table(first: int, table: Table, name: str) -> Iterator[Row]:
    for number, value in enumerate(table.to_pylist(), first):
        yield Row(number, _numbered(name, number), value)


def _numbered(name: str, number: int) -> str:
    return f"{name}: row {number}"


def without_nulls(value: Any) -> Any:
    """`value`, its objects without the keys that are null: in columns, all rows have the keys that any row has."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value
