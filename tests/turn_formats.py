"""Turn formats written by hand, from the formats' documentation: what derivation must find, and what decoders read."""

from __future__ import annotations

from chatcodec.turn.format import (
    WHITESPACE,
    Arguments,
    BareArguments,
    Call,
    CallId,
    Calls,
    Channels,
    JsonArguments,
    KeywordArguments,
    Literal,
    Name,
    Piece,
    Section,
    TaggedArguments,
    TurnFormat,
)

JSON = Arguments(JsonArguments())


def json_call(before: str, after: str, *, arguments: str = "arguments") -> Call:
    """`{"name": …, "arguments": …}` between two texts."""
    pieces: tuple[Piece, ...] = (
        Literal(before + '{"name": "'),
        Name(),
        Literal(f'", "{arguments}": '),
        JSON,
        Literal("}" + after),
    )
    return Call(pieces, ("name",), (arguments,))


THINK_LINES = Section("<think>\n", "\n</think>\n")

STEP3_VL = TurnFormat(
    header="<|im_start|>assistant\n",
    prompt="<|im_start|>assistant\n<think>\n",
    ends=("<|im_end|>\n",),
    reasoning=THINK_LINES,
    calls=Calls(
        json_call("<tool_call>\n", "\n</tool_call>"),
        open="<tool_calls>\n",
        separator="\n",
        close="\n</tool_calls>",
        lead="\n",
        lead_alone="\n",
    ),
    next_turns=("<|im_start|>",),
)

IQUEST_CODER = TurnFormat(
    header="<|im_start|>assistant\n",
    prompt="<|im_start|>assistant\n",
    ends=("<|im_end|>\n",),
    calls=Calls(
        Call(
            (
                Literal("<tool_call>\n<function="),
                Name(),
                Literal(">\n"),
                Arguments(TaggedArguments("<parameter=", ">\n", "\n</parameter>", "\n")),
                Literal("\n</function>\n</tool_call>"),
            ),
            no_arguments=(Literal("<tool_call>\n<function="), Name(), Literal(">\n</function>\n</tool_call>")),
        ),
        separator="\n",
        lead="\n",
    ),
    next_turns=("<|im_start|>",),
)

STEP_AUDIO_R1 = TurnFormat(
    header="<|BOT|>assistant\n",
    prompt="<|BOT|>assistant\n<think>\n",
    ends=("<|EOT|>",),
    reasoning=THINK_LINES,
    calls=Calls(Call((Literal("<|CALL_START|>function\n"), Name(), Literal("\n"), JSON, Literal("<|CALL_END|>")))),
    next_turns=("<|BOT|>",),
)

GLM_ARGUMENTS = TaggedArguments("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", "\n")

INTELLECT_3 = TurnFormat(
    header="<|assistant|>",
    prompt="<|assistant|>",
    ends=(),
    reasoning=Section("\n<think>", "</think>\n", WHITESPACE, WHITESPACE),
    no_reasoning="\n<think></think>\n",
    content=Section("", "", WHITESPACE, WHITESPACE),
    calls=Calls(
        Call(
            (
                Literal("<tool_call>"),
                Name(),
                Literal("\n"),
                Arguments(GLM_ARGUMENTS),
                Literal("\n</tool_call>"),
            ),
            no_arguments=(Literal("<tool_call>"), Name(), Literal("\n</tool_call>")),
        ),
        separator="\n",
        lead="\n",
    ),
    next_turns=("<|user|>", "<|observation|>", "<|system|>", "<|assistant|>"),
)

TELECHAT3 = TurnFormat(
    header="<_bot>",
    prompt="<_bot><think>\n",
    ends=("<_end>\n",),
    reasoning=THINK_LINES,
    content=Section("", "", "\n", ""),
    calls=Calls(json_call("<tool_call>\n", "\n</tool_call>"), separator="\n"),
    next_turns=("<_user>", "<_system>", "<_bot>"),
)

