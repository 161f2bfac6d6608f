"""Rows into training samples: the work of one process of `chatcodec samples`.

In: a `Batch` of rows. Out: its samples, written already (Arrow's stream, or JSON lines), and a `Tally`. What holds: a
row of which a turn is left out is among the bad ones, with the kind and the reason, and a row that fails stops nothing.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...codec import load
from ...errors import ChatCodecError, UnsupportedInput
from ...tokens.samples import Sample
from ...training import fitting
from ...turn import TurnFormat
from ..inputs import InputError
from ..request import Request
from .parts import Tally, bad_row
from .rows import Batch, Row, Table, arrow, rows_of
from .shapes import Talk, talk_of

TOO_LONG, UNTRAINED = "too long", "nothing to train"
UNREADABLE, NO_TALK, REFUSED, FAILED = "not readable", "no conversation", "refused", "failed"


@dataclass(frozen=True)
class Job:
    """What a process has to know: the options of the command, and `columns`, whether to write for Parquet."""

    source: str
    template: str | None
    tokenizer: str | None
    format: TurnFormat | None
    data: str
    tools: Any
    variables: Mapping[str, Any]
    turns: str
    max_length: int | None
    overflow: str
    keep_nulls: bool
    mask_column: str
    columns: bool


class Made(NamedTuple):
    tally: Tally
    samples: bytes
    ignored: set[str]
    share: float | None


class _LeftOut(Exception):
    """The row, or a part of it, gives no samples."""

    def __init__(self, kind: str, path: str | None, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.path, self.reason = kind, path, reason


class Maker:
    """Makes samples of batches."""

    def __init__(self, job: Job) -> None:
        self._job = job
        codec = load(job.source, template_name=job.template, tokenizer=job.tokenizer, format=job.format)
        self._request = Request(codec, tools=job.tools, variables=dict(job.variables))
        self._ignored: set[str] = set()

    def __call__(self, batch: Batch) -> Made:
        tally = Tally(batch.first, batch.size)
        writer = _Columns(self._job.mask_column) if self._job.columns else _Lines(self._job.mask_column)
        for row in rows_of(batch, self._job.data, keep_nulls=self._job.keep_nulls):
            try:
                self._make(row, tally, writer)
            except _LeftOut as left:
                _count_bad(tally, row, left.kind, left.path, left.reason)
            except Exception as error:
                _count_bad(tally, row, *_told(error))
        return Made(tally, writer.written(), self._ignored, batch.share)

    def _make(self, row: Row, tally: Tally, writer: _Columns | _Lines) -> None:
        if row.error is not None:
            raise _LeftOut(UNREADABLE, None, str(row.error))
        try:
            talk = talk_of(row.value, row.where)
        except UnsupportedInput as error:
            raise _LeftOut(NO_TALK, error.path, error.reason) from error
        samples = self._samples(talk)
        if not any(sample.turns for sample in samples):
            raise _LeftOut(UNTRAINED, None, _untrained(talk, self._job.turns))
        fitting, lost = self._fitted(samples)
        for sample in fitting:
            writer.add(sample, row.number)
            tally.samples += 1
            tally.tokens += len(sample.input_ids)
            tally.trained += sum(sample.loss_mask)
        if lost:
            raise _LeftOut(TOO_LONG, None, lost)

    def _samples(self, talk: Talk) -> list[Sample]:
        given = talk.conversation
        variables, ignored = self._request.told_apart(given)
        self._ignored |= ignored
        variables.pop("add_generation_prompt", None)
        return self._request.codec.training_samples(
            given.messages, self._request.tools(given), turns=self._job.turns, given=talk.start, **variables
        )

    def _fitted(self, samples: list[Sample]) -> tuple[list[Sample], str]:
        """The samples as the options want them, and what is lost by that."""
        most = self._job.max_length
        try:
            kept = fitting(samples, most, self._job.overflow)
        except UnsupportedInput as error:
            raise _LeftOut(TOO_LONG, error.path, error.reason) from None
        lost = sorted({turn for sample in samples for turn in sample.turns} - {t for s in kept for t in s.turns})
        if not lost:
            return kept, ""
        places = ", ".join(f"messages[{turn}]" for turn in lost)
        return kept, f"{max(map(len, samples)):,} tokens; --max-length is {most:,}; not trained: {places}"


def _answers(talk: Talk) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The assistant's messages that may be trained, each with its place."""
    for place, message in enumerate(talk.conversation.messages):
        if place >= talk.start and isinstance(message, dict) and message.get("role") == "assistant":
            yield place, message


