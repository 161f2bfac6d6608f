"""Raw arguments are read as their schemas declare: tables of what is read, and laws over any schema and any text."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from chatcodec.turn.relaxed import MAX_DEPTH, relaxed_json
from chatcodec.turn.schemas import PLAIN, Reading, Schemas, reading

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
BOOLEAN = {"type": "boolean"}
NULL = {"type": "null"}
ARRAY = {"type": "array"}
OBJECT = {"type": "object"}
MAYBE = {"type": ["string", "null"]}
MIXED = {"enum": ["auto", "5", "none", 1, None, True]}
LONG = "123456789012345678901234567890"


def text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def depth(value: Any) -> int:
    found, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        found += 1
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    return found


# -- one argument

READ: list[tuple[Any, str, str]] = [
    # A declared string is the text.
    *(
        (STRING, raw, text(raw))
        for raw in ("5", "null", "True", "[1]", '{"a": 1}', '"a"', "", " a\n", "\ud800", "\x00")
    ),
    # Numbers are exact.
    *((NUMBER, raw, raw) for raw in ("5", "-0", "5.0", "1.10", "1e20", "1E+400", "0.1000000000000000055", LONG)),
    *((NUMBER, f"\n {raw}\t", raw) for raw in ("5", "-1.5e-3")),
    *((NUMBER, raw, "5") for raw in ("+5", "005", "0_5", '"5"', "'5'", '" 5 "')),
    *((NUMBER, raw, read) for raw, read in ((".5", "0.5"), ("-5.", "-5.0"), ("1_000.5_0e1_0", "1000.50e10"))),
    *((NUMBER, raw, text(raw)) for raw in ("abc", "", " ", "5 km", "1,000", "NaN", "-Infinity", "0x1F", "--5", "1__0")),
    *((NUMBER, raw, text(raw)) for raw in ("٣", "５", "1e", ".", "_1", '"abc"', '"5', "1j")),
    (INTEGER, LONG, LONG),
    *((INTEGER, raw, "5") for raw in ("5", "5.0", "+5", "0005", "5.", "5e0", "0.5e1", "50e-1", '"5.0"')),
    *((INTEGER, raw, "0") for raw in ("-0.0", "0e5", "0.00e1", "00")),
    (INTEGER, "1e20", "1" + "0" * 20),
    (INTEGER, "-1.5e1", "-15"),
    *((INTEGER, raw, raw) for raw in ("5.5", "1e-1", "1e999", "1e99999999999999999999", "-0")),
    *((INTEGER, raw, text(raw)) for raw in ("abc", "five", "")),
    # Booleans and null, in any case.
    *((BOOLEAN, raw, "true") for raw in ("true", "True", "TRUE", " true\n", '"true"', "'True'")),
    *((BOOLEAN, raw, "false") for raw in ("false", "False")),
    *((BOOLEAN, raw, text(raw)) for raw in ("yes", "truely", "", "t")),
    *((NULL, raw, "null") for raw in ("null", "None", "NULL", "none", "\nnull\n")),
    # Objects and arrays, well written or not, or in a string.
    *((OBJECT, raw, '{"a": 1}') for raw in ('{"a": 1}', "{'a': 1}", "{a: 1}", '{"a": 1,}', '\n{"a": 1}\n')),
    (OBJECT, r'"{\"a\": 1}"', '{"a": 1}'),
    (OBJECT, r'"\"{}\""', text(r'"\"{}\""')),
    (OBJECT, '{"a": 1.10, "b": [1e20, ' + LONG + "]}", '{"a": 1.10, "b": [1e20, ' + LONG + "]}"),
    *((ARRAY, raw, '["a", 1]') for raw in ('["a", 1]', "['a', 1]", "('a', 1)", "('a', 1,)", '''"['a', 1]"''')),
    *((ARRAY, raw, "[]") for raw in ("[]", "()", "([])")),
    (ARRAY, "[NaN, -Infinity, None]", '["NaN", "-Infinity", null]'),
    *((ARRAY, raw, text(raw)) for raw in ("a, b", "[1", "[1] [2]", "[" * 200 + "]" * 200, "[" * 100_000, "[a]")),
    # What fits no declared type is read plainly.
    *((schema, "null", "null") for schema in (INTEGER, BOOLEAN, ARRAY, OBJECT)),
    *((schema, " None ", "null") for schema in (INTEGER, NUMBER)),
    (BOOLEAN, "1", "1"),
    (NULL, "5", "5"),
    (ARRAY, '{"a": 1}', '{"a": 1}'),
    (OBJECT, "[1]", "[1]"),
    (NUMBER, "true", "true"),
    # Beside a string stands what is exactly a literal of the other types.
    *((MAYBE, raw, "null") for raw in ("null", "None")),
    *((MAYBE, raw, text(raw)) for raw in ("NULL", " null", "null\n", "5", "true", "[1]", '"null"', "")),
    ({"type": ["string", "integer"]}, "5", "5"),
    *(({"type": ["string", "integer"]}, raw, text(raw)) for raw in ("5.0", "1e3", "+5", "007", " 5 ", "null", "5 km")),
    *(({"type": ["string", "number"]}, raw, raw) for raw in ("5", "5.0", "1e3", LONG)),
    ({"type": ["string", "boolean"]}, "True", "true"),
    ({"type": ["string", "object"]}, ' {"a": [1,]}', '{"a": [1]}'),
    *(({"type": ["string", "object"]}, raw, text(raw)) for raw in ("[1]", "{a: 1}", "{x}", "({})", "{")),
    *(({"type": ["string", "array"]}, raw, text(raw)) for raw in ("(1, 2)", '{"a": 1}', '"[1]"')),
    ({"type": ["integer", "null"]}, "NONE", "null"),
    ({"type": ["integer", "number"]}, "5.0", "5.0"),
    # Enumerations.
    ({"enum": ["5", "null"]}, "5", '"5"'),
    ({"enum": ["a"]}, " a", '" a"'),
    ({"enum": [1, 2]}, "2.0", "2"),
    ({"enum": [1, 2]}, "abc", '"abc"'),
    *((MIXED, raw, read) for raw, read in (("auto", '"auto"'), ('"auto"', '"auto"'), ("5", '"5"'), ("none", '"none"'))),
    *(
        (MIXED, raw, read)
        for raw, read in (("1", "1"), ("null", "null"), ("None", "null"), ("true", "true"), ("7", "7"))
    ),
    *((MIXED, raw, text(raw)) for raw in ("other", '"other"', " auto")),
    ({"enum": ["5", 5]}, "5", "5"),
    ({"enum": ["5", 5]}, '"5"', '"5"'),
    ({"type": "string", "enum": [1, 2]}, "1", '"1"'),
    ({"enum": ["a", "None"], "nullable": True}, "None", '"None"'),
    ({"enum": ["a", "None"], "nullable": True}, "null", "null"),
    # Without a schema: what is plainly a literal.
    *(({}, raw, raw) for raw in ("5", "-1.10", "1e20", LONG, "true", "false", "null", '{"a": 1}', "[]", "[1.10]")),
    *(({}, raw, read) for raw, read in (("True", "true"), ("None", "null"), ("['a']", '["a"]'), (" [1]\n", "[1]"))),
    *(({}, raw, text(raw)) for raw in ("abc", '"abc"', "'abc'", "007", "+5", "1_000", " 5 ", "5\n", "NaN", "", ".5")),
    *(
        ({}, raw, text(raw))
        for raw in ("TRUE", "(1, 2)", "(5)", "{a: 1}", "[see above]", "{x", "5 6", "[1]2", "\ud800")
    ),
]


@pytest.mark.parametrize(("schema", "raw", "expected"), READ)
def test_read(schema: Any, raw: str, expected: str) -> None:
    assert reading(schema).read(raw) == expected


@pytest.mark.parametrize(
    ("schema", "raw", "fits"),
    [
        *((STRING, raw, True) for raw in ("", "5")),
        *((MAYBE, raw, True) for raw in ("", "5")),
        *(({}, raw, True) for raw in ("", "5")),
        *((INTEGER, raw, True) for raw in ("5", "5.0", "+5", '"5"', "1e400")),
        *((INTEGER, raw, False) for raw in ("5.5", "null", "abc", "", '"abc"', "[5]", "1e99999")),
        *((NUMBER, raw, False) for raw in ("NaN", "true")),
        (ARRAY, "(1,)", True),
        (ARRAY, "(1)", False),
        (ARRAY, "{}", False),
        (OBJECT, "{}", True),
        (BOOLEAN, "1", False),
        ({"type": ["integer", "null"]}, "None", True),
    ],
)
def test_fits(schema: Any, raw: str, fits: bool) -> None:
    assert reading(schema).fits(raw) == fits


@pytest.mark.parametrize(
    ("schema", "known", "open_yet"),
    [
        (STRING, ["", "5", "{"], []),
        (
            {},
            ["a", "trueish", "Nones", '"', "'", "(", "+5", "007", "5 km", "-x", "—"],
            ["", "t", "Non", "{", "[", "5", "-"],
        ),
        ({}, ["nu l", "5.5.", "1e5x"], ["  ", "null ", "5 ", " [", "\xa0[", "5.", "1e", "1e+", "9" * 1000]),
        (MAYBE, ["5", "{", "[", "t", "nx"], ["n", "N", "None"]),
        ({"type": ["string", "integer"]}, ["n", "{"], ["5", "-"]),
        ({"type": ["string", "object"]}, ["5", "["], ["{"]),
        (MIXED, ["a", "[", "'"], ['"', "5", "t"]),
        (INTEGER, [], ["abc", "5"]),
    ],
)
def test_may_be_text(schema: Any, known: list[str], open_yet: list[str]) -> None:
    read = reading(schema)
    assert [start for start in known if not read.may_be_text(start)] == []
    assert [start for start in open_yet if read.may_be_text(start)] == []


# -- schemas

SELF = {"$ref": "#/$defs/node"}
DEFINED = {"$defs": {"node": {"anyOf": [STRING, SELF]}, "a/b": {"~": INTEGER}}, "definitions": {"Old": BOOLEAN}}
DEEP: Any = INTEGER
for _ in range(10_000):
    DEEP = {"anyOf": [DEEP]}
WIDE: Any = {
    "$defs": {f"n{i}": {"anyOf": [{"$ref": f"#/$defs/n{i + 1}"}] * 3} for i in range(30)},
    "$ref": "#/$defs/n0",
}
ANY = "any"

KINDS: list[tuple[Any, str]] = [
    # By type, whoever wrote it.
    *(({"type": name}, "string") for name in ("string", "str", "STRING", "text", "enum", "str, optional")),
    *(({"type": name}, "integer") for name in ("integer", "int", "int64", "Int", "uint8", "long")),
    *(({"type": name}, "integer number") for name in ("number", "float", "double", "decimal", "float32")),
    *(({"type": name}, "boolean") for name in ("boolean", "bool")),
    *(({"type": name}, "null") for name in ("null", "None", "NoneType")),
    *(
        ({"type": name}, "array")
        for name in ("array", "list", "List[int]", "list[dict[str, int]]", "Tuple", "array<int>")
    ),
    *(({"type": name}, "object") for name in ("object", "dict", "Dict[str, List[int]]", "map")),
    *(
        ({"type": name}, "null string")
        for name in ("Optional[str]", "str | None", "Union[str, None]", "string or null")
    ),
    *(({"type": name}, "array null") for name in ("Optional[List[str]]", "List[str]|None", "Union[List[str], None]")),
    *(({"type": name}, ANY) for name in ("any", "Any", "", "file", "字", "]]>", "[[", 5, None, {}, [], [STRING], True)),
    ({"type": ["string", "null"]}, "null string"),
    ({"type": ["int", "float"]}, "integer number"),
    ("str", "string"),
    # Implied.
    ({"properties": {}}, "object"),
    ({"items": STRING}, "array"),
    ({"items": STRING, "type": "string"}, "string"),
    ({"items": STRING, "nullable": True}, "array null"),
    # Enumerated.
    ({"enum": ["a"]}, "string"),
    ({"const": "5"}, "string"),
    ({"const": None}, "null"),
    ({"enum": [1, True, None, {}, [], 0.5]}, "array boolean integer null number object"),
    ({"enum": []}, ANY),
    ({"enum": "abc"}, ANY),
    ({"enum": [10**5000, "a", float("nan")]}, "integer number string"),
    ({"type": "number", "enum": [1]}, "integer"),
    ({"type": "integer", "enum": ["1", "2"]}, "integer"),
    # Combined.
    ({"anyOf": [STRING, NULL]}, "null string"),
    ({"oneOf": [ARRAY, {"const": 5}]}, "array integer"),
    ({"anyOf": [STRING, {}]}, ANY),
    ({"anyOf": [STRING, True]}, ANY),
    ({"anyOf": [STRING, False]}, "string"),
    ({"anyOf": []}, ANY),
    ({"anyOf": {"a": STRING}}, ANY),
    ({"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, "object"),
    ({"allOf": [{"description": "…"}, {"type": ["integer", "string"]}, {"type": ["string", "null"]}]}, "string"),
    ({"allOf": [STRING, INTEGER]}, "string"),
    ({"type": "string", "nullable": True}, "null string"),
    ({"nullable": True}, ANY),
    (True, ANY),
    (False, ANY),
    (None, ANY),
    ([STRING], ANY),
    # References.
    ({**DEFINED, "$ref": "#/$defs/node"}, "string"),
    ({**DEFINED, "$ref": "#/$defs/a~1b/~0"}, "integer"),
    ({**DEFINED, "$ref": "#/%24defs/a~1b/~0"}, "integer"),
    ({**DEFINED, "$ref": "schema.json#/definitions/Old"}, "boolean"),
    ({**DEFINED, "$ref": "Old"}, "boolean"),
    ({**DEFINED, "$ref": "#/components/schemas/Old"}, "boolean"),
    ({**DEFINED, "$ref": "#Old"}, "boolean"),
    ({"anyOf": [STRING, NULL], "properties": {"a": {"$ref": "#/anyOf/1"}}}, "null string"),
    ({"x": [NULL, INTEGER], "$ref": "#/x/1"}, "integer"),
    ({"$ref": "#"}, ANY),
    ({"type": "string", "$ref": "#"}, "string"),
    *(({"$ref": bad}, ANY) for bad in ("", "#/no", "#/$ref/x", "no", "#/9", 5, None, "/" * 1000, "%")),
    ({"anyOf": [{"$ref": "#/anyOf/1"}, {"$ref": "#/anyOf/0"}, STRING]}, "string"),
    # Too deep and too wide.
    (DEEP, ANY),
    (WIDE, ANY),
]


@pytest.mark.parametrize(("schema", "kinds"), KINDS)
def test_kinds(schema: Any, kinds: str) -> None:
    read = reading(schema)
    assert " ".join(sorted(read.kinds)) == (" ".join(sorted(PLAIN.kinds)) if kinds == ANY else kinds)
    assert read.text_only == (kinds == "string")


# -- tools


def tool(parameters: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **more}}


def test_names() -> None:
    assert Schemas(None).names is None
    assert Schemas([]).names == frozenset()
    assert Schemas(
        [tool({}), {"name": "g"}, {"function": {"name": 5}}, {"function": 5, "name": "h"}]
    ).names == frozenset("fgh")


@pytest.mark.parametrize(
    ("parameters", "kinds"),
    [
        ({"properties": {"a": INTEGER}}, "integer"),
        ({"a": INTEGER}, "integer"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"properties": {"a": INTEGER}}}}, "integer"),
        ({"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": INTEGER}}, "integer"),
        ({"properties": {"a": {"$ref": "#/$defs/A", "$defs": {"A": INTEGER}}}}, "integer"),
        ({"properties": {"a": {"$ref": "#/definitions/B"}}}, "boolean"),
        ({"allOf": [{"properties": {"a": {"type": ["null", "integer"]}}}, {"properties": {"a": INTEGER}}]}, "integer"),
        ({"anyOf": [{"properties": {"a": INTEGER}}, {"properties": {"a": NULL}}]}, "integer null"),
        ({"properties": {"a": {"title": "A"}}, "oneOf": [{"properties": {"a": INTEGER}}]}, "integer"),
        ({"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"properties": {"a": INTEGER}}]}, "integer"),
    ],
)
def test_arguments(parameters: Any, kinds: str) -> None:
    schemas = Schemas([tool(parameters, definitions={"B": BOOLEAN})])
    assert schemas.properties("f") == {"a"}
    assert " ".join(sorted(schemas.argument("f", "a").kinds)) == kinds
    assert schemas.argument("f", "a") is schemas.argument("f", "a")
    assert schemas.argument("f", "b").kinds == PLAIN.kinds


def test_undeclared() -> None:
    schemas = Schemas([tool({"properties": {"a": INTEGER}, "additionalProperties": STRING})])
    assert schemas.argument("f", "b").text_only
    assert schemas.argument("f", "b") is schemas.argument("f", "c")
    assert schemas.properties("g") == frozenset()
    assert schemas.argument("g", "a") is PLAIN
    assert Schemas(None).argument("f", "a") is PLAIN


# -- JSON written loosely

RELAXED = [
    # Strict JSON is left as it is.
    *(
        (strict, strict)
        for strict in ("{}", "[]", '""', "0", "-1.10e+5", "null", '{"a" :[1 ,\n{ } ]}', r'"\u00e9\/\"\\"')
    ),
    *((f"\n {strict}\t", strict) for strict in ("{}", "5", '"a"')),
    ("'a'", '"a"'),
    ("'it\\'s \"b\"'", '"it\'s \\"b\\""'),
    (r'"it\'s"', '"it\'s"'),
    (r'"\d+\.\w"', r'"\\d+\\.\\w"'),
    (r"'\n\u00e9\\'", r'"\n\u00e9\\"'),
    (r'"\u12"', r'"\\u12"'),
    (r"'\x41\x1b\x22\U0001F642\U99999999'", '"A\\u001b\\"🙂\\\\U99999999"'),
    ('"a\nb\tc\x00"', r'"a\nb\tc\u0000"'),
    ('"a\\\nb"', r'"a\\\nb"'),
    ("'\ud800'", '"\ud800"'),
    ("[1, 2, ]", "[1, 2 ]"),
    ('{"a": 1,\n}', '{"a": 1\n}'),
    ("[[1,],]", "[[1]]"),
    ("[True, False, None, true, false, null]", "[true, false, null, true, false, null]"),
    ("[NaN, Infinity, -Infinity]", '["NaN", "Infinity", "-Infinity"]'),
    ("NaN", '"NaN"'),
    ("[+5, .5, 5., 1_000, 1e5, -.5E-3]", "[5, 0.5, 5.0, 1000, 1e5, -0.5e-3]"),
    ("(1, 'a', (), (2), ((3,)))", '[1, "a", [], 2, [3]]'),
    ("({'a': (1)})", '{"a": 1}'),
    ("{a: 1, b_2: 2, $c: 3, d-e: 4, é: 5}", '{"a": 1, "b_2": 2, "$c": 3, "d-e": 4, "é": 5}'),
    ("{1: 2, 1.10: 3, None: 4, True: 5}", '{"1": 2, "1.10": 3, "null": 4, "true": 5}'),
    ("{'a': {'b': [{}]}}", '{"a": {"b": [{}]}}'),
    ("[1,\xa02,\u30003]\x0c", "[1, 2, 3]"),
    (f"[{LONG}]", f"[{LONG}]"),
]
NO_VALUE = [
    *(
        "",
        " ",
        "a",
        "{",
        "[",
        "[1",
        "[1 2]",
        "[,]",
        "[1,,2]",
        "{,}",
        "{1}",
        "{a}",
        "{a:}",
        "{a: b}",
        "{a: 1 b: 2}",
        "{:1}",
    ),
    *("]", "[}", "{]", "(]", "[1}", "1 2", "{} {}", "1,", "1:", ",", ":", '"', "'a", '"a', '"a\\"', "'a''b'", "[007]"),
    *(
        "1__0",
        "1_",
        "0x1F",
        "1j",
        "5e",
        "--1",
        "- 1",
        "b'a'",
        "// a\n1",
        "1 # a",
        "{[1]: 2}",
        "{(1): 2}",
        "nULL",
        "[1-2]",
    ),
    *("[...]", "…", "{'a': 1, **b}", "f(1)", "undefined", "\\", "{a: 1:}", "[1:2]", "{'a'}", "{1, 2}", "٣"),
]


@pytest.mark.parametrize(("loose", "strict"), RELAXED)
def test_relaxed(loose: str, strict: str) -> None:
    assert relaxed_json(loose) == strict
    json.loads(strict, parse_constant=pytest.fail)


@pytest.mark.parametrize("loose", NO_VALUE)
def test_no_value(loose: str) -> None:
    assert relaxed_json(loose) is None


@pytest.mark.parametrize(("opened", "closed"), ["[]", "()", ("{'a':", "}")])
def test_depth(opened: str, closed: str) -> None:
    for levels in (MAX_DEPTH, 3):
        inner = "1," if closed == ")" else "1"
        nested = opened * levels + inner + closed * levels
        assert relaxed_json(nested, max_depth=levels)
        assert relaxed_json(nested, max_depth=levels - 1) is None


BIG = 100_000
HOSTILE = {
    "open brackets": "[" * BIG,
    "open braces": "{a:" * BIG,
    "flat": "[" + "1, " * BIG + "]",
    "flat, then broken": "[" + "'a', " * BIG + "!",
    "objects": "[" + '{"a": [1, 2.50]}, ' * (BIG // 10) + "]",
    "quotes": "'" * BIG,
    "pairs of quotes": "[" + '"",' * BIG + '"',
    "escapes": '"' + "\\n" * BIG + '"',
    "escapes, then broken": '"' + "\\'" * BIG,
    "backslashes": "'" + "\\" * (BIG + 1),
    "spaces": "[" + " " * BIG,
    "spaces and a digit": " " * BIG + "5" + " " * BIG,
    "digits": "9" * BIG,
    "digits, then broken": "9" * BIG + "x",
    "digits and underscores": "1_" * BIG,
    "fraction": "0." + "0" * BIG + "1e" + "1" * BIG,
    "exponent": "1e" + "9" * BIG,
    "word": "{" + "a" * BIG,
    "hyphens": "-" * BIG,
    "string in strings": '"' + '\\"' * BIG + '"',
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_long_texts(raw: str) -> None:
    """Would not end in any time, were it not linear."""
    for schema in ({}, NUMBER, {"type": ["array", "integer"]}):
        read = reading(schema)
        read.may_be_text(raw)
        read.fits(raw)
        value = read.read(raw)
        assert value[0] in '[{"' or value[0].isdigit()


# -- laws

NAMES = ("string", "integer", "number", "boolean", "null", "array", "object", "str", "Optional[int]", "any", "?")
REFERENCES = ("#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/anyOf/0", "a", "#/no")
characters = st.characters(exclude_categories=())  # lone surrogates too
texts = st.text(characters, max_size=20)
marks = st.text(st.sampled_from([*"[]{}(),:'\"\\+-._eE019aunTN \n\t", "é", "\xa0"]), max_size=30)
words = st.sampled_from(
    ["null", "None", "True", "false", "NaN", "-Infinity", "5.0", "1e5", "'a'", '"a"', "[1]", "{a: 1}"]
)
pieces = st.lists(words | st.sampled_from([*"[]{}(),: "]), max_size=12).map("".join)
raws = texts | marks | words | pieces
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)
pythonic = st.recursive(
    scalars | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def writings(scalar: st.SearchStrategy[str], key: st.SearchStrategy[str], *brackets: str) -> st.SearchStrategy[str]:
    """Texts of values with white space anywhere. In `brackets`, `[,]` stands for `[]` with a comma at the end."""
    space = st.sampled_from(["", "", " ", "\n\t "])

    def spaced(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.tuples(space, inner, space).map("".join)

    def nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        item, pair = spaced(inner), st.tuples(spaced(key), spaced(inner)).map(":".join)
        return st.one_of(*(around(pair if marks[0] == "{" else item, marks) for marks in brackets))

    def around(inner: st.SearchStrategy[str], marks: str) -> st.SearchStrategy[str]:
        items = st.lists(inner, min_size=1, max_size=4).map(",".join)
        return items.map(lambda inside: marks[0] + inside + marks[1:]) | space.map(
            lambda gap: marks[0] + gap + marks[-1]
        )

    return spaced(st.recursive(scalar, nested, max_leaves=12))


json_numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,2})(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)
python_numbers = st.from_regex(r"[+-]?([0-9]|[1-9]_[0-9])(\.[0-9]?)?([eE][+-]?[0-9]{1,2})?", fullmatch=True)
json_strings = st.lists(
    texts.map(lambda plain: json.dumps(plain)[1:-1]) | st.sampled_from(["\\/", "é"]), max_size=2
).map(lambda inner: f'"{"".join(inner)}"')
strict_json = writings(json_numbers | json_strings | st.sampled_from(["true", "null"]), json_strings, "[]", "{}")
python_literals = writings(
    python_numbers | texts.map(repr) | st.sampled_from(["True", "False", "None"]),
    texts.map(repr) | st.sampled_from(["1", "None", "False"]),
    *("[]", "[,]", "{}", "{,}", "(,)"),
)


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, max_size=3)
    named = st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    keywords = {
        "type": st.sampled_from(NAMES) | st.lists(st.sampled_from(NAMES), max_size=3),
        "enum": st.lists(values, max_size=3),
        "const": values,
        "anyOf": several,
        "oneOf": several,
        "allOf": several,
        "$ref": st.sampled_from(REFERENCES),
        "$defs": named,
        "properties": named,
        "items": inner,
        "additionalProperties": inner,
        "nullable": st.booleans(),
    }
    return st.fixed_dictionaries({}, optional=keywords) | st.dictionaries(
        st.sampled_from([*keywords]), values, max_size=3
    )


schemas = st.recursive(st.booleans() | st.builds(lambda name: {"type": name}, st.sampled_from(NAMES)), _schemas)
readings = schemas.map(reading)


def own_type(value: Any) -> dict[str, str]:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return {"type": names.get(type(value), "null")}


@given(values, st.sampled_from([None, 1]), st.booleans())
def test_json_reads_back(value: Any, indent: int | None, ascii_only: bool) -> None:
    written = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert relaxed_json(written) == written
    if not isinstance(value, str):
        for schema in (own_type(value), {}, {"type": ["string", own_type(value)["type"]]}):
            assert reading(schema).read(written) == written
        assert json.loads(reading(own_type(value)).read(json.dumps(written))) == value


@given(texts)
def test_declared_strings_never_change(raw: str) -> None:
    for schema in (STRING, {"enum": ["a", "5"]}, {"anyOf": [STRING, {"const": "x"}]}, {"$ref": "#/s", "s": STRING}):
        assert json.loads(reading(schema).read(raw)) == raw
    assert reading(STRING).read(raw) == text(raw)


@given(readings, raws)
def test_any_text_under_any_schema(read: Reading, raw: str) -> None:
    value = read.read(raw)
    json.loads(value, parse_constant=pytest.fail)
    kind = next(iter(own_type(json.loads(value)).values()))
    if read.fits(raw):
        assert kind in read.kinds or (kind == "number" and "integer" in read.kinds)
    if read.text_only:
        assert value == text(raw)
    if kind == "string":
        assert json.loads(value) in (raw, raw[1:-1])


@given(readings, st.sampled_from(["", " ", "\n"]), raws, raws)
@example(PLAIN, "", "\xa0", "[1]")
@example(reading(MIXED), "", '"', 'auto"')
def test_what_is_known_to_be_text_stays_text(read: Reading, before: str, start: str, rest: str) -> None:
    assume(read.may_be_text(start))
    raw = before + start + rest
    assert read.read(raw) == text(raw)


@given(readings, raws)
def test_once_known_always_known(read: Reading, raw: str) -> None:
    known = [read.may_be_text(raw[:end]) for end in range(len(raw) + 1)]
    assert known == sorted(known)


@given(values)
def test_any_tools(tools: Any) -> None:
    for odd in (tools, [tools], [tool(tools)], [tool({"properties": tools})], [tool({"properties": {"a": tools}})]):
        declared = Schemas(odd)
        declared.argument("f", "a").read("5")
        assert isinstance(declared.properties("f"), frozenset)


@given(strict_json)
def test_strict_json_is_left_alone(strict: str) -> None:
    json.loads(strict)
    assert relaxed_json(strict) == strict.strip()


@given(raws)
def test_loose_json_becomes_strict(raw: str) -> None:
    strict = relaxed_json(raw)
    if strict is not None:
        json.loads(strict, parse_constant=pytest.fail)
        assert relaxed_json(strict) == strict


@given(pythonic)
def test_python_literals(value: Any) -> None:
    """What Python writes is read as Python reads it."""
    strict = relaxed_json(repr(value))
    assert strict is not None
    assert json.loads(strict) == json.loads(json.dumps(value))


@given(python_literals)
def test_python_literals_in_any_writing(literal: str) -> None:
    strict = relaxed_json(literal)
    assert strict is not None
    assert json.loads(strict) == json.loads(json.dumps(ast.literal_eval(literal.strip())))


@given(raws)
def test_what_is_strict_json_by_chance_is_left_alone(raw: str) -> None:
    try:
        json.loads(raw, parse_constant=pytest.fail)
    except (ValueError, pytest.fail.Exception):
        return
    assert relaxed_json(raw) == raw.strip(" \t\n\r")


@given(values)
def test_depth_is_bounded_exactly(value: Any) -> None:
    levels = depth(value)
    assert relaxed_json(json.dumps(value), max_depth=levels) is not None
    assert not levels or relaxed_json(json.dumps(value), max_depth=levels - 1) is None
