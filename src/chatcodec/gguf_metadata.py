"""The head of a GGUF file: its metadata, read without its tensors.

In: a path, and which keys are wanted. Out: those keys with their values, arrays unread until they are asked
for all they hold, or for a few strings. GGUF versions 2 and 3 are read, in either byte order. What holds:
nothing is allocated by what the file claims, no more than `METADATA_LIMIT` bytes are read of a file of any
size, and whatever is wrong with the file is a `SourceError` that says where.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import BinaryIO, TypeAlias

from chatcodec.errors import SourceError

METADATA_LIMIT = 64 << 20
TEXT_LIMIT = 4 << 20
KEY_LIMIT = 1 << 16
ENTRY_LIMIT = 1 << 16

_CHUNK = 1 << 20
_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True)
class Array:
    """An array of the metadata, left unread where it stands: `pick` reads single strings of it, `texts` and `numbers`
    the whole of it. All raise `SourceError` where it is not an array of that, or a string is no text."""

    header: _Header = field(repr=False)
    key: str
    kind: int
    length: int
    start: int

    def __len__(self) -> int:
        return self.length

    def pick(self, indices: Collection[int]) -> dict[int, str]:
        """The strings at these indices, by index; indices outside the array are left out."""
        header = self._strings()
        wanted = {index for index in indices if 0 <= index < self.length}
        picked: dict[int, str] = {}
        last = -1
        for index in sorted(wanted):
            header.skip_strings(index - last - 1)
            picked[index] = header.text(TEXT_LIMIT)
            last = index
        return picked

    def texts(self, limit: int) -> list[str]:
        """All the strings, if there are no more than `limit`."""
        header = self._strings()
        self._check(limit)
        return header.texts(self.length)

    def numbers(self, limit: int) -> tuple[int | float, ...]:
        """All the numbers, if there are no more than `limit`."""
        header = self._at_start()
        if self.kind not in _SCALARS:
            raise header.error("this is not an array of numbers")
        self._check(limit)
        return struct.unpack_from(f"{header.order}{self.length}{_SCALARS[self.kind]}", header.data, self.start)

    def _at_start(self) -> _Header:
        self.header.at, self.header.key = self.start, self.key
        return self.header

    def _strings(self) -> _Header:
        header = self._at_start()
        if self.kind != _STRING:
            raise header.error("this is not an array of strings")
        return header

    def _check(self, limit: int) -> None:
        if self.length > limit:
            raise self.header.error(f"an array of {self.length} values, more than the {limit} that are read")


Value: TypeAlias = int | float | str | Array


def read_metadata(path: str | os.PathLike[str], wanted: Callable[[str], bool]) -> dict[str, Value]:
    """The metadata of the GGUF file at `path`: every key for which `wanted` says yes, with its value.

    Numbers and booleans come as themselves, strings as text, arrays as an unread `Array`; what is not wanted
    is stepped over. Raises `SourceError` for a file that cannot be read, is no GGUF, is damaged or cut short.
    """
    try:
        with open(path, "rb") as file:
            header = _Header(file, os.fspath(path), os.fstat(file.fileno()).st_size)
            return _entries(header, wanted)
    except OSError as error:
        raise SourceError(f"{os.fspath(path)}: cannot be read: {error.strerror or error}") from error


def _entries(header: _Header, wanted: Callable[[str], bool]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    seen: set[str] = set()
    for _ in range(header.begin()):
        header.key = ""
        key = header.text(KEY_LIMIT)
        header.key = key
        if key in seen:
            raise header.error("this key is given twice")
        seen.add(key)
        kind = int(header.number("I"))
        if wanted(key):
            found[key] = header.value(kind)
        else:
            header.skip(kind)
    return found


class _Header:
    """The bytes at the head of the file, read in chunks as far as asked for, and a position in them."""

    def __init__(self, file: BinaryIO, path: str, size: int) -> None:
        self.file = file
        self.path = path
        self.size = size
        self.data = bytearray()
        self.at = 0
        self.key = ""
        self.order = "<"

    def error(self, problem: str) -> SourceError:
        """The error that says what is wrong, and where: the file, the byte, the key."""
        where = f"byte {self.at}, key {self.key!r}" if self.key else f"byte {self.at}"
        return SourceError(f"{self.path}: not a sound GGUF file ({where}): {problem}")

    def begin(self) -> int:
        """Step over magic, version and counts, and learn the byte order; the number of entries."""
        head = bytes(self.data[: self._fill(min(len(_MAGIC), self.size))])
        if not _MAGIC.startswith(head):
            pointer = "; if it is a Git LFS pointer, run git lfs pull" if head == b"vers" else ""
            raise self.error(f"it begins with {head!r}, not with {_MAGIC!r}{pointer}")
        self.take(len(_MAGIC))
        version = int(self.number("I"))
        if version and version & 0xFFFF == 0:
            self.order = ">"
            version = int.from_bytes(version.to_bytes(4, "little"), "big")
        if version not in (2, 3):
            old = "; convert the model again with a current converter" if version == 1 else ""
            raise self.error(f"it is of version {version}, and versions 2 and 3 can be read{old}")
        self.take(8)
        count = int(self.number("Q"))
        if count > ENTRY_LIMIT:
            raise self.error(f"it claims {count} metadata entries, more than the {ENTRY_LIMIT} that are read")
        return count

    def take(self, count: int) -> int:
        """Step over `count` bytes; where they begin in `data`."""
        start, end = self.at, self.at + count
        if end > len(self.data):
            self._fill(end)
        self.at = end
        return start

    def number(self, code: str) -> int | float:
        """The number or boolean that stands here, by its code in `struct`."""
        layout = struct.Struct(self.order + code)
        value: int | float = layout.unpack_from(self.data, self.take(layout.size))[0]
        return value

    def text(self, limit: int) -> str:
        """The string that stands here, if it has no more than `limit` bytes."""
        length = int(self.number("Q"))
        if length > limit:
            raise self.error(f"a string claims {length} bytes, more than the {limit} that are read")
        start = self.take(length)
        try:
            return self.data[start : self.at].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error(f"a string is not UTF-8 ({error.reason})") from error

    def texts(self, count: int) -> list[str]:
        """The strings that stand here, which have been stepped over before."""
        unpack = struct.Struct(self.order + "Q").unpack_from
        data, at = self.data, self.at
        found: list[str] = []
        try:
            for _ in range(count):
                start = at + 8
                at = start + unpack(data, at)[0]
                found.append(data[start:at].decode())
        except UnicodeDecodeError as error:
            self.at = start
            raise self.error(f"string {len(found)} of it is not UTF-8 ({error.reason})") from error
        return found

    def value(self, kind: int) -> Value:
        """The value of type `kind` that stands here."""
        if kind == _STRING:
            return self.text(TEXT_LIMIT)
        if kind == _ARRAY:
            return self._array()
        return self.number(self._code(kind))

    def skip(self, kind: int) -> None:
        """Step over a value of type `kind`."""
        if kind == _STRING:
            self.take(int(self.number("Q")))
        else:
            self.value(kind)

    def skip_strings(self, count: int) -> None:
        """Step over `count` strings, of which a vocabulary has hundreds of thousands."""
        unpack = struct.Struct(self.order + "Q").unpack_from
        data, at, ready = self.data, self.at, len(self.data)
        for _ in range(count):
            end = at + 8
            if end > ready:
                self._fill(end)
                ready = len(data)
            at = end + unpack(data, at)[0]
        self.at = at
        self.take(0)

    def _array(self) -> Array:
        kind, length = int(self.number("I")), int(self.number("Q"))
        start = self.at
        if kind == _ARRAY:
            raise self.error("an array of arrays, which GGUF readers do not take")
        if kind == _STRING:
            self._claim(start + 8 * length)
            self.skip_strings(length)
        else:
            self.take(struct.calcsize(self.order + self._code(kind)) * length)
        return Array(self, self.key, kind, length, start)

    def _code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise self.error(f"there is no value type {kind}")
        return _SCALARS[kind]

    def _claim(self, end: int) -> None:
        if end > self.size:
            ends = f"the file ends at byte {self.size}, and its metadata claims to go on to byte {end}"
            raise self.error(f"{ends}; if it is cut short, download it again")
        if end > METADATA_LIMIT:
            raise self.error(f"the metadata goes on to byte {end}, past the {METADATA_LIMIT} that are read")

    def _fill(self, end: int) -> int:
        self._claim(end)
        self.data += self.file.read(max(end - len(self.data), _CHUNK))
        if len(self.data) < end:
            self.size = len(self.data)
            self._claim(end)
        return end
