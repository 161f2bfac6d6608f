"""`Sample`: what a model is trained on, and how turns are joined into as few samples as their prompts allow.

A turn is trained on the ids that the model is given before it and those that it writes. One sample holds several turns
where each one's prompt goes on from the prompt and the completion before, to the character; what stands there is then
not encoded again, as it is not when the turns are sampled one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field


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

    def cut(self, length: int) -> Sample | None:
        """The sample up to the last turn that ends within `length` tokens; None where none does."""
        ends = [end for end in self.ends if end <= length]
        return self.up_to(ends[-1]) if ends else None


@dataclass(frozen=True, slots=True)
class Exchange:
    """A turn to train: its prompt's text, what gives the ids of it from a place on, and the completion."""

    message: int
    prompt: str
    ids_from: Callable[[int], list[int]]
    completion: str
    completion_ids: list[int]


def joined(exchanges: Iterable[Exchange]) -> list[Sample]:
    """The samples of a conversation's turns, which come in order."""
    samples: list[Sample] = []
    text: str | None = None
    for exchange in exchanges:
        if text is None or not exchange.prompt.startswith(text):
            samples.append(Sample())
            text = ""
        sample = samples[-1]
        sample.add(exchange.ids_from(len(text)), trained=False)
        sample.add(exchange.completion_ids, trained=True)
        sample.end_turn(exchange.message)
        text = exchange.prompt + exchange.completion
    return samples