HERMES = TurnFormat(
    header="<|im_start|>assistant\n",
    prompt="<|im_start|>assistant\n",
    ends=("<|im_end|>\n",),
    reasoning=Section("<think>\n", "\n</think>\n\n", "\n", "\n"),
    no_reasoning="<think>\n\n</think>\n\n",
    content=Section("", "", "\n", ""),
    calls=Calls(json_call("<tool_call>\n", "\n</tool_call>"), separator="\n", lead="\n"),
    next_turns=("<|im_start|>",),
)

MISTRAL_LIST = TurnFormat(
    header="[/INST]",
    prompt="[/INST]",
    ends=("</s>",),
    calls=Calls(
        Call(
            (
                Literal('{"name": "'),
                Name(),
                Literal('", "arguments": '),
                JSON,
                Literal(', "id": "'),
                CallId(),
                Literal('"}'),
            ),
            ("name",),
            ("arguments",),
            ("id",),
        ),
        open="[TOOL_CALLS] [",
        separator=", ",
        close="]",
    ),
)

MISTRAL_ARGS = TurnFormat(
    header="[/INST]",
    prompt="[/INST]",
    ends=("</s>",),
    reasoning=Section("[THINK]", "[/THINK]"),
    calls=Calls(Call((Literal("[TOOL_CALLS]"), Name(), Literal("[ARGS]"), JSON))),
)

KIMI = TurnFormat(
    header="<|im_assistant|>assistant<|im_middle|>",
    prompt="<|im_assistant|>assistant<|im_middle|>",
    ends=("<|im_end|>",),
    calls=Calls(
        Call(
            (
                Literal("<|tool_call_begin|>"),
                CallId(names=True),
                Literal("<|tool_call_argument_begin|>"),
                JSON,
                Literal("<|tool_call_end|>"),
            )
        ),
        open="<|tool_calls_section_begin|>",
        close="<|tool_calls_section_end|>",
    ),
    next_turns=("<|im_system|>", "<|im_user|>", "<|im_assistant|>"),
)

DEEPSEEK_FENCED = TurnFormat(
    header="<｜Assistant｜>",
    prompt="<｜Assistant｜>",
    ends=("<｜end▁of▁sentence｜>",),
    calls=Calls(
        Call(
            (
                Literal("<｜tool▁call▁begin｜>function<｜tool▁sep｜>"),
                Name(),
                Literal("\n```json\n"),
                JSON,
                Literal("\n```<｜tool▁call▁end｜>"),
            )
        ),
        open="<｜tool▁calls▁begin｜>",
        separator="\n",
        close="<｜tool▁calls▁end｜>",
    ),
)

DSML_VALUES = TaggedArguments(
    '<｜DSML｜parameter name="',
    '" string="true">',
    "</｜DSML｜parameter>",
    "\n",
    kinds=(
        ("string", '" string="true">'),
        *((kind, '" string="false">') for kind in ("integer", "number", "boolean", "null", "array", "object")),
    ),
)

DSML = TurnFormat(
    header="<｜Assistant｜>",
    prompt="<｜Assistant｜></think>",
    ends=("<｜end▁of▁sentence｜>",),
    reasoning=Section("<think>", "</think>"),
    no_reasoning="</think>",
    calls=Calls(
        Call(
            (
                Literal('<｜DSML｜invoke name="'),
                Name(),
                Literal('">\n'),
                Arguments(DSML_VALUES),
                Literal("\n</｜DSML｜invoke>"),
            ),
            no_arguments=(Literal('<｜DSML｜invoke name="'), Name(), Literal('">\n\n</｜DSML｜invoke>')),
        ),
        open="<｜DSML｜tool_calls>\n",
        separator="\n",
        close="\n</｜DSML｜tool_calls>",
        lead="\n\n",
        lead_alone="\n\n",
    ),
    next_turns=("<｜User｜>",),
)

