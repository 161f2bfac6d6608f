"""What templates mean: a render is what transformers' compiled template gives; a traced one has the same text."""

from __future__ import annotations

import copy
import random
import re
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from corpus import fixed_clock, oracle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jinja2.exceptions import TemplateSyntaxError
from jinja2.filters import FILTERS
from jinja2.tests import TESTS

from chatcodec.errors import BudgetExceeded, TemplateError
from chatcodec.template import Budget, Template

Variables = dict[str, Any]

CONTEXT: Variables = {
    "n": 3,
    "big": 12345678901234567890,
    "f": 1.5,
    "yes": True,
    "no": False,
    "null": None,
    "s": "Hello, World",
    "text": "  two\n lines of <b> & 'it'\n\n",
    "empty": "",
    "xs": [3, 1, 2],
    "words": ["b", "A", "c", "a", "B"],
    "nothing": [],
    "nested": [[1, [2, 3]], [4]],
    "pair": ("k", "v"),
    "d": {"a": 1, "b": {"c": [10, 20]}, "items": "shadow", "x y": 5, 1: "one", "null": None, "<k>": "é"},
    "people": [
        {"name": "Ann", "age": 30, "at": {"city": "Rome"}},
        {"name": "bob", "age": 25, "at": {"city": "Oslo"}},
        {"name": "Cid", "age": 30},
    ],
    "tree": [{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3, "kids": [{"v": 4, "kids": []}]}]}],
    "messages": [{"role": "user", "content": "Hi <you>"}, {"role": "assistant", "content": None, "tool_calls": []}],
}

