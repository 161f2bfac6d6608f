r"""How byte-level vocabularies cut a text into words, by the names that GGUF files give these ways.

A GGUF file has the name only (`tokenizer.ggml.pre`); what it stands for is llama.cpp's. Where llama.cpp writes a
pattern of a model's tokenizer.json in other words, for a library that lacks `(?i:)` or unions of classes, the pattern
here is the tokenizer.json's own. So is what llama.cpp leaves out: it never brings a text into NFC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Split:
    """The patterns cut one after another; words are what they match, and what stands between.

    `whole` says that a word that is a token is that token, whatever the merges would make of it; `composed` that a
    text is brought into NFC before.
    """

    patterns: tuple[str, ...]
    whole: bool = False
    composed: bool = False


def _any(*patterns: str) -> str:
    return "|".join(patterns)


_APOSTROPHE = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_DIGIT = r"\p{N}"
_DIGITS = r"\p{N}{1,3}"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LINES = r"\s*[\r\n]+"
_SPACES = r"\s+(?!\S)|\s+"

_GPT2 = _any(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+", _SPACES)
_CL100K = _any(_APOSTROPHE, _WORD, _DIGITS, _SYMBOLS, _LINES, _SPACES)
_QWEN2 = _any(_APOSTROPHE, _WORD, _DIGIT, _SYMBOLS, _LINES, _SPACES)


def _cased(suffix: str, digits: str, symbols: str, *, but: str = "") -> str:
    """o200k's pattern and its kin: a capital letter begins a word. `but` is taken from the letters."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    words = (f"{before}{upper}*{lower}+{suffix}", f"{before}{upper}+{lower}*{suffix}")
    return _any(*words, digits, symbols, _LINES, _SPACES)


_O200K_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_O200K = _cased(f"{_APOSTROPHE}?", _DIGITS, _O200K_SYMBOLS)
_TEKKEN = _cased("", _DIGIT, _O200K_SYMBOLS)
_KIMI_K2 = _any(r"[\p{Han}]+", _cased(f"{_APOSTROPHE}?", _DIGITS, _SYMBOLS, but=r"&&[^\p{Han}]"))

_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_ASCII_SYMBOL_AND_WORD = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
_MARKED_WORD = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK_V3 = _any(_ASCII_SYMBOL_AND_WORD, _MARKED_WORD, r" ?[\p{P}\p{S}]+[\r\n]*", _LINES, _SPACES)
_SPARK = _any(_ASCII_SYMBOL_AND_WORD, _MARKED_WORD, r" ?[\p{P}\p{S}]+", r"[\r\n]", _SPACES)

_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-"
    "\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec"
    "\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-"
    "\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17"
    "\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-"
    "\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED_LETTERS}]+",
    r"\s?[!-/:-~" + "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}",
)
_DEEPSEEK_CODER = (
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    r"\p{N}",
)
_YOUTU = (
    "[\uac00-\ud7a3\u3131-\u318e]+"
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    f"|[\u3105-\u312f]+|{_CJK}"
)
_BLOOM = r" ?[^(\s|.,!?" + "\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
_THREES_FROM_THE_END = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_HALVED_SPACES = "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
_BAILING_SYMBOLS = r" ?[^\s\p{L}\p{N}]++[\r\n]*"
_SENTENCES = r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"

_AS_GPT2 = Split((_GPT2,))
_AS_STARCODER = Split((_DIGIT, _GPT2))
_AS_LLAMA3 = Split((_CL100K,), whole=True)
_AS_QWEN2 = Split((_QWEN2,))
_AS_GPT4O = Split((_O200K,))
_AS_DEEPSEEK_V3 = Split((_DIGITS, _CJK, _DEEPSEEK_V3))
_AS_BLOOM = Split((_BLOOM,))
_AS_BAILING = Split(
    (_any(r"'(?i:[sdmt]|ll|ve|re)", r"[^\r\n\p{L}\p{N}]?+\p{L}+", _DIGIT, _BAILING_SYMBOLS, r"\s*[\r\n]", _SPACES),)
)
_AS_TINY_AYA = Split((r"\d{1,3}(?=(?:\d{3})*\b)", _O200K))

