"""`Sample`: what a model is trained on, and how turns are joined into as few samples as their prompts allow.

A turn is trained on the ids that the model is given before it and those that it writes. One sample holds several turns
where each one's prompt goes on from the prompt and the completion before, to the character; what stands there is then
not encoded again, as it is not when the turns are sampled one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(slots=True)
class Sample:
    """Token ids, and for each whether the loss counts it.

    `turns` are the places of the messages that are trained, `ends` how many tokens there are up to the end of each.
    `logprobs` are those that were handed in, None for a token without one.
    """

    input_ids: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    logprobs: list[float | None] | None = None

    def __len__(self) -> int:
        return len(self.input_ids)

    def add(self, ids: Iterable[int], *, trained: bool, logprobs: Sequence[float | None] | None = None) -> None:
        """`logprobs` are those of `ids`, one for each."""
        before = len(self.input_ids)
        self.input_ids += ids
        added = len(self.input_ids) - before
        self.loss_mask += [trained] * added
        if self.logprobs is None and logprobs is not None:
            self.logprobs = [None] * before
        if self.logprobs is not None:
            self.logprobs += [None] * added if logprobs is None else logprobs

    def end_turn(self, message: int) -> None:
        self.turns.append(message)
        self.ends.append(len(self.input_ids))

    def up_to(self, length: int) -> Sample:
        """A copy of its first `length` tokens, with the turns that end within them."""
        kept = sum(end <= length for end in self.ends)
        logprobs = None if self.logprobs is None else self.logprobs[:length]
        return Sample(self.input_ids[:length], self.loss_mask[:length], self.turns[:kept], self.ends[:kept], logprobs)

    def only(self, turns: Collection[int]) -> Sample:
        """The same with the loss on these turns alone; it is changed in place."""
        start = 0
        for turn, end in zip(self.turns, self.ends, strict=True):
            if turn not in turns:
                self.loss_mask[start:end] = [False] * (end - start)
            start = end
        kept = [(turn, end) for turn, end in zip(self.turns, self.ends, strict=True) if turn in turns]
        self.turns, self.ends = [turn for turn, _ in kept], [end for _, end in kept]
        return self

    def cut(self, length: int) -> Sample | None:
        """The sample up to the last turn that ends within `length` tokens; None where none does."""
        ends = [end for end in self.ends if end <= length]
        return self.up_to(ends[-1]) if ends else None


@dataclass(frozen=True, slots=True)
class Exchange:
    """A turn to train: its prompt's text, what gives the ids of a part of that, and the completion."""

    message: int
    prompt: str
    ids_between: Callable[[int, int], list[int]]
    completion: str
    completion_ids: list[int]


def joined(exchanges: Iterable[Exchange]) -> list[Sample]:
    """The samples of a conversation's turns, which come in order."""
    samples: list[Sample] = []
    parts: list[_Part] = []
    text, last = "", None
    for exchange in exchanges:
        if last is not None and not exchange.prompt.startswith(text):
            samples.append(_sample(parts, last))
            parts, text = [], ""
        parts.append(_Part(exchange.message, len(text), len(exchange.prompt), exchange.completion_ids))
        text, last = exchange.prompt + exchange.completion, exchange
    return samples if last is None else [*samples, _sample(parts, last)]


class _Part(NamedTuple):
    """Of a sample: what is given, `start` to `end` in the last turn's prompt, and what is written to that."""

    message: int
    start: int
    end: int
    completion: list[int]


def _sample(parts: Iterable[_Part], last: Exchange) -> Sample:
    """The last turn's prompt holds all that is given, so only that one is encoded."""
    sample = Sample()
    for part in parts:
        sample.add(last.ids_between(part.start, part.end), trained=False)
        sample.add(part.completion, trained=True)
        sample.end_turn(part.message)
    return sample