STATEMENTS = {
    "if": [
        "{% if n %}a{% endif %}",
        "{% if nothing %}a{% else %}b{% endif %}",
        "{% if n > 5 %}a{% elif n > 2 %}b{% elif n %}c{% else %}d{% endif %}",
        "{% if n > 5 %}a{% elif n > 4 %}b{% endif %}",
        "{% if nosuch %}a{% else %}b{% endif %}{% if not nosuch %}c{% endif %}",
        "{% if empty or null or nothing or d %}a{% endif %}{% if yes and n and s %}b{% endif %}",
        "{% if 0 %}a{% elif 0.0 %}b{% elif '' %}c{% elif {} %}d{% elif () %}e{% else %}f{% endif %}",
        "{% if d.nosuch %}a{% elif d['nosuch'] %}b{% elif d.b.c %}c{% endif %}",
        "{{ 'a' if n else 'b' }}{{ 'a' if no else 'b' }}{{ 'a' if no }}|{{ ('x' if no) is defined }}",
        "{{ 'a' if no else 'b' if no else 'c' }}",
    ],
    "for": [
        "{% for x in xs %}{{ x }},{% endfor %}",
        "{% for x in nothing %}{{ x }}{% else %}none{% endfor %}",
        "{% for x in xs %}{{ x }}{% else %}none{% endfor %}",
        "{% for x in nosuch %}{{ x }}{% else %}none{% endfor %}",
        "{% for c in 'añ🙂' %}<{{ c }}>{% endfor %}",
        "{% for k in d %}{{ k }};{% endfor %}",
        "{% for k, v in d.b.items() %}{{ k }}={{ v }}{% endfor %}",
        "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ loop.index }}{{ k }}={{ v }} {% endfor %}",
        "{% for k, v in {'b': 1, 'a': 2}|dictsort %}{{ k }}={{ v }} {% endfor %}",
        "{% for a, (b, c) in [(1, (2, 3)), (4, [5, 6])] %}{{ a }}{{ b }}{{ c }};{% endfor %}",
        "{% for a, b in ['xy', 'zw'] %}{{ b }}{{ a }}{% endfor %}",
        "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
        "{% for x in n %}{{ x }}{% endfor %}",
        "{% for x in null %}{{ x }}{% endfor %}",
        "{% for i in range(5) %}{{ i }}{% endfor %}{% for i in range(5, 0, -2) %}{{ i }}{% endfor %}",
        "{% for x in xs if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}",
        "{% for x in xs if x > 9 %}{{ x }}{% else %}none{% endfor %}",
        "{% for p in people if p.at is defined %}{{ p.name }}{{ ', ' if not loop.last }}{% endfor %}",
        "{% for x in xs if x is even %}{{ x }}{% endfor %}{% for x in xs if loop %}{{ x }}{% endfor %}",
        "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
        "{% for x in xs %}{% for y in words %}{{ loop.index }}{{ y }}{% endfor %}{{ loop.index }};{% endfor %}",
        "{% for x in xs|sort %}{{ x }}{% endfor %}{% for x in xs|reverse %}{{ x }}{% endfor %}",
        "{% for x in xs[1:] %}{{ x }}{% endfor %}{% for x in xs[::-1] %}{{ loop.revindex }}{{ x }}{% endfor %}",
        "{% for x in words|map('upper') %}{{ loop.last }}{{ x }}{% endfor %}",
        "{% for x in words|map('upper') %}{{ loop.length }}{{ loop.nextitem }}{% endfor %}",
        "{% for loop in xs %}{{ loop }}{% endfor %}",
    ],
    "loop": [
        "{% for x in words %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }} {% endfor %}",
        "{% for x in words %}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}",
        "{% for x in words %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}",
        "{% for x in words %}{{ loop.previtem is defined }}{{ loop.nextitem is undefined }} {% endfor %}",
        "{% for x in people %}{{ loop.previtem.name }}{{ loop.nextitem.name if not loop.last }}{% endfor %}",
        "{% for x in people %}{% if loop.previtem and loop.previtem.age > x.age %}v{% endif %}{% endfor %}",
        "{% for x in words %}{{ loop.cycle('odd', 'even') }} {% endfor %}",
        "{% for x in words %}{{ loop.cycle() }}{% endfor %}",
        "{% for x in [1, 1, 2, 2, 1] %}{{ x if loop.changed(x) }}{% endfor %}",
        "{% for x in words %}{{ loop.depth }}{{ loop.depth0 }}{% for y in xs %}{{ loop.depth }}{% endfor %}"
        "{% endfor %}",
        "{% for x in xs %}{{ loop.nosuch is defined }}{{ loop.nosuch }}{% endfor %}",
        "{% for x in xs %}{{ loop['index'] }}{{ loop|string|length > 5 }}{% endfor %}",
        "{% for x in xs %}{% set outer = loop %}{% for y in words %}{{ outer.index }}{{ loop.index }} {% endfor %}"
        "{% endfor %}",
        "{% for x in xs %}{% if loop.index is odd %}{{ x }}{% endif %}{{ loop.index % 2 == 0 }}{% endfor %}",
        "{% for x in xs %}{% if loop.index == 2 %}{{ loop }}{% endif %}{% endfor %}",
        "{% for x in xs %}{% if not loop.first %}-{% endif %}{{ x }}{% if loop.last %}.{% endif %}{% endfor %}",
        "{{ loop }}{{ loop is defined }}",
        "{% for x in nothing %}{{ loop.index }}{% else %}{{ loop.index }}{% endfor %}",
        "{% for x in nothing %}{{ loop.index }}{% else %}{{ loop.cycle('a') }}{% endfor %}",
        "{% for y in xs %}{% for x in nothing %}{{ loop.index }}{% else %}{{ loop.index }}{% endfor %}{% endfor %}",
        "{% for x in xs %}{{ loop.index }}{% endfor %}{% with %}{{ loop.index }}{% endwith %}",
        "{% for x in xs %}{{ loop.index }}{% endfor %}{% macro m() %}{{ loop.index }}{% endmacro %}{{ m() }}",
        "{% for x in xs %}{{ loop.index }}{% endfor %}{% set z %}{{ loop.index }}{% endset %}",
        "{% for x in xs %}{{ loop.index }}{% endfor %}{% for x in xs if loop.index %}{{ x }}{% endfor %}",
        "{% for x in xs %}{% macro m() %}{{ loop.index }}{% endmacro %}{{ m() }}{% endfor %}",
        "{% for x in xs %}{% set z %}{{ loop.index }}{% endset %}{% with %}{{ loop.last }}{% endwith %}{% endfor %}",
        "{% for x in xs %}{% filter upper %}{{ loop.index }}{% endfilter %}{% block b %}{% endblock %}{% endfor %}",
        "{% for x in xs %}{% endfor %}{{ loop.index }}",
        "{% for x in xs %}{% if x == 1 %}{{ loop.index0 ~ '/' ~ loop.length }}{% endif %}{% endfor %}",
        "{% for n in tree recursive %}{{ n.v }}[{{ loop(n.kids) }}]{{ loop.depth }}{{ loop.index }}{% endfor %}",
        "{% for n in tree recursive %}{{ n.v }}{% if n.kids %}({{ loop(n.kids) }}){% else %}.{% endif %}{% endfor %}",
        "{% for n in nothing recursive %}{{ loop(n) }}{% else %}none{% endfor %}",
        "{% for n in tree if n.v != 3 recursive %}{{ n.v }}{{ loop(n.kids) }}{% endfor %}",
        "{% for x in xs %}{{ loop(xs) }}{% endfor %}",
    ],
    "break and continue": [
        "{% for x in xs %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
        "{% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
        "{% for x in xs %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% else %}none{% endfor %}",
        "{% for x in xs %}{% continue %}{% else %}none{% endfor %}",
        "{% for x in xs %}{% for y in xs %}{% if y == 1 %}{% break %}{% endif %}{{ y }}{% endfor %}{{ x }}{% endfor %}",
        "{% for x in xs %}{{ loop.index }}{% if loop.index > 1 %}{% break %}{% endif %}{% endfor %}",
        "{% for x in xs if x > 1 %}{% if loop.first %}{% continue %}{% endif %}{{ x }}{{ loop.last }}{% endfor %}",
        "{% break %}",
    ],
    "set": [
        "{% set x = 1 %}{{ x }}",
        "{% set x, y = 1, 2 %}{{ y }}{{ x }}",
        "{% set (a, b), c = [(1, 2), 3] %}{{ a }}{{ b }}{{ c }}",
        "{% set a, b = 'xy' %}{{ b }}{{ a }}",
        "{% set a, b = xs %}{{ a }}",
        "{% set x %}a{{ n }}b{% endset %}{{ x }}{{ x|length }}",
        "{% set x | upper | trim %} a{{ n }}b {% endset %}[{{ x }}]",
        "{% set x | replace('a', '<') %}a{% endset %}{{ x }}",
        "{% set x = x %}{{ x is defined }}",
        "{% set n = n + 1 %}{% set n = n * 2 %}{{ n }}",
        "{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}{{ y is defined }}",
        "{% set d = 1 %}{{ d }}",
        "{% set x = {} %}{% set x.a = 1 %}",
        "{% set d.a = 1 %}{{ d }}",
        "{% set x = [1] %}{% set y = x %}{% set x = x + [2] %}{{ y }}{{ x }}",
        "{% set true = 1 %}",
        "{% set xs[0] = 1 %}",
    ],
    "namespace": [
        "{% set ns = namespace(x=1, y='a') %}{% set ns.x = ns.x + 1 %}{{ ns.x }}{{ ns.y }}",
        "{% set ns = namespace() %}{% for x in xs %}{% set ns.total = (ns.total or 0) + x %}{% endfor %}{{ ns.total }}",
        "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns['b'] }}{{ ns.c is defined }}{{ ns.c }}",
        "{% set ns = namespace(items=1, _x=2) %}{{ ns.items }}",
        "{% set ns = namespace(items=1) %}{{ ns.items }}{{ ns.items is defined }}{{ ns.keys is defined }}",
        "{% set ns = namespace(a=1) %}{% set ns.b %}x{{ ns.a }}{% endset %}{{ ns.b }}{{ ns }}",
        "{% set ns = namespace(a=1) %}{% set ns.a, ns.b = 5, 6 %}{{ ns.a }}{{ ns.b }}",
        "{% set ns = namespace(found=false) %}{% for x in xs %}{% if x == 1 %}{% set ns.found = true %}{% endif %}"
        "{% endfor %}{{ ns.found }}",
        "{% macro m(ns) %}{% set ns.a = ns.a ~ '!' %}{% endmacro %}{% set ns = namespace(a='x') %}{{ m(ns) }}"
        "{{ ns.a }}",
        "{% set ns = namespace(a=1) %}{% set ns.__class__ = 1 %}",
        "{% set ns = namespace(f='{}') %}{{ ns.f.format(1) }}{{ ns.f|length }}",
        "{% set ns = 1 %}{% set ns.a = 2 %}",
        "{% set ns.a = 2 %}",
        "{% set ns = namespace(l=[]) %}{% for x in xs %}{% set ns.l = ns.l + [x] %}{% endfor %}{{ ns.l }}",
    ],
    "macro": [
        "{% macro m() %}x{% endmacro %}{{ m() }}{{ m() }}",
        "{% macro m(a, b=2, c='z') %}{{ a }}{{ b }}{{ c }} {% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(b=1, a=0) }}",
        "{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}{{ m(null) }}{{ m(nosuch) }}",
        "{% macro m(a) %}[{{ a is defined }}]{% endmacro %}{{ m() }}{{ m(null) }}{{ m(nosuch) }}",
        "{% macro m(a) %}{{ a.b }}{% endmacro %}{{ m() }}",
        "{% macro m(a, b=a ~ '!') %}{{ b }}{% endmacro %}{{ m('x') }}{{ m('x', 'y') }}",
        "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 'a', k=2) }}{{ m() }}",
        "{% macro m(a) %}{{ a }}{{ varargs|join(',') }}{% endmacro %}{{ m(1, 2, 3) }}{{ m(*xs) }}{{ m(**{'a': 1}) }}",
        "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
        "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=1) }}",
        "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
        "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}",
        "{% macro m(n) %}{{ n }}{{ m(n - 1) if n }}{% endmacro %}{{ m(4) }}",
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}b{% endmacro %}{{ a() }}",
        "{% macro m() %}{{ later }}{% endmacro %}{% set later = 5 %}{{ m() }}",
        "{{ m is defined }}{% macro m() %}x{% endmacro %}{{ m is defined }}{{ m.name }}{{ m.arguments }}{{ m }}",
        "{% macro m(a, b) %}{% endmacro %}{{ m.catch_kwargs }}{{ m.catch_varargs }}{{ m.caller }}{{ m.nosuch }}",
        "{{ m() }}{% macro m() %}x{% endmacro %}",
        "{% macro m(a) %}{% if a is string %}{{ a }}{% else %}{% for x in a %}{{ x.text }}{% endfor %}{% endif %}"
        "{% endmacro %}{{ m('x') }}{{ m([{'text': 'y'}]) }}{{ m(s)|length }}{{ m(s) ~ 1 }}{{ m(null) }}",
        "{% macro m(n) %}{% set n = n + 1 %}{{ n }}{% endmacro %}{{ m(1) }}{{ n }}",
        "{% for x in xs %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}{{ m is defined }}",
        "{% if yes %}{% macro m() %}x{% endmacro %}{% endif %}{{ m() }}",
        "{% macro m(x) %}{{ x }}{% endmacro %}{{ words|map('upper')|join(m('-')) }}{{ m(m(m('a'))) }}"
        "{{ m('a') + 'b' }}",
        "{% macro m() %} x {% endmacro %}[{{ m()|trim }}][{{ m().strip() }}][{{ m() is string }}]",
        "{% macro m(caller=1) %}{{ caller }}{% endmacro %}{{ m() }}{{ m(2) }}",
        "{% macro m(a, a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
        "{% macro m(a=1, b) %}{% endmacro %}",
        "{% macro m(kwargs) %}{{ kwargs }}{% endmacro %}{{ m(1) }}",
        "{% macro m(x) %}{{ x|e }}{% endmacro %}{{ m('<') ~ '>' }}{{ m('<') + '>' }}",
        "{% set f = m %}{% macro m() %}x{% endmacro %}{{ f is defined }}{% set g = m %}{{ g() }}",
        "{% macro m(x) %}{% if x %}{{ x }}{% endif %}{% endmacro %}{{ 'y' if m('') else 'n' }}{{ m('a') == 'a' }}",
        "{% macro m() %}{% set z = 1 %}{% endmacro %}{{ m() }}{{ z is defined }}",
        "{% macro m() %}{{ n }}{% endmacro %}{% set n = 7 %}{{ m() }}{% for n in [8] %}{{ m() }}{% endfor %}",
        "{% macro m(f) %}{{ f() }}{% endmacro %}{% macro g() %}g{% endmacro %}{{ m(g) }}",
    ],
    "call": [
        "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}x{{ n }}{% endcall %}",
        "{% macro m() %}{{ caller(1) }}{{ caller(2) }}{% endmacro %}{% call(x) m() %}[{{ x }}]{% endcall %}",
        "{% macro m(a) %}{{ caller(a, 2) }}{% endmacro %}{% call(x, y=9, z=8) m('q') %}{{ x }}{{ y }}{{ z }}"
        "{% endcall %}",
        "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}",
        "{% macro m() %}{% if caller is defined %}{{ caller() }}{% endif %}{% endmacro %}{% call m() %}a{% endcall %}",
        "{% macro m() %}x{% endmacro %}{% call m() %}a{% endcall %}",
        "{% macro m(c) %}{{ c }}{{ caller() }}{% endmacro %}{% for x in xs %}{% call m(x) %}{{ x }}{% endcall %}"
        "{% endfor %}",
        "{% macro a() %}{{ caller() }}{% endmacro %}{% macro b() %}{% call a() %}{{ caller() }}{% endcall %}"
        "{% endmacro %}{% call b() %}deep{% endcall %}",
        "{% call nosuch() %}x{% endcall %}",
        "{% macro m() %}{{ caller.name }}{{ caller }}{% endmacro %}{% call m() %}x{% endcall %}",
        "{% set x = 1 %}{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{% set x = 2 %}{{ x }}{% endcall %}"
        "{{ x }}",
    ],
    "filter, with, raw": [
        "{% filter upper %}a{{ s }}b{% endfilter %}",
        "{% filter trim|replace('a', 'b')|upper %} aXa {% endfilter %}",
        "{% filter indent(2) %}a\nb{% endfilter %}",
        "{% filter e %}<{{ s }}>{% endfilter %}",
        "{% filter upper %}{% set q = 1 %}{% endfilter %}{{ q is defined }}",
        "{% filter nosuch %}{% endfilter %}",
        "{% with %}{% set x = 1 %}{{ x }}{% endwith %}{{ x is defined }}",
        "{% with x = 1, y = n %}{{ x }}{{ y }}{% endwith %}{{ x is defined }}",
        "{% with n = n + 1 %}{{ n }}{% with n = n + 1 %}{{ n }}{% endwith %}{% endwith %}{{ n }}",
        "{% set x = 1 %}{% with x = 2, y = x %}{{ x }}{{ y }}{% endwith %}",
        "{% with a, b = pair %}{{ a }}{{ b }}{% endwith %}",
        "{% raw %}{{ x }}{% if %}{# #}{% endraw %}",
        "{% raw -%}  {{ x }}  {%- endraw %} .",
        "{# a comment {{ x }} #}a{#- b -#} c",
        "{% generation %}a{{ s }}{% endgeneration %}",
        "{% for x in xs %}{% generation %}{% set y = x %}{{ y }}{% endgeneration %}{{ y is defined }}{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.content }}{{ loop.index }}{% endgeneration %}{% endfor %}",
        "{%- generation -%}  a  {%- endgeneration -%} b",
        "{% generation %}{% generation %}a{% endgeneration %}{% endgeneration %}",
        "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{% generation %}x{% endgeneration %}{% endcall %}",
    ],
    "block": [
        "{% block a %}x{{ n }}{% endblock %}",
        "{% block a %}x{% endblock %}{{ self.a() }}{{ self.a()|upper }}",
        "{% block a %}x{% block b %}y{% endblock %}{% endblock %}{{ self.b() }}",
        "{% for x in xs %}{% block a %}{{ x }}{% endblock %}{% endfor %}",
        "{% for x in xs %}{% block a scoped %}{{ x }}{{ loop.index }}{% endblock %}{% endfor %}",
        "{% set x = 1 %}{% block a %}{{ x }}{% set x = 2 %}{% endblock %}{{ x }}",
        "{% block a %}{{ super() }}{% endblock %}",
        "{% block a %}{% endblock %}{% block a %}{% endblock %}",
        "{{ self.nosuch() }}",
        "{% block a %}1{% endblock a %}{{ self.a is callable }}{{ self['a']() }}",
        "{% block a %}{% macro m() %}m{% endmacro %}{{ m() }}{% endblock %}{{ m is defined }}",
        "{% extends 'x' %}",
        "{% include 'x' %}",
        "{% import 'x' as y %}",
    ],
    "whitespace": [
        "a\n{% if n %}\nb\n{% endif %}\nc\n",
        "  {% if n %}\n    b\n  {% endif %}  c",
        "a {%- if n -%} b {%- endif -%} c",
        "a  {{- n -}}  b",
        "a\n  {{ n }}\n  b\n\n",
        "{% for x in xs -%}\n  {{ x }}\n{%- endfor %}",
        "{%+ if n %}\n  a{%+ endif %}",
        "  {%+ if n %}a{% endif %}",
        "{% if n +%}\na{% endif %}",
        "a\r\nb\rc\n",
        "{#- x -#}\n a {# y #}\n b",
        "\n",
        "",
        "{{ 'a\\nb' }}{{ \"it's\" }}{{ '\\u00e9\\x41\\'' }}",
        "\t{% set x = 1 %}\t{{ x }}\t",
    ],
    "scope": [
        "{% set x = 1 %}{% for i in xs %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}",
        "{% set x = 1 %}{% if yes %}{% set x = 2 %}{% endif %}{{ x }}",
        "{% if yes %}{% set x = 2 %}{% endif %}{{ x }}",
        "{% if no %}{% set x = 2 %}{% endif %}{{ x }}{{ x is defined }}",
        "{% if no %}{% set n = 2 %}{% endif %}{{ n }}",
        "{% if no %}{% set n = 2 %}{% else %}{% set n = 5 %}{% endif %}{{ n }}",
        "{% for i in xs %}{% if i == 1 %}{% set x = i %}{% endif %}{{ x }}{% endfor %}{{ x is defined }}",
        "{% for i in xs %}{% if i == 1 %}{% set n = i %}{% endif %}{{ n }}{% endfor %}{{ n }}",
        "{% for i in xs %}{% set n = n + 1 %}{{ n }}{% endfor %}{{ n }}",
        "{% for x in xs %}{% endfor %}{{ x is defined }}{{ x }}",
        "{% set x = 0 %}{% for x in xs %}{{ x }}{% endfor %}{{ x }}",
        "{% for n in xs %}{{ n }}{% endfor %}{{ n }}",
        "{% for xs in xs %}{{ xs }}{% endfor %}{{ xs }}",
        "{% for x in xs %}{% for x in words %}{{ x }}{% endfor %}{{ x }}{% endfor %}",
        "{% for m in messages %}{% set m = {'role': 'x'} %}{{ m.role }}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.role }}{{ m.role }}{{ m.role }}{% set m = {} %}{{ m.role }}{% endfor %}",
        "{% for m in messages %}{% with m = {'role': 'w'} %}{{ m.role }}{{ m.role }}{{ m.role }}{% endwith %}"
        "{% endfor %}",
        "{% for m in messages %}{% for m in people %}{{ m.name }}{{ m.name }}{{ m.name }}{{ m.role }}{% endfor %}"
        "{{ m.role }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{{ m.content }}{{ m.content is none }}{{ m.x is defined }}{{ m.x }}"
        "{{ m.x }}{% endfor %}",
        "{% for m in messages %}{% macro q(m) %}{{ m }}{{ m }}{{ m.role }}{{ m.role }}{{ m.role }}{% endmacro %}"
        "{{ q('z') }}{{ m.role }}{% endfor %}",
        "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}",
        "{% macro m() %}{{ x }}{% endmacro %}{% for x in xs %}{{ m() }}{% endfor %}",
        "{% set x = 1 %}{% set y %}{% set x = 2 %}{{ x }}{% endset %}{{ y }}{{ x }}",
        "{% set range = 5 %}{{ range }}",
        "{% set loop = 5 %}{{ loop }}{% for x in xs %}{{ loop.index }}{% endfor %}{{ loop }}",
        "{% for x in xs %}{% set loop = 1 %}{{ loop }}{% endfor %}",
        "{{ dict is defined }}{{ range is callable }}{{ namespace is defined }}{{ nosuch is defined }}",
        "{% for x in xs %}{% set y = x if loop.first else y %}{{ y }}{% endfor %}",
        "{% if yes %}{% for x in xs %}{% set y = x %}{% endfor %}{{ y is defined }}{% endif %}",
        "{% for x in xs %}{% if x %}{% set z = x %}{% else %}{% endif %}{{ z }}{% else %}{{ z is defined }}"
        "{% endfor %}",
    ],
}

