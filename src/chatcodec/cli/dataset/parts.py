"""The output of a long run: kept in parts, so that a run that was interrupted goes on where it stopped.

In: the result of each batch, in any order. Out: one file, and beside it `NAME.bad.jsonl` with the rows that are not in
it. What holds: a part counts once it is whole on the disk; the file is that of a run without interruptions, to the
byte, and appears under its name only when it is whole; parts of another run (another source, other options) are never
taken over; one run at a time works on a file.

Parts stand in the folder `NAME.parts`: `run.json` says what they are parts of, and for the batch that begins at row N,
`N.part` holds the samples and `N.json`, written behind it, what is told of them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from ..inputs import LINES_SUFFIXES, InputError
from ..outputs import json_line
from .rows import PARQUET_SUFFIXES, Batch, Table, arrow

FOLDER, BAD = ".parts", ".bad.jsonl"
RUN, LOCK = "run.json", "lock"
GROUP_SAMPLES, GROUP_TOKENS = 1024, 8 << 20
"""A row group of the output is full with so many samples or tokens."""

_DONE = re.compile(r"\d{12}\.json")
_OURS = re.compile(r"(\d{12}\.(json|part)|run\.json)(\.new)?|lock|joined|bad")


@dataclass
class Tally:
    """What came of some rows. `bad` are the rows that gave no samples, or fewer than they hold: as JSON lines."""

    first: int = 0
    rows: int = 0
    samples: int = 0
    tokens: int = 0
    trained: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Counts what `other` counts; its bad rows are not kept."""
        self.rows += other.rows
        self.samples += other.samples
        self.tokens += other.tokens
        self.trained += other.trained
        self.left_out.update(other.left_out)