def _untrained(talk: Talk, turns: str) -> str:
    if not any(_answers(talk)):
        return "no assistant's turn" + (" in the completion" if talk.start else "")
    return "no turn is flagged" if turns == "flagged" else "the template writes nothing of the assistant's turns"


def _told(error: Exception) -> tuple[str, str | None, str]:
    if isinstance(error, UnsupportedInput):
        return REFUSED, error.path, error.reason
    if isinstance(error, InputError):
        return NO_TALK, None, str(error)
    if isinstance(error, ChatCodecError):
        return REFUSED, None, str(error)
    return FAILED, None, f"{type(error).__name__}: {error}"


def _count_bad(tally: Tally, row: Row, kind: str, path: str | None, reason: str) -> None:
    tally.left_out[kind] += 1
    tally.bad.append(bad_row(row.number, row.where, kind, path, reason, row.value))


# -- what is written


def schema(mask_column: str, made_with: str = "") -> Table:
    """The columns of the output; `made_with` is kept in the file beside them."""
    pa = arrow()
    return pa.schema(
        [
            ("input_ids", pa.list_(pa.int32())),
            (mask_column, pa.list_(pa.bool_())),
            ("source_row", pa.int64()),
            ("turn", pa.list_(pa.int32())),
        ],
        metadata={"chatcodec": made_with} if made_with else None,
    )


class _Columns:
    """Samples as a table; ids and masks are kept as bytes, of which Arrow makes columns as they are."""

    def __init__(self, mask_column: str) -> None:
        self._schema = schema(mask_column)
        self._ids, self._mask, self._turns = array("i"), bytearray(), array("i")
        self._ends, self._turn_ends = array("i", [0]), array("i", [0])
        self._rows = array("q")

    def add(self, sample: Sample, row: int) -> None:
        self._ids.extend(sample.input_ids)
        self._mask.extend(sample.loss_mask)
        self._turns.extend(sample.turns)
        self._ends.append(len(self._ids))
        self._turn_ends.append(len(self._turns))
        self._rows.append(row)

    def written(self) -> bytes:
        if not self._rows:
            return b""
        pa = arrow()
        mask = _array(pa.uint8(), self._mask).cast(pa.bool_())
        ends, turn_ends = _array(pa.int32(), self._ends), _array(pa.int32(), self._turn_ends)
        table = pa.record_batch(
            [
                pa.ListArray.from_arrays(ends, _array(pa.int32(), self._ids)),
                pa.ListArray.from_arrays(ends, mask),
                _array(pa.int64(), self._rows),
                pa.ListArray.from_arrays(turn_ends, _array(pa.int32(), self._turns)),
            ],
            schema=self._schema,
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            writer.write_batch(table)
        written: bytes = sink.getvalue().to_pybytes()
        return written


def _array(kind: Any, values: array[int] | bytearray) -> Table:
    pa = arrow()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


class _Lines:
    """Samples as JSON lines."""

    def __init__(self, mask_column: str) -> None:
        self._mask_column = mask_column
        self._lines: list[str] = []

    def add(self, sample: Sample, row: int) -> None:
        values = {
            "input_ids": sample.input_ids,
            self._mask_column: sample.loss_mask,
            "source_row": row,
            "turn": sample.turns,
        }
        self._lines.append(json.dumps(values, separators=(",", ":")) + "\n")

    def written(self) -> bytes:
        return "".join(self._lines).encode()