EXPRESSIONS = {
    "operators": r"""
1 + 2 * 3, (1 + 2) * 3, 7 / 2, 7 // 2, -7 // 2, 7 % 3, -7 % 3, 2 ** 3 ** 2, 2 ** -1, -2 ** 2
'a' + 'b', 'a' * 3, 3 * 'a', [1] + [2], [0] * 2, (1,) + (2,), '%s-%d' % ('a', 1)
'a' ~ 1 ~ none ~ 1.0 ~ [] ~ nosuch, 1 ~ 2 + 3, 1 + 2 ~ 3, 'a' ~ 'b' * 2
1 < 2 < 3, 1 < 3 < 2, 3 > 2 == 2, 1 == 1.0 == true, 'a' < 'b', [1, 2] < [1, 3], 1 != 2 != 1
1 in [1], 'a' in 'cat', 'z' not in 'cat', 'a' in d, 2 not in xs, 1 in (2,), '' in ''
not 1 == 2, not yes and no, not (yes and no), yes or no and no, (yes or no) and no, not not 1
n and s, n or s, empty or 'x', null or empty, null and n, 0 or [] or {} or 'last', 1 and 2 and 3
n if n > 2 else s, -n, +n, - -n, -f, not n, -n ** 2, -(n ** 2), +yes
1 == '1', none == false, none == nosuch, nosuch == nosuch2, [] == (), 1 is true, true == 1
big * big, big // 7, 10 ** 20, 1e3, 1e100, 1.0, 0.1 + 0.2, 1_000, 0x1f, 0b11, 0o17, 1.5e-5, 5 / 1
1 / 0
1 % 0
'a' + 1
1 + 'a'
none + 1
nosuch + 1
1 < 'a'
1 in 5
'a' - 'b'
-s
xs.nosuch()
(1, 2, 3), (1,), (), [1, [2]], {'a': 1, 'b': [none]}, {1: 2, none: 3, (1, 2): 4}
{[]: 1}
1 if
'%s' % s, '%(a)s' % d, '%5.1f|%-4d|%04d' % (f, n, n), '%%' % (), '%s' % xs, '%r' % s
'%d' % s
'%s %s' % s
f * 2, f ** 2, f // 1, f % 1, n / 2, 3.0, 2.50, 1e16, 1e15, -0.0, 123456789.123456789
(n, s)[0], (n if yes), ((n)), n|string ~ s|upper, -n|abs, (-n)|abs, 2 ** n|int
'a' 'b' "c"
n == 3 and s == 'Hello, World' or no, n > 2 and not n > 5, n is odd and n is not even
    """,
    "lookups": r"""
d.a, d['a'], d.b.c, d.b.c[0], d['b']['c'][-1], d.get('a'), d.get('z'), d.get('z', 5), d[1], d['x y']
d['items'], d.keys is defined, d.keys()|list|length
d.items()
d.items is string, d.values is callable, d.get is callable, d.update is defined
d.nosuch, d['nosuch'], d.nosuch is defined, d.null, d.null is defined, d.null is none, nosuch is defined
d['null'] is defined, d.nosuch is none, messages[0].tool_calls is defined, messages[1].content is defined
messages[1].tool_calls is defined, messages[1].tool_calls is not defined, messages[9] is defined
messages[9].role is defined
nosuch.x is defined
{'a': nosuch}.a is defined, {'a': nosuch}['a'] is undefined, 'a' in {'a': nosuch}, {'a': nosuch}.a|default('x')
xs[0], xs[-1], xs[9], xs[-9] is defined, xs['0'] is defined, xs.0, xs[1.0] is defined, s[0], s[-1], s[99]
xs[:2], xs[1:], xs[::-1], xs[-2:], xs[5:], s[1:4], s[::-1], s[::2], s[-3:], s[:-3], pair[:1], xs[none:2]
xs['a':]
s[::0]
n[1:]
n.real, n.bit_length(), f.is_integer(), yes.real, s.upper is callable, xs.append is defined
xs.append(4)
xs.index(1), xs.count(3), pair.index('v'), pair.count('x'), d.copy()|length, d.b.keys(), d.b.values()
s.__class__, s.__class__ is defined, d.__len__ is defined, xs.__init__
s.__class__.__mro__
nosuch.a
nosuch['a']
nosuch.a.b
d.nosuch.x
d.nosuch['x']
null.a, null['a'], null.a is defined, n.nosuch, s.nosuch, s['upper'] is defined, s['nosuch'] is defined
null.a.b
nosuch()
d.a()
n()
d[xs]
d[nosuch] is defined, xs[nosuch] is defined, d[none] is defined, xs[true], d[true], d[1.0]
people[0].at.city, people[2].at.city is defined, people|length, people[0]['name'][0]
people[2].at.city
people[2].nosuch.city
[1, 2][0], 'abc'[1], {'a': 5}.a, {'a': 5}['a'], (1, 2)[1], [[1]][0][0], 'a'.upper(), [1].index(1)
d.b.c.0, d.b.c.1, nested.0.1.0
    """,
    "undefined": r"""
nosuch, nosuch ~ 'x', nosuch|string, [nosuch], nosuch|length, nosuch|list, nosuch or 'x', not nosuch
nosuch|default, nosuch|default('x'), d.nosuch|d('y'), empty|d('z'), empty|d('z', true),
null|d('z', boolean=true)
nosuch|upper, nosuch|trim, nosuch|join, nosuch|replace('a', 'b'), nosuch|first is defined, nosuch|int,
nosuch|float
nosuch|tojson
nosuch.x|default('x')
'x' in nosuch, nosuch in xs, nosuch is string, nosuch is none, nosuch is mapping, nosuch is iterable,
nosuch is number
nosuch < 1
nosuch == 1, nosuch != 1, nosuch is defined, nosuch is undefined, nosuch|sum, nosuch|map('upper')|list
nosuch|int + 1, nosuch|length > 0, (nosuch ~ '')|length
'%s' % nosuch, '{}'.format(nosuch), 'a'.join([nosuch])
-nosuch
nosuch|abs
nosuch[0]
nosuch|attr('x')
nosuch is nosuch
n is nosuch
n|nosuch
n|nosuch if no else 'fine'
'y' if n is nosuch
(n is defined and n is nosuch) if no else 1
    """,
    "text methods": r"""
s.upper(), s.lower(), s.title(), s.swapcase(), s.casefold(), s.capitalize(), 'ß'.upper(), 'İ'.lower(),
'ΑΣ'.lower()
s.split(', '), s.split(), s.split('o', 1), s.rsplit('o', 1), text.splitlines(), text.splitlines(true),
'a,b'.split(',')[-1]
s.strip('Hd'), text.strip(), text.lstrip()|length, text.rstrip()|length, s.lstrip('H'), '\n a'.lstrip('\n')
s.replace('l', 'L'), s.replace('l', '', 1), s.replace('', '-'), s.replace('x', 'y')
s.startswith('He'), s.startswith(('x', 'H')), s.endswith('d'), s.find('o'), s.rfind('o'), s.index('o'),
s.count('l')
s.replace(old='l', new='x')
s.index('z')
s.partition(', '), s.rpartition('o'), 'abc'.partition('x'), s.removeprefix('Hello'), s.removesuffix('World')
', '.join(words), ''.join(['a', s]), s.join(['a', 'b']), '-'.join('abc'), ','.join(words|map('upper')),
','.join([])
','.join(xs)
s.center(20), s.ljust(15) ~ '|', s.rjust(15, '.'), '5'.zfill(3), '-5'.zfill(4), 'a\tb'.expandtabs(4)
s.isdigit(), '12'.isdigit(), s.isalpha(), 'a'.islower(), ' '.isspace(), 'A'.isupper(), 'a1'.isalnum(),
'x'.isidentifier()
'{} {1}'.format(1, 2)
'{} {}'.format(1, s), '{0}{0}'.format(n), '{a}'.format(a=n), '{:>5}|{:.2f}'.format(n, f), '{{}}'.format()
'{a}-{b}'.format_map({'a': 1, 'b': s}), '{0.nosuch}'.format(n), '{0[a]}'.format(d), '{!r}'.format(s)
'{}'.format()
'{0.__class__}'.format(s)
s.encode()|length, s.encode('utf-8').decode('utf-8')
s.translate({72: 'J', 101: none}), s.maketrans('a', 'b'), s.translate(s.maketrans('lo', '01'))
'plain'.partition('l'), 'plain'.rpartition('z'), ('a' ~ 'b').split('b'), 'x'.upper() + s, 'lit'.replace('i', s)
s.upper(1)
s.split('')
s.nosuch()
s.upper().lower().title()[0], (s ~ s).count('l'), s.split(',')[0].strip().upper(), s[0].upper() ~ s[1:]
    """,
    "numbers, constants": r"""
1, 1.0, -1, 1e5, 10 ** 30, 1 / 3, 2.0 ** 0.5, true, false, none, True, False, None, 0, -0.0, 1e-7
1 == true, true + 1, true ~ '', none ~ '', [true, none, 1.5, 'a'], {'a': true}, 1.10, 100000000000000000.0
n, f, yes, no, null, big, xs, d, pair, nested, words, people, empty, nothing, messages
yes + 1, yes == 1, yes is true, [yes], {'k': no}, yes|string, yes|int, '%s' % yes, yes ~ no, yes|tojson, -yes,
yes * 2
yes == true, yes is sameas true, no is false, yes is boolean, yes is integer, n is integer, f is float,
yes is number
range(3), range(3)|list, range(1, 9, 3)|list, range(3)[1], range(3)|length, 2 in range(3)
range(1000000)
dict(a=1, b=2), dict([('x', 1)]), dict({'q': 1}, r=2), dict(), dict.fromkeys('ab', 1), dict(d.b)
dict.nosuch is defined
dict.__init__
'it\'s "q"', ['it\'s "q"', 'a\nb', 'é🙂', '\\'], {'it\'s': 'x'}, [s, text]
lipsum(1, false, 3, 5), lipsum(n=1)|length > 5
strftime_now('%Y-%m-%d'), strftime_now('%d %b %Y %H:%M'), strftime_now(''), strftime_now('%%')
raise_exception('no ' ~ s)
raise_exception()
    """,
    "filters": r"""
-5|abs, f|abs, 'a'|attr('upper') is defined, s|attr('upper')(), d|attr('a') is defined,
xs|attr('nosuch') is defined
xs|batch(2)|list, xs|batch(2, 'x')|list, 'abcd'|batch(3)|list, xs|slice(2)|list, xs|slice(2, 'x')|list,
'abc'|slice(2)|list
s|capitalize, 'ÉA b'|capitalize, s|center(20), s|center(3), n|center(5)
{'b': 1, 'A': 2}|dictsort, {'b': 1, 'A': 2}|dictsort(true), {'b': 1, 'A': 2}|dictsort(by='value', reverse=true)
'<a href="x">\'&'|e, '<'|escape, '<'|e|e, '<'|forceescape, ('<'|e)|forceescape, n|e, null|e
1000|filesizeformat, 1500000|filesizeformat, 1|filesizeformat, 1024|filesizeformat(true), '5000'|filesizeformat
xs|first, s|first, nothing|first is defined, d|first, xs|last, s|last, nothing|last is defined, pair|last
'3.5'|float, 'x'|float, 'x'|float(1.5), 3|float, '3'|int, '3.9'|int, 'x'|int(7), '0x1f'|int(base=16), 3.9|int,
null|int
'%s-%d'|format('a', 1), '%(a)s'|format(a=n), '%5s|'|format(s), '%s'|format(xs), '%%'|format, s|format
people|groupby('age')|length, people|groupby('age')|map(attribute='grouper')|list,
people|groupby('at.city', default='?')|length
people|groupby('age')|map('last')|map('length')|list,
people|groupby('name', case_sensitive=true)|map('first')|list
text|indent, text|indent(2, true), text|indent(2, blank=true), text|indent('> '),
text|indent(width=1, first=true), ''|indent
d.b|items|list, {}|items|list, nosuch|items|list
n|items|list
words|join, words|join('-'), xs|join(', '), people|join(', ', attribute='name'), 'abc'|join('.'),
nothing|join('x'), [null, 1]|join
s|length, xs|length, d|length, s|count, nested|count, words|list, 'ab'|list, d|list, range(2)|list, pair|list
n|length
s|lower, s|upper, s|title, "it's a-b c_d (e)"|title, 'ß'|upper, n|upper, null|lower, xs|upper
words|map('upper')|list, people|map(attribute='name')|list, people|map(attribute='at.city', default='?')|list,
words|map('replace', 'a', 'z')|join
people|map(attribute='nosuch')|list, [[1, 2], [3]]|map('first')|list, nested|map(attribute=0)|list,
words|map('default', 'x')|list
words|map()|list
words|map('nosuch')|list
xs|max, xs|min, words|max, words|min(case_sensitive=true), people|max(attribute='age'), nothing|max is defined
d|pprint, xs|pprint, s|pprint, people|pprint, null|pprint
[7]|random, 'a'|random, nothing|random is defined
xs|reject('odd')|list, xs|select('gt', 1)|list, xs|select|list, [0, 1, '']|reject|list,
xs|select('in', [1, 2])|list, xs|select('!=', 1)|list
people|rejectattr('at')|map(attribute='name')|list,
people|selectattr('age', 'equalto', 30)|map(attribute='name')|list,
people|selectattr('at.city', 'eq', 'Oslo')|list|length, people|selectattr('at', 'undefined')|list|length
people|selectattr('age', '==', 30)|list|length, people|selectattr('age', '>=', 30)|list|length,
people|rejectattr('age', 'lt', 30)|list|length
messages|selectattr('role', 'equalto', 'user')|list,
messages|selectattr('content', 'string')|map(attribute='content')|first
s|replace('l', 'L'), s|replace('l', 'L', 1), n|replace('3', 'x'), s|replace('', '-'), '<'|replace('<', '&'),
s|replace('H', n)
xs|reverse|list, s|reverse, words|reverse|join, xs|sort|reverse|list, 4.567|round, 4.5|round, 4.567|round(1),
4.1|round(0, 'ceil'), 4.9|round(method='floor'), n|round
n|reverse
'<b>'|safe, s|safe|length, n|safe, '<b>'|safe ~ '<', ('<b>'|safe) + '<', '<' + ('b'|safe), ('<'|e) ~ ('<'|e),
('<'|e) + ('<'|safe) + '<'
('<b>'|safe)|upper, ('<b>'|e)|lower, (s|safe) is string, ('<'|safe) == '<', ('<'|safe)|replace('<', '>'),
('<'|safe)|tojson, ['<'|safe], ('<'|safe)|string
('<'|safe) * 2, ('<a'|safe)[1:], ('<a>'|safe).strip('<') + '<', ('<'|safe)|trim + '<', ['<'|safe, '<']|join,
'<'.join(['a'|safe, 'b']), ('<'|safe).join(['>', 'x'])
('<'|safe).upper() + '<', ('%s'|safe) % '<', ('{}'|safe).format('<'), ('a<'|safe).split('a')|last + '<',
('<'|safe)|indent + '<', ('<'|safe)|default('') + '<'
words|sort, words|sort(case_sensitive=true), words|sort(reverse=true),
people|sort(attribute='age,name')|map(attribute='name')|list, people|sort(attribute='name', reverse=true)|first,
xs|sort
[1, 'a']|sort
n|string ~ 1, xs|string, null|string, s|string is sameas s, ' a <b>x</b> &amp; <!-- c -->y'|striptags,
'<p>a</p>  b'|striptags
xs|sum, people|sum(attribute='age'), xs|sum(start=10), nothing|sum, [[1], [2]]|sum(start=[]), [0.5, 0.25]|sum
words|sum
text|trim, s|trim('Hd'), n|trim, '  '|trim, '\n\t x \n'|trim, 'xax'|trim('x'), null|trim, text|trim|length
s|truncate(5), s|truncate(8, true), s|truncate(8, true, '…'), s|truncate(5, false, '..', 0), s|truncate(11),
s|truncate(50)
words|unique|list, words|unique(true)|list, people|unique(attribute='age')|map(attribute='name')|list,
'aab'|unique|list
'a b&c/é'|urlencode, {'a b': 'c&d', 'e': 1}|urlencode, [('x', 'y')]|urlencode, n|urlencode
'see http://a.com/x?y=1&z=<2> or www.b.org, c@d.com.'|urlize,
'http://a.com'|urlize(5, true, target='_blank', rel='x')
'one two, three-four'|wordcount, ''|wordcount, 'a b c d e f'|wordwrap(5), 'abcdefghij klm'|wordwrap(4),
text|wordwrap(7), 'a-b c'|wordwrap(3, false)
{'a': 1, 'b': none, 'c': '<'}|xmlattr, {'a': nosuch}|xmlattr, {}|xmlattr, {'x': 1}|xmlattr(false)
{'a b': 1}|xmlattr
n|center('x')
s|truncate('x')
s|replace('a')
xs|join(1), xs|join(null)
s|upper(1)
s|default(nosuch) ~ n|default(1, 2, 3)
    """,
    "tojson": r"""
d|tojson
d.b|tojson, s|tojson, n|tojson, f|tojson, yes|tojson, null|tojson, xs|tojson, pair|tojson, text|tojson,
big|tojson, {}|tojson, []|tojson
'<a href=\'x\'>&"\\'|tojson, 'é🙂\u2028\x00\x7f'|tojson, 'é🙂'|tojson(ensure_ascii=true), 'é'|tojson(true)
d.b|tojson(indent=2), nested|tojson(indent=1), {'a': {}, 'b': []}|tojson(indent=4),
{'a': [1]}|tojson(indent='--'), [1, [2]]|tojson(indent=0)
{'b': 1, 'a': [1, 2]}|tojson(sort_keys=true), {'b': 1, 'a': 2}|tojson(separators=(',', ':')),
{'b': 1}|tojson(false, none, [';', '='], true)
{'b': 1, 'a': {'d': s, 'c': none}}|tojson(indent=2, sort_keys=true, separators=(',', ' : '))
{1: 2, none: 3, true: 4, 1.5: 5}|tojson, [1.0, 1e100, 0.1]|tojson, {1: 'a', 'b': 2}|tojson
{1: 'a', 'b': 2}|tojson(sort_keys=true)
{(1, 2): 3}|tojson
[nosuch]|tojson
range(3)|tojson
words|map('upper')|tojson
namespace(a=1)|tojson
d|tojson(nosuch=1)
d|tojson(separators=',')
d|tojson(indent='x' * 3)|length, (d.b|tojson)|upper, d.b|tojson ~ s|tojson, (s|tojson)|tojson
messages|tojson, messages[0]|tojson(indent=2), messages|map('tojson')|join('\n'),
people|map(attribute='name')|list|tojson
    """,
    "tests": r"""
yes is boolean, n is boolean, range is callable, n is callable, s.upper is callable, n is defined,
n is divisibleby(3), n is divisibleby 2
n is eq 3, n is equalto(3), n is ==(3)
('<'|e) is escaped, s is escaped, n is even, n is odd, no is false, yes is true, n is true, f is float,
n is float, 1.0 is float
'upper' is filter, 'nosuch' is filter, 'odd' is test, 'nosuch' is test, 'tojson' is filter
n is ge 3, n is gt 3, n is greaterthan 2, n is le 3, n is lt 3, n is lessthan(4), n is ne 3
1 is in xs, 9 is in xs, 'H' is in s, 'a' is in d, 1 is not in xs
n is integer, f is integer, yes is integer, xs is iterable, s is iterable, n is iterable, d is iterable,
null is iterable
'abc' is lower, s is lower, 'ABC' is upper, s is upper, n is lower
d is mapping, xs is mapping, s is mapping, null is mapping, null is none, n is none, nosuch is none
-2 is none, (- +2) is none, -2 is defined
n is number, f is number, yes is number, s is number, xs is sequence, s is sequence, d is sequence,
n is sequence, range(2) is sequence
n is sameas n, null is sameas none, yes is sameas(true), s is sameas(s), 1 is sameas 1.0, 1 is sameas true
s is string, n is string, ('a'|safe) is string, null is string, nosuch is undefined, n is undefined,
d.a is undefined, d.nosuch is undefined
n is not defined, n is not string, not n is string, s is string and n is number, n is number == true,
n is odd or nosuch
people|selectattr('name', 'defined')|list|length, words|select('lower')|list, xs|select('divisibleby', 2)|list,
[1, 'a', none]|select('string')|list
s is divisibleby 2
s is even
null is gt 1
n is in 5
n is sameas
n is filter
    """,
    "objects": r"""
cycler('a', 'b').next(), cycler(1).current
cycler()
joiner()() ~ 'x', joiner('|')()
namespace(a=1).a, namespace({'b': 2}).b, namespace() is mapping
namespace(1)
caller is defined, self is defined, varargs is defined
(1, 2)|list, {'a': 1}.items()|list, {'a': 1}.keys()|first, {'a': 1}.values()|list|first, d.b.items()
xs.copy() + [1], xs.sort is callable
xs.sort()
d.update({'z': 1})
d.pop('a')
d.setdefault('z', 1)
d.clear is defined, xs.pop is defined
xs.pop()
    """,
}