SPLITS: Mapping[str, Split] = {
    "default": Split((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _AS_GPT2,
    "phi-2": _AS_GPT2,
    "jina-es": _AS_GPT2,
    "jina-de": _AS_GPT2,
    "jina-v1-en": _AS_GPT2,
    "jina-v2-es": _AS_GPT2,
    "jina-v2-de": _AS_GPT2,
    "jina-v2-code": _AS_GPT2,
    "roberta-bpe": _AS_GPT2,
    "modern-bert": _AS_GPT2,
    "gigachat": _AS_GPT2,
    "a.x-4.0": _AS_GPT2,
    "mellum": _AS_GPT2,
    "exaone4": _AS_GPT2,
    "jais": _AS_GPT2,
    "trillion": _AS_GPT2,
    "granite-docling": _AS_GPT2,
    "mpt": replace(_AS_GPT2, composed=True),
    "olmo": replace(_AS_GPT2, composed=True),
    "starcoder": _AS_STARCODER,
    "refact": _AS_STARCODER,
    "smollm": _AS_STARCODER,
    "codeshell": _AS_STARCODER,
    "exaone": _AS_STARCODER,
    "minerva-7b": _AS_STARCODER,
    "mellum2": _AS_STARCODER,
    "command-r": replace(_AS_STARCODER, composed=True),
    "llama3": _AS_LLAMA3,
    "llama-v3": _AS_LLAMA3,
    "llama-bpe": _AS_LLAMA3,
    "falcon3": _AS_LLAMA3,
    "falcon-h1": _AS_LLAMA3,
    "pixtral": _AS_LLAMA3,
    "midm-2.0": _AS_LLAMA3,
    "lfm2": _AS_LLAMA3,
    "jina-v5-nano": _AS_LLAMA3,
    "glm4": _AS_LLAMA3,
    "glm5": _AS_LLAMA3,
    "chatglm-bpe": Split((_CL100K,)),
    "dbrx": Split((_CL100K,)),
    "smaug-bpe": Split((_CL100K,)),
    "jais-2": Split((_any(_APOSTROPHE, _WORD, _DIGITS, _SYMBOLS, _LINES, _HALVED_SPACES, r"\s{1}"),)),
    "minicpm5": Split((_DIGITS, _any(_APOSTROPHE, _WORD, r"\p{N}+", _SYMBOLS, _LINES, _SPACES)), whole=True),
    "qwen2": replace(_AS_QWEN2, composed=True),
    "deepseek-r1-qwen": replace(_AS_QWEN2, composed=True),
    "kormo": _AS_QWEN2,
    "f2llmv2": _AS_QWEN2,
    "megrez": _AS_QWEN2,
    "stablelm2": _AS_QWEN2,
    "hunyuan": _AS_QWEN2,
    "solar-open": _AS_QWEN2,
    "grok-2": _AS_QWEN2,
    "qwen35": Split(
        (
            _any(
                _APOSTROPHE,
                r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
                _DIGIT,
                r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
                _LINES,
                _SPACES,
            ),
        ),
        composed=True,
    ),
    "ufakzeka": Split((_any(_WORD, _DIGIT, _SYMBOLS, _LINES, _SPACES),)),
    "laguna": Split((r"[^\n]+|[\n]+", _QWEN2)),
    "seed-coder": Split((_any(_APOSTROPHE, _WORD, r"\p{N}{1}", r" ?[^\s\p{L}\p{N}\r\n]+", _LINES, _SPACES),)),
    "exaone-moe": Split((_any(_APOSTROPHE, _SENTENCES, _DIGIT, r" ?[^\s\p{L}\p{N}]+[\r\n/]?", r"\s*[\r\n]", _SPACES),)),
    "bailingmoe": _AS_BAILING,
    "bailingmoe2": _AS_BAILING,
    "llada-moe": _AS_BAILING,
    "gpt-4o": _AS_GPT4O,
    "llama4": _AS_GPT4O,
    "kanana2": _AS_GPT4O,
    "talkie": _AS_GPT4O,
    "minimax-m2": _AS_GPT4O,
    "granite-embed-multi-97m": replace(_AS_GPT4O, whole=True),
    "tiny_aya": _AS_TINY_AYA,
    "cohere2moe": _AS_TINY_AYA,
    "tekken": Split((_TEKKEN,), whole=True),
    "kimi-k2": Split((_KIMI_K2,)),
    "youtu": Split((_YOUTU, _cased(f"{_APOSTROPHE}?", _DIGIT, _O200K_SYMBOLS)), whole=True),
    "deepseek-llm": Split(_DEEPSEEK_LLM),
    "deepseek-coder": Split(_DEEPSEEK_CODER),
    "deepseek-v3": _AS_DEEPSEEK_V3,
    "hunyuan-dense": _AS_DEEPSEEK_V3,
    "joyai-llm": _AS_DEEPSEEK_V3,
    "hy_v4": _AS_DEEPSEEK_V3,
    "spark2_5": Split((_DIGITS, _CJK, _SPARK, _DIGIT)),
    "afmoe": Split((_THREES_FROM_THE_END, _ASIAN, _DEEPSEEK_V3)),
    "falcon": Split((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "poro-chat": _AS_BLOOM,
    "bloom": _AS_BLOOM,
    "gpt3-finnish": _AS_BLOOM,
    "viking": Split((_BLOOM, _DIGIT)),
    "superbpe": Split((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "chameleon": Split(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            _DIGIT,
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        )
    ),
}
"""The ways, by name. A word that llama.cpp knows and that is not here says something else than how to cut."""
