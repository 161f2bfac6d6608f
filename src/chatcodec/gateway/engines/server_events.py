"""Server-sent events out of bytes, however the network cut them."""

from __future__ import annotations

from collections.abc import Iterator

from .engine import EngineAnswerInvalid

EVENT_LIMIT = 16 << 20


class ServerEvents:
    """Fed bytes, gives the data of each event that is whole. Comments and fields other than `data` are skipped.

    Lines end with a line feed, or a carriage return and a line feed: no engine ends them otherwise. A line is decoded
    when it is whole, so a character that is cut in two is whole again.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._data: list[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[str]:
        """The data of the events that end in `chunk`, which are all to be taken: those before one that is wrong too."""
        self._buffer += chunk
        start = 0
        while (end := self._buffer.find(b"\n", self._searched)) >= 0:
            line = bytes(self._buffer[start:end]).removesuffix(b"\r")
            start = self._searched = end + 1
            if line.startswith(b"data:"):
                self._check(len(line))
                self._size += len(line)
                self._data.append(_decoded(line[5:]).removeprefix(" "))
            elif not line and self._data:
                yield "\n".join(self._data)
                self._data = []
                self._size = 0
        del self._buffer[:start]
        self._searched = len(self._buffer)
        self._check(self._searched)

    def _check(self, more: int) -> None:
        if self._size + more > EVENT_LIMIT:
            raise EngineAnswerInvalid(f"the engine's answer has an event of more than {EVENT_LIMIT >> 20} MiB")


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise EngineAnswerInvalid("the engine's answer is not UTF-8") from None
