"""What goes wrong, by whose fault: the template's (`TemplateError`), the conversation's (`UnsupportedInput`),
the file's (`SourceError`). Where a template's turn cannot be read off it: `FormatNotDerived`."""

from __future__ import annotations

from typing import Any


class ChatCodecError(Exception):
    """Every error that chatcodec raises on purpose. It can be pickled, as process pools do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.args, self.__dict__)


def _rebuilt(kind: type[ChatCodecError], args: tuple[Any, ...], values: dict[str, Any]) -> ChatCodecError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(values)
    return error


class TemplateError(ChatCodecError):
    """The template failed: it does not parse, it broke on its input, it raised, or it overran its budget.

    `template` is the template's name, `line` its line (counted from 1, None where no line is known), `raised` whether
    the template itself refused, by `raise_exception`.
    """

    raised = False

    def __init__(self, message: str, *, template: str = "chat_template", line: int | None = None) -> None:
        self.message = message
        self.template = template
        self.line = line
        super().__init__(f"{template}:{line}: {message}" if line else f"{template}: {message}")


class BudgetExceeded(TemplateError):
    """Rendering took more work or memory than its `Budget` allows."""


class TooDeep(BudgetExceeded):
    """Macros called one another without end, as some do on schemas that their author did not think of."""


class UnsupportedInput(ChatCodecError):
    """The template cannot carry this input.

    `path` names the part of the input (`messages[2].content[0]`), `reason` says why.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class SourceError(ChatCodecError):
    """No template could be read from this source; the message says what was looked for and found."""


class FormatNotDerived(ChatCodecError):
    """How a turn is written could not be read off the template; it still encodes.

    `reason` says what is missing, `seen` what the template wrote for the probe conversations.
    """

    def __init__(self, reason: str, *, template: str = "chat_template", seen: tuple[str, ...] = ()) -> None:
        self.reason = reason
        self.template = template
        self.seen = seen
        lines = "".join(f"\n  {text}" for text in seen)
        super().__init__(f"{template}: {reason}" + (f"; seen:{lines}" if seen else ""))
