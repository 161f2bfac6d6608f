"""Imports run one way, without cycles, and the public names are those that the README knows."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import chatcodec

ROOT = Path(chatcodec.__file__).parent
LAYERS = [
    {"errors"},
    {"messages", "events", "sources", "gguf_metadata", "builtin"},
    {"template", "turn", "tokens"},
    {"capabilities", "adapting", "prompt", "tokenized", "rendering", "laws"},
    {"completions", "departures", "tails", "training", "session"},
    {"codec"},
    {""},
    {"gateway"},
    {"view", "demo", "cli", "__main__"},
]
"""From the ground up; a module imports what stands below it, or beside it in its own room. "" is the package itself."""

PUBLIC = [
    "Budget",
    "BudgetExceeded",
    "ChatCodecError",
    "Codec",
    "Decoder",
    "FormatNotDerived",
    "Prompt",
    "Sample",
    "Session",
    "SourceError",
    "TemplateError",
    "Token",
    "Tokenizer",
    "ToolCall",
    "TurnFormat",
    "UnsupportedInput",
    "load",
]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> set[str]:
    """The modules of the package that `path` imports, lazily or not."""
    package = path.relative_to(ROOT).parent.parts
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1]
            module = (*base, *(node.module.split(".") if node.module else ()))
            names = [(*module, alias.name) for alias in node.names]
            for name in names:
                exists = (ROOT.joinpath(*name).with_suffix(".py")).exists() or ROOT.joinpath(*name).is_dir()
                found.add(".".join(name if exists else module))
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("chatcodec.") for alias in node.names if alias.name == "chatcodec"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "chatcodec":
            found.add((node.module or "").removeprefix("chatcodec").removeprefix("."))
    return found


MODULES = {module_name(path): imported(path) for path in ROOT.rglob("*.py")}


def layer(module: str) -> int:
    room = module.split(".")[0]
    return next(index for index, rooms in enumerate(LAYERS) if room in rooms)


def test_every_room_has_its_place() -> None:
    assert {module.split(".")[0] for module in MODULES} == set().union(*LAYERS)


def test_imports_run_downward() -> None:
    upward = [
        f"{module} imports {other}"
        for module, others in MODULES.items()
        for other in others
        if other.split(".")[0] != module.split(".")[0] and layer(other) > layer(module)
    ]
    assert not upward


def test_no_import_cycles() -> None:
    assert list(TopologicalSorter({module: others - {module} for module, others in MODULES.items()}).static_order())


def test_the_engine_knows_no_format() -> None:
    for module, others in MODULES.items():
        if module.startswith("template"):
            assert all(other.startswith(("template", "errors")) for other in others), module


def test_public_names() -> None:
    assert sorted(chatcodec.__all__) == PUBLIC
    assert all(hasattr(chatcodec, name) for name in PUBLIC)