PYTHONIC = TurnFormat(
    header="<|im_start|>assistant\n",
    prompt="<|im_start|>assistant\n",
    ends=("<|im_end|>\n",),
    reasoning=Section("<think>", "</think>"),
    calls=Calls(
        Call((Name(), Literal("("), Arguments(KeywordArguments(strings="python", others="python")), Literal(")"))),
        open="<|tool_call_start|>[",
        separator=", ",
        close="]<|tool_call_end|>",
    ),
    next_turns=("<|im_start|>",),
)

BARE_PYTHONIC = TurnFormat(
    header="<|header_start|>assistant<|header_end|>\n\n",
    prompt="<|header_start|>assistant<|header_end|>\n\n",
    ends=("<|eot|>",),
    calls=Calls(
        Call((Name(), Literal("("), Arguments(KeywordArguments(strings="json", others="python")), Literal(")"))),
        open="[",
        separator=", ",
        close="]",
    ),
    next_turns=("<|header_start|>",),
)

BARE_JSON = TurnFormat(
    header="<|start_header_id|>assistant<|end_header_id|>\n\n",
    prompt="<|start_header_id|>assistant<|end_header_id|>\n\n",
    ends=("<|eot_id|>",),
    content=Section("", "", WHITESPACE, WHITESPACE),
    calls=Calls(json_call("", "", arguments="parameters"), several=False),
    next_turns=("<|start_header_id|>",),
)

GEMMA = TurnFormat(
    header="<|turn>model\n",
    prompt="<|turn>model\n",
    ends=("<turn|>\n",),
    reasoning=Section("<|channel>thought\n", "\n<channel|>"),
    content=Section("", "", WHITESPACE, WHITESPACE),
    calls=Calls(
        Call(
            (
                Literal("<|tool_call>call:"),
                Name(),
                Literal("{"),
                Arguments(BareArguments('<|"|>')),
                Literal("}<tool_call|>"),
            )
        )
    ),
    order=("reasoning", "calls", "content"),
    next_turns=("<|turn>", "<|tool_response>"),
)

GLM_COMPACT = TurnFormat(
    header="<|assistant|>",
    prompt="<|assistant|><think>",
    ends=(),
    reasoning=Section("<think>", "</think>", WHITESPACE, WHITESPACE),
    no_reasoning="</think>",
    content=Section("", "", WHITESPACE, WHITESPACE),
    calls=Calls(
        Call(
            (
                Literal("<tool_call>"),
                Name(),
                Arguments(TaggedArguments("<arg_key>", "</arg_key><arg_value>", "</arg_value>")),
                Literal("</tool_call>"),
            )
        )
    ),
    next_turns=("<|user|>", "<|observation|>", "<|system|>", "<|assistant|>"),
)

HARMONY = TurnFormat(
    header="<|start|>assistant",
    prompt="<|start|>assistant",
    ends=("<|return|>", "<|call|>"),
    calls=Calls(
        Call((Literal(" to=functions."), Name(), Literal("<|channel|>commentary json<|message|>"), JSON)), several=False
    ),
    channels=Channels(
        start="<|start|>",
        channel="<|channel|>",
        message="<|message|>",
        end="<|end|>",
        reasoning="analysis",
        content="final",
        calls="commentary",
        recipient=" to=functions.",
        call_type=" json",
        call_end="<|call|>",
    ),
    next_turns=("<|start|>",),
)

FIVE = {
    "step3-vl": STEP3_VL,
    "iquest-coder": IQUEST_CODER,
    "step-audio-r1": STEP_AUDIO_R1,
    "intellect-3": INTELLECT_3,
    "telechat3": TELECHAT3,
}

FORMATS = {
    **FIVE,
    "hermes": HERMES,
    "mistral-list": MISTRAL_LIST,
    "mistral-args": MISTRAL_ARGS,
    "kimi": KIMI,
    "deepseek-fenced": DEEPSEEK_FENCED,
    "dsml": DSML,
    "pythonic": PYTHONIC,
    "bare-pythonic": BARE_PYTHONIC,
    "bare-json": BARE_JSON,
    "gemma": GEMMA,
    "glm-compact": GLM_COMPACT,
    "harmony": HARMONY,
}