PROGRAMS = [
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}"
    "{{ c.current }}",
    "{% set j = joiner(', ') %}{% for x in words %}{{ j() }}{{ x }}{% endfor %}",
    "{% set f = s.upper %}{{ f() }}{% set g = '{}-{}'.format %}{{ g(1, s) }}{% set h = ','.join %}{{ h(words) }}",
    "{% set parts = s.split(', ') %}{% set first, last = parts %}{{ last }} {{ first }}",
    "{% for a, b in people|groupby('age') %}{{ a }}:{% for p in b %}{{ p.name }}{% endfor %} {% endfor %}",
    "{% for g in people|groupby('age') %}{{ g.grouper }}{{ g.list|length }}{{ g }}{% endfor %}",
    "{% set x = '' %}{% for m in messages %}{% set x = x ~ m.role %}{% endfor %}[{{ x }}]",
    "{% set x = 'a' + s %}{% set x = x + s + 'b' ~ n %}{{ x }}{{ x + x + '' + x }}{{ '' + s }}{{ s + '' }}",
    "{{ 'a' + s + 'b' }}{{ s + s }}{{ s + n|string }}{{ (s + 'x')|upper + 'y' }}{{ ['a'] + words }}",
    "{{ 'a' + n }}",
    "{{ n + n + n }}{{ n + 1 + 1 }}{{ 1 + n|length }}",
    "{{ ('<'|safe) + s + '<b>' }}{{ '<b>' + ('<'|safe) }}{{ '<' ~ ('<'|safe) ~ '>' }}{{ '<' + ('<'|safe) + '<' }}",
    "{{ 'a' + ('<'|e) + '<' }}{% set m = '<'|safe %}{{ m }}{{ m + '<' }}{{ m ~ '<' }}{{ [m, '<']|join }}{{ m|e }}",
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}"
    "{% endif %}{% for m in rest %}{{ m['role'] + ': ' + (m['content'] or '') + '\\n' }}{% endfor %}",
    "{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}",
    "{% set ns = namespace(last=-1) %}{% for m in messages[::-1] %}{% set i = (messages|length - 1) - loop.index0 %}"
    "{% if m.role == 'user' and ns.last == -1 %}{% set ns.last = i %}{% endif %}{% endfor %}{{ ns.last }}",
    "{% macro show(v, depth) %}{% if v is mapping %}{% for k, x in v|items %}{{ '  ' * depth }}{{ k }}:\n"
    "{{ show(x, depth + 1) }}{% endfor %}{% elif v is iterable and v is not string %}{% for x in v %}"
    "{{ show(x, depth) }}{% endfor %}{% else %}{{ '  ' * depth ~ v }}\n{% endif %}{% endmacro %}{{ show(d, 0) }}"
    "{{ show(people, 1) }}",
    "{% for x in xs %}{% if loop.index0 % 2 == 0 %}{% set k = 'even' %}{% else %}{% set k = 'odd' %}{% endif %}"
    "{{ k }}{% endfor %}",
    "{{ raise_exception('x') if messages|length > 9 else 'fine' }}{{ nosuch is defined and nosuch.x }}",
    "{% if messages[0].role == 'user' and messages[0].content is string and messages[0].content|length > 3 %}y"
    "{% endif %}",
    "{% if nosuch is defined and nosuch.x or not (d.a == 2) and d.b is mapping %}y{% endif %}",
    "{% set m = messages[0] %}{{ m.role }}{{ m.content[:2] }}{{ m['content'][-1] }}{{ m.get('x', 'none') }}"
    "{{ m.items()|list }}",
    "{% for k in d.b.keys() %}{{ k }}{% endfor %}{% for v in d.b.values() %}{{ v }}{% endfor %}"
    "{% for t in d.b.items() %}{{ t }}{% endfor %}",
    "{{ '<think>' in s }}{{ s.split('</think>')[-1].lstrip('\\n') }}{{ s.split(',')[0].rstrip().split('e')[-1] }}",
    "{% set a = [1] %}{% set b = a * 3 %}{{ b }}{{ a + b }}{{ (a + b)|sum }}{{ [a, b] == [[1], [1, 1, 1]] }}",
    "{% set t = {'a': {'b': s}} %}{{ t.a.b }}{{ t['a']['b'][0] }}{{ t.a.c is defined }}{{ 'x' if t.c is defined }}",
    "{{ (messages|first).role }}{{ (messages|last)['role'] }}{{ messages|map(attribute='role')|join(',') }}",
    "{{ words|select('equalto', 'b')|list|first|default('none') }}"
    "{{ words|select('equalto', 'q')|first|default('none') }}",
    "{% if words|select('equalto', 'b')|list %}y{% endif %}{{ 'y' if words|reject('in', words)|list else 'n' }}",
    "{% set x = s if s is string else s|tojson %}{{ x }}{% set y = d.b if d.b is string else d.b|tojson %}{{ y }}",
    "{%- for p in people %}\n  {{- p.name }}\n  {%- if not loop.last %}, {% endif -%}\n{% endfor %}\n",
    "{% set x = namespace(v=s) %}{% set y = x.v.split(' ') %}{{ y[0] }}{{ x.v[0] }}{{ x['v'] }}",
    "{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% elif x == 4 %}{% break %}{% endif %}{{ x }}"
    "{{ loop.index }}{% endfor %}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{% set r = m('x') %}{{ r }}{{ r + 'y' }}{{ r is string }}{{ [r] }}"
    "{{ r|tojson }}",
    "{% for c in text %}{{ c|tojson }}{% endfor %}{{ text|list|length }}",
    "{{ s|upper|lower|title|replace('H', 'J')|trim|length }}",
    "{{ n is defined and n > 2 and s and 'yes' or 'no' }}{{ nosuch and nosuch.x }}{{ (nosuch or d).a }}",
    "{% set a = 1 %}{% set b = a %}{% set a = 2 %}{{ a }}{{ b }}{% set a, b = b, a %}{{ a }}{{ b }}",
    "{% if x is not defined %}{% set x = 'default' %}{% endif %}{{ x }}",
    "{% if n is not defined %}{% set n = 'default' %}{% endif %}{{ n }}",
    "{% set n = n if n is defined else 1 %}{{ n }}{% set q = q if q is defined else 1 %}{{ q }}"
    "{% set w = w|default(2) %}{{ w }}",
    "{{ [1, 2, 3][1:]|first }}{{ {'a': [1, 2]}['a'][-1] }}{{ (1, 2)[::-1] }}{{ 'abc'[1:][::-1] }}"
    "{{ range(10)[2:8:2]|list }}",
    "{{ d|length }}{{ d|list|length }}{% for k, v in d.items() %}{{ k }}{% endfor %}",
    "{{",
    "{% if %}",
    "{% endif %}",
    "{% for x in xs %}",
    "{{ n",
    "{{ n }",
    "{% nosuch %}",
    "{{ 'a }}",
    "{{ n | }}",
    "{{ (1 }}",
    "{% set %}",
    "{{ a b }}",
    "{{ @ }}",
    "{% macro %}{% endmacro %}",
    "{# open",
    "{% raw %}",
    "}} %} #} { % {",
]  # fmt: skip