class Parts:
    """The parts of the output `path`; to be used in `opened_parts`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.folder = Path(path + FOLDER)
        self.done: dict[int, Tally] = {}
        """What is done, by the first row."""
        self.joined = False

    def has(self, batch: Batch) -> bool:
        return batch.first in self.done and self.done[batch.first].rows == batch.size

    def keep(self, tally: Tally, samples: bytes) -> None:
        """Writes a part. Raises `InputError` where that fails."""
        with _writing(self.folder):
            _write(self._file(tally.first, "part"), samples)
            _write(self._file(tally.first, "json"), json.dumps(vars(tally)).encode())
        self.done[tally.first] = replace(tally, bad=[])

    def join(self, schema: Table | None) -> None:
        """Makes one file of all parts, and removes them. Raises `InputError` where that fails."""
        joined, bad = self.folder / "joined", self.folder / "bad"
        order = sorted(self.done)
        with _writing(self.path):
            with open(joined, "wb") as file:
                if schema is None:
                    for first in order:
                        file.write(self._file(first, "part").read_bytes())
                else:
                    _write_parquet(file, schema, self._groups(order))
                _settle(file)
            _join_bad(bad, (self._tally(self._file(first, "json")) for first in order))
            _place(bad, self.path + BAD)
            os.replace(joined, self.path)
        self.joined = True

    def _groups(self, order: Iterable[int]) -> Iterator[list[Table]]:
        """The tables of each row group."""
        pa = arrow()
        group: list[Table] = []
        samples = tokens = 0
        for first in order:
            done = self.done[first]
            if samples and (samples + done.samples > GROUP_SAMPLES or tokens + done.tokens > GROUP_TOKENS):
                yield group
                group, samples, tokens = [], 0, 0
            if done.samples:
                with pa.ipc.open_stream(self._file(first, "part").read_bytes()) as stream:
                    group.append(stream.read_all())
            samples, tokens = samples + done.samples, tokens + done.tokens
        if samples:
            yield group

    def _file(self, first: int, kind: str) -> Path:
        return self.folder / f"{first:012}.{kind}"

    def read_done(self) -> None:
        """Finds the parts that are there."""
        for name in sorted(os.listdir(self.folder)):
            if _DONE.fullmatch(name):
                tally = self._tally(self.folder / name)
                self.done[tally.first] = tally
                tally.bad.clear()

    @staticmethod
    def _tally(path: Path) -> Tally:
        found = Tally(**json.loads(path.read_bytes()))
        found.left_out = Counter(found.left_out)
        return found


@contextmanager
def opened_parts(path: str, stamp: Mapping[str, Any], *, resume: bool, overwrite: bool) -> Iterator[Parts]:
    """The parts of the output `path`, of which `stamp` says what they are made of, by name.

    Raises `InputError` where something stands in the way: an output, with neither option; parts, with neither option;
    with `resume`, parts that are of something else; another run.
    """
    parts = Parts(path)
    folder, run = parts.folder, parts.folder / RUN
    started = run.exists()
    if folder.exists() and not (folder.is_dir() and all(map(_OURS.fullmatch, os.listdir(folder)))):
        raise InputError(f"{folder}: in the way, and no folder of parts; move it, or give another -o")
    if started and not (resume or overwrite):
        raise InputError(
            f"{folder}: a run that was interrupted; --resume goes on with it, --overwrite begins from the start"
        )
    if os.path.exists(path) and not started and not overwrite:
        raise InputError(f"{path}: is there already; --overwrite writes it anew")
    with _writing(folder):
        folder.mkdir(exist_ok=True)
    ours = False
    try:
        with _locked(folder):
            if started and resume:
                _check_stamp(folder, json.loads(run.read_bytes()), stamp)
                parts.read_done()
            else:
                _begin(folder, stamp)
            ours = True
            yield parts
    finally:
        if ours and (parts.joined or not parts.done):
            _clear(folder)
            shutil.rmtree(folder)


def _begin(folder: Path, stamp: Mapping[str, Any]) -> None:
    _clear(folder)
    with _writing(folder):
        _write(folder / RUN, json.dumps(stamp).encode())


def _clear(folder: Path) -> None:
    """Takes all away; first that which says what the parts are of, so that none counts when this is cut short."""
    with _writing(folder):
        (folder / RUN).unlink(missing_ok=True)
        for file in folder.iterdir():
            if file.name != LOCK:
                file.unlink()


def _check_stamp(folder: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    changed = [
        f"{name} (then {json.dumps(then.get(name))}, now {json.dumps(now.get(name))})"
        for name in {**then, **now}
        if then.get(name) != now.get(name)
    ]
    if changed:
        raise InputError(
            f"{folder}: --resume cannot go on, for this is not what the parts were made of: {'; '.join(changed)}. "
            "Give what was given then, or --overwrite to begin from the start"
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Holds the folder for this run, where the system can; a run that is killed lets go of it."""
    with _writing(folder):
        file = open(folder / LOCK, "wb")  # noqa: SIM115 - it stays open as long as the run
    with file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass
        except BlockingIOError as error:
            raise InputError(f"{folder}: another run is working on it") from error
        yield


# -- files


def is_parquet(path: str) -> bool:
    return path.lower().endswith(PARQUET_SUFFIXES)


def is_known(path: str) -> bool:
    """Whether the output can be written under this name."""
    return path.lower().endswith((*PARQUET_SUFFIXES, *LINES_SUFFIXES))


def _write_parquet(file: BinaryIO, schema: Table, groups: Iterable[list[Table]]) -> None:
    pa = arrow()
    with pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for tables in groups:
            table = pa.concat_tables(tables)
            writer.write_table(table, row_group_size=max(table.num_rows, 1))


def _join_bad(path: Path, tallies: Iterable[Tally]) -> None:
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for tally in tallies:
            file.writelines(tally.bad)
        _settle(file.buffer)


def _place(bad: Path, path: str) -> None:
    """Puts the file of bad rows in its place; without bad rows there is none, not even of a run before."""
    if bad.stat().st_size:
        os.replace(bad, path)
    else:
        Path(path).unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    new = path.with_suffix(path.suffix + ".new")
    with open(new, "wb") as file:
        file.write(data)
        _settle(file)
    os.replace(new, path)


def _settle(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _writing(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from error


def bad_row(number: int, where: str, kind: str, path: str | None, reason: str, row: Any) -> str:
    """A line of the file of bad rows."""
    return json_line({"row": number, "where": where, "kind": kind, "path": path, "reason": reason, "data": row})
