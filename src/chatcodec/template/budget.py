"""How much work and memory one render may take.

A template is untrusted code, and a sandbox bounds what it reaches, not how long it runs. So every loop iteration
and macro call is paid for in steps, and every text that is made in characters, before or as it is made. Both are
counted, so that a render that passes once passes always; the seconds of processor time, looked at now and then, are a
net under the counting.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from time import thread_time
from typing import Any

from ..errors import BudgetExceeded, TooDeep
from .objects import Namespace

LONG = 1_000
"""Walking through a text shorter than this costs nothing extra."""
LARGEST_NUMBER = 100_000
"""The largest width, precision, count or indent that a template may ask of a formatting operation."""
LARGEST_INTEGER_BITS = 1 << 16
SLICE = 20_000
"""The steps between two looks at the clock."""
ELEMENT = 64
"""What one element of a new list counts for, in characters."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one render.

    `steps`: about one a syntax node evaluated. `chars`: characters of all texts made while rendering, together.
    `seconds`: processor time of the rendering thread. `depth`: macro calls inside one another. `tokens`: what the
    template's source may consist of. Conversations of any length have to render, so a render that is given much may
    use more: `steps_per_input` and `seconds_per_input` for each value in its variables, and `chars_per_input` for each
    character in them (a value counts as eight).
    """

    steps: int = 8_000_000
    chars: int = 24_000_000
    seconds: float = 0.8
    depth: int = 200
    tokens: int = 40_000
    steps_per_input: int = 10_000
    chars_per_input: int = 64
    seconds_per_input: float = 0.0005


class Meter:
    """What is left of a `Budget` during one render. `variables` are measured only when the base is used up."""

    __slots__ = (
        "_extended",
        "_granted",
        "_left",
        "_until",
        "_variables",
        "budget",
        "chars",
        "depth",
        "shared",
        "steps",
    )

    def __init__(self, budget: Budget, variables: Mapping[str, Any]) -> None:
        self.budget = budget
        self.steps = min(SLICE, budget.steps)
        """What is left of the slice under way; below zero, `overrun` decides."""
        self.chars = budget.chars
        self.depth = budget.depth
        self.shared = False
        """Whether the template has made a container that may hold another one twice: then sizes deceive."""
        self._granted = budget.steps
        self._left = budget.steps - self.steps
        self._until = thread_time() + budget.seconds
        self._variables = variables
        self._extended = False

    @property
    def used(self) -> int:
        """The steps taken so far."""
        return self._granted - self._left - self.steps

    def step(self, count: int) -> None:
        self.steps -= count
        if self.steps < 0:
            self.overrun()

    def text(self, length: int) -> None:
        """Pay for a text of `length` characters; call it before making a text that may be large."""
        self.chars -= length
        if self.chars < 0:
            self.overrun()

    def scan(self, text: Any, times: int = 1) -> None:
        """Pay for `times` walks through a text."""
        if len(text) > LONG:
            self.step(len(text) * times >> 5)

    def elements(self, count: int) -> None:
        self.text(count * ELEMENT)

    def overrun(self) -> None:
        """Take the next slice of steps, or tell which limit is broken."""
        if self.steps < 0:
            self._left -= SLICE - self.steps
            self.steps = SLICE
            self.on_time()
        if self._left < 0 or self.chars < 0:
            self._extend()
        if self._left < 0:
            raise BudgetExceeded(f"rendering takes more than the budget of {self.budget.steps:,} steps")
        if self.chars < 0:
            raise BudgetExceeded(f"rendering makes more than the budget of {self.budget.chars:,} characters")
        if self.depth < 0:
            raise TooDeep(f"more than {self.budget.depth} macro calls inside one another")

    def on_time(self) -> None:
        if thread_time() > self._until:
            self._extend()
            if thread_time() > self._until:
                raise BudgetExceeded(f"rendering takes more than the budget of {self.budget.seconds} seconds")

    def _extend(self) -> None:
        if self._extended:
            return
        self._extended = True
        values, characters = measure(self._variables)
        more = self.budget.steps_per_input * values
        self._granted += more
        self._left += more
        self.chars += self.budget.chars_per_input * (characters + 8 * values)
        self._until += self.budget.seconds_per_input * values

    def number(self, value: object) -> None:
        """Refuse a width, count or precision that no real template asks for."""
        if isinstance(value, int) and value > LARGEST_NUMBER:
            raise BudgetExceeded(f"the number {value if value < 10**18 else 'given'} is too large here")

    def weigh(self, value: object) -> int:
        """Pay for walking `value` whole, and tell its size: one a value, one a character.

        Lists that share parts are much larger than they look.
        """
        if isinstance(value, str):
            self.text(len(value))
            return len(value) + 1
        total = 1
        stack: list[tuple[Iterator[Any], Namespace | None]] = [(iter((value,)), None)]
        inside: list[Namespace] = []
        while stack:
            nodes, namespace = stack[-1]
            for node in nodes:
                if isinstance(node, str):
                    size = len(node)
                    self.text(size)
                elif isinstance(node, dict | Mapping):
                    size = len(node)
                    stack.append((chain(node.keys(), node.values()), None))
                elif isinstance(node, list | tuple | set | frozenset | KeysView | ValuesView | ItemsView):
                    size = len(node)
                    stack.append((iter(node), None))
                elif isinstance(node, Namespace) and not any(node is other for other in inside):
                    size = 1
                    inside.append(node)
                    stack.append((iter((node._attrs,)), node))
                else:
                    continue
                total += size + 1
                self.step(size + 1)
                break
            else:
                stack.pop()
                if namespace is not None:
                    inside.pop()
        return total


current_meter: ContextVar[Meter] = ContextVar("current_meter")
"""The meter of the render under way, for the filters that jinja2 itself calls (`map('upper')`)."""


def measure(variables: Mapping[str, Any]) -> tuple[int, int]:
    """How many values `variables` hold, and how many characters."""
    values = characters = 0
    stack: list[Any] = [variables]
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        values += 1
        if isinstance(node, str):
            characters += len(node)
        elif id(node) in seen:
            continue
        elif isinstance(node, Mapping):
            seen.add(id(node))
            stack.extend(node.keys())
            stack.extend(node.values())
        elif isinstance(node, list | tuple):
            seen.add(id(node))
            stack.extend(node)
    return values, characters