def expressions(line: str) -> list[str]:
    """The expressions of a line, apart."""
    line = line.strip().removesuffix(",")
    found = [""]
    depth = 0
    for token in re.findall(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|.""", line):
        depth += (token in ("(", "[", "{")) - (token in (")", "]", "}"))
        if token == "," and depth == 0:
            found.append("")
        else:
            found[-1] += token
    return [expression.strip() for expression in found]


Outcome = tuple[str | None, Exception | None]


def attempt(render: Callable[[], str]) -> Outcome:
    random.seed(0)
    try:
        return render(), None
    except Exception as error:
        return None, error


def outcomes(source: str, variables: Variables) -> tuple[Outcome, Outcome, Outcome]:
    """What transformers, `render` and `trace` make of a template; that the variables stay as they are."""
    given = copy.deepcopy(variables)
    theirs = attempt(lambda: oracle(source)(**copy.deepcopy(variables)))
    ours = attempt(lambda: Template(source).render(**given))
    traced = attempt(lambda: Template(source).trace(**given))
    assert given == variables, "the variables were changed"
    return theirs, ours, traced


def check(source: str, variables: Variables = CONTEXT) -> None:
    """All three make the same of a template: the same text, or they all fail."""
    (theirs, their_error), (ours, our_error), (traced, trace_error) = outcomes(source, variables)
    assert anonymous(ours) == anonymous(theirs), (source, their_error, our_error)
    assert anonymous(traced) == anonymous(ours), (source, our_error, trace_error)
    assert isinstance(our_error, TemplateError | None)
    assert isinstance(trace_error, TemplateError | None)
    if isinstance(our_error, TemplateError) and isinstance(trace_error, TemplateError):
        assert our_error.line == trace_error.line


def anonymous(text: str | None) -> str | None:
    """`text` without addresses of objects."""
    return text and re.sub(r" at 0x\w+", "", text)


def named(table: dict[str, list[str]]) -> list[Any]:
    return [pytest.param(line, id=f"{name}-{line}") for name, lines in table.items() for line in lines]


@pytest.fixture(autouse=True)
def _same_time() -> Iterator[None]:
    with fixed_clock():
        yield


@pytest.mark.parametrize("source", named({**STATEMENTS, "program": PROGRAMS}))
def test_program(source: str) -> None:
    check(source)


@pytest.mark.parametrize("line", named({name: lines.strip().splitlines() for name, lines in EXPRESSIONS.items()}))
def test_expressions(line: str) -> None:
    for expression in expressions(line):
        check(f"{{{{ {expression} }}}}")
        check(f"{{{{ [{expression}] }}}}{{% set x = {expression} %}}{{{{ x ~ '' }}}}")


def test_no_filter_and_no_test_is_forgotten() -> None:
    table = " ".join(EXPRESSIONS.values())
    assert set(re.findall(r"[|] ?(\w+)", table)) >= FILTERS.keys()
    used = re.findall(r" is (?:not )?(\w+)|select\('([^']+)'|attr\('\w+', '([^']+)'", table)
    assert {name for names in used for name in names} >= TESTS.keys() - {"<", "<=", ">"}


def test_fromjson_goes_beyond_transformers() -> None:
    variables = {"t": '{"a": [1, "x", null], "b": {"c": true}}', "plain": '"text"', "n": "12"}
    source = "{% set v = t|fromjson %}{{ v.a[1] }}{{ v.b.c }}{{ v|tojson }}{{ plain|fromjson }}{{ (n|fromjson) + 1 }}"
    template = Template(source)
    text = 'xTrue{"a": [1, "x", null], "b": {"c": true}}text13'
    assert template.render(**variables) == text
    traced = template.trace(**variables)
    assert traced == text
    assert (0, 1, "t.a[1]") in traced.spans
    assert (1, 5, "t.b.c") in traced.spans
    for bad in ("{{ '{'|fromjson }}", "{{ 1|fromjson }}", "{{ nosuch|fromjson }}", "{{ t|fromjson(1) }}"):
        with pytest.raises(TemplateError):
            Template(bad).render(**variables)
        with pytest.raises(TemplateError):
            Template(bad).trace(**variables)


# Random templates


NAMES = ("n", "f", "yes", "null", "s", "text", "empty", "xs", "words", "nothing", "pair", "d", "people", "messages")
INSIDE = ("x", "y", "i", "nosuch")
TEXT_FILTERS = (
    "upper", "lower", "trim", "title", "capitalize", "e", "safe", "replace('l', 'xx')", "replace(s, 'y')", "indent(2)",
    "truncate(4)", "center(9)", "wordcount", "urlencode", "reverse|join", "striptags", "int", "float", "forceescape",
)  # fmt: skip
FILTERS_USED = (
    "first", "last", "length", "join", "join(', ')", "list", "sort", "reverse|list", "tojson", "string",
    "unique|list", "map('string')|list", "map('trim')|join", "select|list", "reject('none')|list",
    "map(attribute='name')|list", "selectattr('name')|list", "sum", "max", "batch(2)|list", "default([])",
    "tojson(indent=1)", "default('d')", "default('d', true)",
)  # fmt: skip
METHODS = (
    "upper()", "lower()", "strip()", "split()", "split('l')", "split(', ', 1)", "replace('l', 'LL')", "lstrip('H')",
    "startswith('He')", "endswith(s)", "find('o')", "join(words)", "title()", "splitlines()", "partition(' ')",
    "format(n)", "count('l')", "zfill(5)", "rstrip()", "rsplit('o')[0]", "isdigit()",
)  # fmt: skip
TESTS_USED = (
    "defined", "not defined", "string", "none", "not none", "mapping", "iterable", "number", "odd", "true",
    "boolean", "sequence", "sameas(null)", "eq(n)", "in(xs)", "divisibleby(2)", "integer", "undefined", "lower",
)  # fmt: skip
NUMERIC = ("+", "-", "*", "//", "%", "==", "!=", "<", ">=", "/", "~")
LOOP = (
    "index", "index0", "first", "last", "length", "revindex", "previtem", "nextitem", "depth", "cycle('a', 'b')",
    "changed(x)",
)  # fmt: skip
LITERALS = (
    "0", "1", "-2", "2.5", "'a'", "'<l>'", "''", "true", "none", "[]", "{}", "[1, 'a']", "{'a': 1}", "('x', 2)",
)  # fmt: skip
NUMBERS = ("n", "1", "2", "f", "yes", "s|length", "xs[0]", "loop.index", "d.a", "people[0].age", "i|int", "-n")
KINDS = (
    "add", "concat", "numbers", "compare", "logic", "filter", "filter", "method", "test", "in", "item", "attribute",
    "slice", "if", "not", "list", "dict", "call", "any",
)  # fmt: skip


@st.composite
def expression(draw: st.DrawFn, depth: int = 3) -> str:
    """An expression; most of them have a value in `CONTEXT`."""

    def inner() -> str:
        return draw(expression(depth - 1))

    def one(*choices: str) -> str:
        return draw(st.sampled_from(choices))

    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return one(*NAMES, *NAMES, *INSIDE, *LITERALS, f"loop.{one(*LOOP)}", "ns.v", "m('q')", "m()")
    match one(*KINDS):
        case "add":
            return f"({inner()} ~ '' + {inner()}|string + 'x')"
        case "concat":
            return f"({inner()} ~ {inner()} ~ {inner()})"
        case "numbers":
            return f"({one(*NUMBERS)} {one(*NUMERIC)} {one(*NUMBERS)})"
        case "compare":
            return f"({inner()} {one('==', '!=')} {inner()}) ~ ({one(*NUMBERS)} < {one(*NUMBERS)} <= {one(*NUMBERS)})"
        case "logic":
            return f"({inner()} {one('and', 'or')} {inner()})"
        case "filter":
            value = one(inner(), f"({inner()} ~ s)", "xs", "words", "people", "d")
            return (
                f"({value}|{one(*FILTERS_USED)})" if draw(st.booleans()) else f"(({value} ~ '')|{one(*TEXT_FILTERS)})"
            )
        case "method":
            return f"({inner()} ~ ''){one('', '', '[1:]')}.{one(*METHODS)}"
        case "test":
            return f"({inner()} is {one(*TESTS_USED)})"
        case "in":
            return f"({inner()} {one('in', 'not in')} {one('xs', 'words', 'pair', '[s, n]', 'd.b.c')})"
        case "item":
            return f"{one('d', 'xs', 's', 'people', 'messages', 'pair', inner())}[{one('0', '-1', '9', inner())}]"
        case "attribute":
            owner = one("d", "x", "people[0]", "messages[1]", "people[1].at", inner())
            return f"{owner}.{one('a', 'name', 'content', 'role', 'b', 'at', 'tool_calls')}"
        case "slice":
            step = one("", "", ":2", ":-1")
            return f"{one('s', 'xs', 'pair', '(s ~ n)')}[{one('', '1', '-2', 'n')}:{one('', '2', '-1', 'n')}{step}]"
        case "if":
            return f"({inner()} if {inner()}{one('', f' else {inner()}')})"
        case "not":
            return f"(not {inner()})"
        case "list":
            return f"[{inner()}, {inner()}]"
        case "dict":
            return f"{{'k': {inner()}, s: {inner()}}}"
        case "call":
            return f"{one('m', 'r')}({inner()})"
    return f"({inner()} {one('+', '-', '*', '<', '>', 'in')} {inner()})"


@st.composite
def statement(draw: st.DrawFn, depth: int = 2, in_loop: bool = False) -> str:
    def inner(in_loop: bool = in_loop) -> str:
        return draw(program(depth - 1, in_loop))

    def one(*choices: str) -> str:
        return draw(st.sampled_from(choices))

    def value(depth: int = 2) -> str:
        return draw(expression(depth))

    kinds = ("text", "print", "print", "print", "set")
    if depth:
        kinds += ("if", "if", "for", "for", "set block", "filter", "with", "macro", "namespace", "call", "generation")
    if in_loop:
        kinds += ("break",)
    kind = one(*kinds)
    name = one("x", "y", "i", "s", "xs")
    dash, plus = one("", "", "-"), one("", "", "-", "+")
    if kind == "text":
        return one("a", " ", "\n", "\n  ", "<b>\n", "é\n\n", *FIELDS)
    if kind == "print":
        return f"{{{{{dash} {value(3)} {one('', '', '-')}}}}}"
    if kind == "set":
        target, given = one((name, value()), ("x, y", f"({value()}, {value()})"), ("x, y", value()))  # type: ignore[arg-type]
        return f"{{%{dash} set {target} = {given} %}}"
    if kind == "if":
        middle = one("", f"{{% elif {value()} %}}{inner()}") + one("", f"{{% else %}}{inner()}")
        return f"{{%{plus} if {value()} %}}{inner()}{middle}{{%{dash} endif %}}"
    if kind == "for":
        target, iterated = one(("x", value()), ("x", "xs"), ("y", "messages"), ("x", "people"), ("x, y", "d.b.items()"))  # type: ignore[arg-type]
        test = one("", "", f" if {value(1)}")
        otherwise = one("", f"{{% else %}}{inner()}")
        return f"{{% for {target} in {iterated}{test} {dash}%}}{inner(True)}{otherwise}{{% endfor %}}"
    if kind == "set block":
        return f"{{% set {name}{one('', '|upper', '|trim|e')} %}}{inner()}{{% endset %}}"
    if kind == "filter":
        return f"{{% filter {one('upper', 'trim', 'e', 'indent(1)')} %}}{inner()}{{% endfilter %}}"
    if kind == "with":
        return f"{{% with x = {value()}, y = x %}}{inner()}{{% endwith %}}"
    if kind == "macro":
        parameters = one("", "x", "x, y=1", "x=n")
        last = one("x", "caller", "varargs", "kwargs")
        return f"{{% macro m({parameters}) %}}{inner(False)}{{{{ {last} }}}}{{% endmacro %}}"
    if kind == "namespace":
        return f"{{% set ns = namespace(v={value()}) %}}{inner()}{{% set ns.v = {value()} %}}{{{{ ns.v }}}}"
    if kind == "call":
        return f"{{% call{one('', '(x)')} m({value()}) %}}{inner(False)}{{% endcall %}}"
    if kind == "generation":
        return f"{{% generation %}}{inner(False)}{{% endgeneration %}}"
    return f"{{% if {value()} %}}{{% {one('break', 'continue')} %}}{{% endif %}}"


PRELUDE = (
    "{% macro m(x, y=1) %}<{{ x }}{{ y }}{{ caller() if caller is defined }}>{% endmacro %}"
    "{% macro r(c) %}{% if c is string %}{{ c }}{% elif c is iterable %}{% for p in c %}{{ p }};{% endfor %}{% endif %}"
    "{% endmacro %}{% set ns = namespace(v=s) %}{% set x = {'a': 1} %}{% set i = 2 %}"
)
FIELDS = (
    "{{ x.name }}{% if x.name %}{{ x['name'] ~ x.at.city }}{% endif %}{{ x.name is defined }}{{ x.at is defined }}",
    "{{ y.role }}{{ y['role'] == 'user' }}{% if y.content %}{{ y.role + y.content }}{% endif %}{{ y.role }}",
)
"""What loops over messages do: they read the same fields again and again."""
OWNERS = {"world": "s", "oslo": "people[1].at.city", "shadow": "d.items", "assistant": "messages[1].role"}
"""Words of `CONTEXT` that stand nowhere else."""


def check_owners(source: str) -> None:
    """Words are told to come from where they do."""
    try:
        traced = Template(source).trace(**CONTEXT)
    except TemplateError:
        return
    assert [start for start, _, _ in traced.spans] == [0, *[end for _, end, _ in traced.spans[:-1]]][
        : len(traced.spans)
    ]
    for word, owner in OWNERS.items():
        for match in re.finditer(word, traced, re.IGNORECASE):
            paths = {path for start, end, path in traced.spans if start < match.end() and end > match.start()}
            assert paths == {owner}


RANDOM = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def program(depth: int = 2, in_loop: bool = False) -> st.SearchStrategy[str]:
    return st.lists(statement(depth, in_loop), min_size=1, max_size=3).map("".join)


@RANDOM
@given(expression())
def test_random_expression(source: str) -> None:
    check(f"{PRELUDE}{{{{ {source} }}}}")
    check_owners(f"{PRELUDE}{{{{ {source} }}}}")


@RANDOM
@given(program())
def test_random_program(source: str) -> None:
    check(PRELUDE + source)
    check_owners(PRELUDE + source)


# Errors


def their_line(error: Exception) -> int | None:
    if isinstance(error, TemplateSyntaxError):
        return error.lineno
    frames = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return frames[-1] if frames else None


LINES = {
    "a\n{{ nosuch.x }}\n": 2,
    "a\n{% for x in xs %}\n{{ x }}\n{{ x.y.z }}\n{% endfor %}\n": 4,
    "a\n{% for x in nosuch.x %}\n{{ x }}\n{% endfor %}\n": 2,
    "a\n{% for x in xs if x.y.z %}\n{{ x }}\n{% endfor %}\n": 2,
    "{% for x in nothing %}\na\n{% else %}\n{{ nosuch.x }}\n{% endfor %}": 4,
    "{% for x in xs %}\n{% for y in xs %}\n{% if y %}\n{{ loop.index + s }}\n{% endif %}{% endfor %}{% endfor %}": 4,
    "{% macro m(x) %}\n{{ x }}\n{{ x.y.z }}\n{% endmacro %}\n\n{{ m(1) }}": 3,
    "{% macro m(x, y=nosuch.x) %}\n{{ x }}\n{% endmacro %}\n\n{{ m(1) }}": 1,
    "{% macro m(x) %}\n{{ x }}\n{% endmacro %}\n\n{{ m(1, 2) }}": 5,
    "{% macro m(x) %}\n{{ x }}\n{% endmacro %}\n\n\n{% for x in xs %}\n{{ m(x.y.z) }}\n{% endfor %}": 7,
    "{% macro a() %}\n{{ nosuch.x }}\n{% endmacro %}\n{% macro b() %}\n{{ a() }}\n{% endmacro %}\n{{ b() }}": 2,
    "{% macro m() %}\n{{ caller() }}\n{% endmacro %}\n{% call m() %}\n\n{{ nosuch.x }}\n{% endcall %}": 6,
    "{% if no %}\na\n{% elif nosuch.x %}\nb\n{% endif %}": 3,
    "{% if no %}\na\n{% elif no %}\nb\n{% else %}\n\n{{ 1 / 0 }}{% endif %}": 7,
    "a\nb\n{% set x = nosuch.x %}": 3,
    "{% set x %}\na\n{{ nosuch.x }}\n{% endset %}": 3,
    "{% block a %}\n{{ nosuch.x }}\n{% endblock %}": 2,
    "\n{% filter upper %}\n{{ nosuch.x }}\n{% endfilter %}": 3,
    "\n{% with x = 1 %}\n\n{{ x + s }}\n{% endwith %}": 4,
    "\n{% generation %}\n{{ nosuch.x }}\n{% endgeneration %}": 3,
    "a\n{% if n is string %}{% else %}\n{{ raise_exception('no') }}\n{% endif %}": 3,
    "{{ n }}\n{{ s }}\n{{ s|int }}{{ n + s }}\n{{ n }}": 3,
    "a\n{{ s|map('nosuch')|list }}": 2,
    "a\n{{ s.upper(1) }}": 2,
    "a\n{#\n\n#}\n{% raw %}\n\n{% endraw %}\n{{ nosuch.x }}": 8,
    "a\n{% if %}": 2,
    "a\nb\n{{ n | }}": 3,
    "a\n{{ n|nosuch }}\n": 2,
    "a\n{% if n is nosuch %}{% endif %}\n": 2,
    "a\n\n{% for x in xs %}\n": 3,
    "a\n{% endfor %}\n": 2,
    "a\n{% nosuch %}\n": 2,
    "a\n{{ 'x }}": 2,
    "a\n\n{% for loop in xs %}{% endfor %}": 3,
    "{% block a %}{% endblock %}\n{% block a %}{% endblock %}": 2,
}


@pytest.mark.parametrize("source", LINES)
def test_errors_carry_the_line(source: str) -> None:
    (_, theirs), (_, ours), (_, traced) = outcomes(source, CONTEXT)
    assert isinstance(ours, TemplateError)
    assert isinstance(traced, TemplateError)
    assert (ours.line, traced.line) == (LINES[source], LINES[source])
    assert theirs is not None
    assert their_line(theirs) == LINES[source]
    assert f":{LINES[source]}: " in str(ours)
    assert ours.raised == traced.raised == ("raise_exception" in source)


def test_a_refusal_is_told_from_a_failure() -> None:
    template = Template("{{ n }}\n{{ raise_exception('Roles must ' ~ s) }}", name="mine")
    for render in (template.render, template.trace):
        with pytest.raises(TemplateError) as caught:
            render(**CONTEXT)
        assert caught.value.raised
        assert (caught.value.template, caught.value.line) == ("mine", 2)
        assert caught.value.message == "Roles must Hello, World"
        assert str(caught.value) == "mine:2: Roles must Hello, World"


# The rest


def test_variables_are_never_changed() -> None:
    given = copy.deepcopy(CONTEXT)
    sources = (
        "{% set d = {} %}{% set xs = xs + [1] %}{{ xs }}{% for x in people %}{% set x = 1 %}{% endfor %}",
        "{{ xs|sort }}{{ xs|reverse|list }}{{ d.b|dictsort }}{{ words|unique|list }}{{ nested|sum(start=[]) }}",
        "{% set ns = namespace(a=xs) %}{% set ns.a = ns.a + [9] %}{{ ns.a }}{{ xs.copy() }}{{ dict(d.b, z=1) }}",
        "{{ xs.append(1) }}",
        "{{ d.update(a=2) }}",
        "{{ d.pop('a') }}",
        "{{ xs.sort() }}",
        "{{ d.__setitem__('a', 1) }}",
        "{{ xs|indent }}",
    )
    for source in sources:
        check(source)
        for render in (Template(source).render, Template(source).trace):
            attempt(lambda render=render: render(**given))
            assert given == CONTEXT


def test_threads_share_a_template() -> None:
    source = (
        "{% macro m(x) %}<{{ x }}>{% endmacro %}{% set ns = namespace(v='') %}{% set c = cycler('a', 'b') %}"
        "{% for x in range(k, k + 20) %}{% set ns.v = ns.v ~ m(x) ~ c.next() %}{% endfor %}{{ ns.v }}{{ s|upper }}"
    )
    template = Template(source)  # nothing is rendered before the threads: the first uses race as well
    expected = {k: oracle(source)(k=k, s="é") for k in range(16)}

    def run(k: int) -> bool:
        return all(
            template.render(k=k, s="é") == expected[k] and template.trace(k=k, s="é") == expected[k] for _ in range(20)
        )

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(run, range(16)))


HEAVY = "{% for i in range(200) %}{% for j in range(200) %}x{% endfor %}{% endfor %}"
DEEP = "{% macro m(n) %}{{ m(n - 1) if n }}{% endmacro %}{{ m(50) }}"


@pytest.mark.parametrize(
    ("source", "budget"),
    [
        (HEAVY, Budget(steps=1_000, steps_per_input=0)),
        ("{% set x = s * 5000 %}{{ x }}", Budget(chars=10_000, chars_per_input=0)),
        ("{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", Budget()),
        (DEEP, Budget(depth=20)),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", Budget()),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", Budget(seconds=0.05)),
    ],
)
def test_budget_of_a_render(source: str, budget: Budget) -> None:
    template = Template(source, budget=budget, name="greedy")
    for render in (template.render, template.trace):
        with pytest.raises(BudgetExceeded) as caught:
            render(s="abc")
        assert caught.value.template == "greedy"
        assert isinstance(caught.value, TemplateError)
        assert caught.value.line == 1


@pytest.mark.parametrize("source", [HEAVY, DEEP])
def test_budget_suffices(source: str) -> None:
    assert Template(source).render() == Template(source).trace() == oracle(source)()
    enough = Budget(steps=300_000, chars=200_000, depth=60, tokens=100)
    assert Template(source, budget=enough).render() == oracle(source)()


def test_budget_of_a_source() -> None:
    source = "{{ n }}" * 100
    assert Template(source, budget=Budget(tokens=1_000)).render(n=1) == "1" * 100
    with pytest.raises(BudgetExceeded):
        Template(source, budget=Budget(tokens=100))


def test_budget_grows_with_the_input() -> None:
    source = "{% for x in xs %}{{ x }}{% endfor %}"
    small = Budget(steps=100, chars=100, seconds=0.001, steps_per_input=10, chars_per_input=64)
    assert Template(source, budget=small).render(xs=["a"] * 5_000) == "a" * 5_000
    with pytest.raises(BudgetExceeded):
        Template("{% for i in range(5000) %}{{ i }}{% endfor %}", budget=small).render()


def test_constants_count_as_the_templates_own_writing() -> None:
    template = Template("{{ bos_token }}{{ s }}{{ x }}", constants={"bos_token": "<s>", "x": 1})
    assert template.render(s="a") == "<s>a1"
    assert template.trace(s="a", x=2).spans == [(0, 3, None), (3, 4, "s"), (4, 5, "x")]


def test_variables_that_a_template_reads() -> None:
    source = (
        "{% set a = b %}{{ a }}{% for c in d %}{{ c.e }}{{ loop.index }}{% endfor %}"
        "{% macro f(g) %}{{ g }}{{ h }}{% endmacro %}"
    )
    assert Template(source).variables == {"b", "d", "h"}
