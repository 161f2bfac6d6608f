"""A text on its way out: reasoning, content or a raw value, without the white space that the template put around it."""

from __future__ import annotations

from collections.abc import Callable

from .format import WHITESPACE


class Passage:
    """Hands on the text that is written to it, as soon as it is certain that the text's end cannot be the template's.

    `strip_left` and `strip_right` are characters that no text of the format starts or ends with. Up to `hold`
    characters of white space are held back, since they may turn out to stand before a marker. `loose`: white space
    with no text behind it is the template's. `before` is the white space that the passage before this one kept.
    """

    __slots__ = ("_before", "_emit", "_held", "_hold", "_left", "_loose", "_right", "begun")

    def __init__(
        self,
        emit: Callable[[str], None],
        strip_left: str = "",
        strip_right: str = "",
        hold: int = 0,
        loose: bool = False,
        before: str = "",
    ) -> None:
        self._emit = emit
        self._left = strip_left
        self._right = strip_right
        self._hold = hold
        self._loose = loose
        self._before = before
        self._held: list[str] = []
        self.begun = False
        """Some text other than white space has come."""

    def write(self, text: str) -> None:
        body = text.rstrip(WHITESPACE)
        if not body:
            self._held.append(text)
            if self.begun or not self._loose:
                self._trim()
            return
        if not self.begun:
            self.begun = True
            before = self._before + "".join(self._held)
            body, text = before + body, before + text
            self._held.clear()
            if self._left:
                text = text[len(body) - len(body.lstrip(self._left)) :]
                body = body.lstrip(self._left)
        elif self._held:
            self._emit("".join(self._held))
            self._held.clear()
        if len(body) < len(text):
            self._held.append(text[len(body) :])
            text = body
        if text:
            self._emit(text)
        if self._held:
            self._trim()

    def _trim(self) -> None:
        """Let go of held white space that no marker's literal can claim."""
        if self._right or (self._left and not self.begun):
            return
        if len(self._held) > 1 or len(self._held[0]) > self._hold:
            held = "".join(self._held)
            free = len(held) - self._hold
            if free > 0:
                self._emit(held[:free])
                held = held[free:]
            self._held[:] = [held] if held else []

    def close(self, lead: str = "") -> str:
        """The text is over; `lead` is the white space of the literal behind it.

        Returns the white space that is not said, unless the text goes on in another passage.
        """
        held = "".join(self._held)
        self._held.clear()
        if not self.begun and self._loose:
            return self._before
        if not self.begun:
            held = held.lstrip(self._left)
        for length in range(len(lead), 0, -1):
            if held.endswith(lead[len(lead) - length :]):
                held = held[: len(held) - length]
                break
        said = held.rstrip(self._right)
        if said:
            self._emit(said)
        return held[len(said) :]

    def forget(self) -> None:
        """Drop what is held back: it was the prompt's."""
        self._held.clear()
