"""The options of `chatcodec serve`, and what is said where it cannot start. One that runs: `test_gateway_embedded`."""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chatcodec.cli import main
from chatcodec.cli.server_options import OPTIONS, OptionError, add_options, options_of, settings_of


def options(*given: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_options(parser)
    return options_of(parser.parse_args(given), environment or {})


def test_defaults_are_those_of_the_settings() -> None:
    settings = settings_of(options(), "model")
    assert settings.models == ("model",)
    assert settings == type(settings)(models=("model",), hosts=("localhost",))
    assert (options()["host"], options()["port"]) == ("127.0.0.1", 8000)


def test_the_command_line_wins_over_the_file_which_wins_over_the_defaults(tmp_path: Path) -> None:
    config = tmp_path / "server.toml"
    config.write_text(
        'engine = "http://gpu:8000"\nmax-n = 4\ntimeout = 20\nmodel = ["a", "b"]\nlog_messages = true\n'
        "[template-kwargs]\nenable_thinking = false\n"
    )
    values = options("--config", str(config), "--max-n", "2")
    assert (values["engine"], values["max_n"], values["timeout"]) == ("http://gpu:8000", 2, 20.0)
    settings = settings_of(values, "ignored")
    assert settings.models == ("a", "b")
    assert settings.template_kwargs == {"enable_thinking": False}
    assert settings.log_messages


def test_every_option_may_stand_in_the_file(tmp_path: Path) -> None:
    example: dict[str, Any] = {"template_kwargs": {"a": 1}, "log_messages": True, "log_level": "error"}
    example |= {"engine_kind": "vllm", "special_in_content": "error"}
    for key, option in OPTIONS.items():
        number = isinstance(option.default, int | float) or key in ("threads", "max_tokens", "concurrency")
        value = example.get(key, 3 if number else "text")
        config = tmp_path / f"{key}.toml"
        shown = "{a = 1}" if isinstance(value, dict) else json.dumps(value)
        config.write_text(f"{option.name} = {shown}\n")
        assert options("--config", str(config))[key] == ([value] if option.many else value)


def test_keys_come_from_the_environment_unless_they_are_given() -> None:
    environment = {"CHATCODEC_API_KEY": "secret", "CHATCODEC_ENGINE_KEY": "other"}
    values = options(environment=environment)
    assert (values["api_key"], values["engine_key"]) == (["secret"], "other")
    assert options("--api-key", "a", "--api-key", "b", environment=environment)["api_key"] == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("--max-n", "0"), "--max-n: a whole number from 1 on is wanted, not '0'"),
        (("--max-n", "many"), "--max-n: a whole number from 1 on is wanted, not 'many'"),
        (("--port", "70000"), "--port: a whole number from 0 to 65535 is wanted, not '70000'"),
        (("--timeout", "inf"), "--timeout: a number from 0.001 on is wanted, not 'inf'"),
        (("--timeout", "nan"), "--timeout: a number from 0.001 on is wanted, not 'nan'"),
        (("--template-kwargs", "{"), "--template-kwargs: a JSON object is wanted"),
        (("--template-kwargs", "[]"), "--template-kwargs: a JSON object is wanted, not '[]'"),
        (("--engine-kind", "ollama"), "--engine-kind: one of llama.cpp, vllm, sglang, openai is wanted, not 'ollama'"),
    ],
)
def test_what_is_wrong_with_an_option_is_told(given: tuple[str, ...], told: str) -> None:
    with pytest.raises(OptionError) as raised:
        options(*given)
    assert str(raised.value).startswith(told)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max-m = 4", "there is no option 'max-m'"),
        ("max-n = 1.5", "max-n: a whole number from 1 on is wanted, not 1.5"),
        ("queue = 0.7", "queue: a whole number from 0 on is wanted, not 0.7"),
        ("max-n = true", "max-n: a whole number from 1 on is wanted, not True"),
        ('log-messages = "yes"', "log-messages: true or false is wanted, not 'yes'"),
        ("max-n = ", "it is not TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_name(tmp_path: Path, text: str, told: str) -> None:
    config = tmp_path / "server.toml"
    config.write_text(text)
    with pytest.raises(OptionError) as raised:
        options("--config", str(config))
    assert str(raised.value).startswith(f"{config}: ")
    assert told in str(raised.value)


def test_names_for_clients_without_a_key() -> None:
    assert settings_of(options("--host", "::1"), "model").hosts == ("localhost",)
    assert settings_of(options("--allow-host", "gpu.lan"), "model").hosts == ("localhost", "gpu.lan")
    assert settings_of(options("--host", "0.0.0.0"), "model").hosts is None


def test_the_embedded_engine_gets_as_many_answers_as_it_writes_at_once() -> None:
    assert options("--engine", "embedded", "--parallel", "3")["concurrency"] == 3
    assert options("--engine", "embedded", "--concurrency", "9")["concurrency"] == 9
    assert options("--engine", "http://gpu:8000")["concurrency"] == 64


def test_which_model_the_embedded_engine_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path), "--engine", "embedded"]) == 1
    assert f"{tmp_path}: the embedded engine needs a GGUF, here are: none" in capsys.readouterr().err
    assert main(["serve", "step3-vl", "--engine", "embedded", "--model-file", "no.gguf"]) == 1
    assert "no.gguf: there is no such file (--model-file)" in capsys.readouterr().err
    assert main(["serve", "step3-vl", "--engine", "http://127.0.0.1:9", "--model-file", "no.gguf"]) == 1
    assert "--model-file is for --engine embedded" in capsys.readouterr().err
    assert main(["serve", "step3-vl", "--engine", "embeded"]) == 1
    assert "or 'embedded', not 'embeded'" in capsys.readouterr().err


def test_an_engine_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "step3-vl"]) == 1
    assert "--engine is needed" in capsys.readouterr().err


def test_an_engine_that_is_not_there_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert main(["serve", "step3-vl", "--engine", url, "--port", "0", "--engine-wait", "0.01"]) == 1
    told = capsys.readouterr().err
    assert url in told
    assert "Traceback" not in told


def test_a_port_that_is_taken_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve", "step3-vl", "--engine", "http://127.0.0.1:9", "--port", port]) == 1
    assert f"127.0.0.1:{port}: cannot listen" in capsys.readouterr().err


def test_what_is_missing_is_told_with_the_command_that_brings_it(tmp_path: Path) -> None:
    code = (
        "import importlib.util as util, sys\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'uvicorn' else find(name, *more)\n"
        "from chatcodec.cli import main\n"
        "sys.exit(main(['serve', 'step3-vl', '--engine', 'embedded']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "a server needs uvicorn: pip install 'chatcodec[serve]'" in done.stderr
