"""Settings from file and environment, and refusals that state what to write."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from shared.service import ConfigError, Lifecycle, read_config


class Part(msgspec.Struct, frozen=True):
    gpus: int


class Config(msgspec.Struct, frozen=True):
    poll_s: float = 1.0
    limit: int = 10
    strict: bool = True
    nodes: tuple[Part, ...] = ()


class Listening(msgspec.Struct, frozen=True):
    port: int = 8443


def read(tmp_path: Path, text: str | None = None, name: str = "c.yaml", **env: str) -> tuple[Config, Lifecycle]:
    file = None
    if text is not None:
        file = tmp_path / name
        file.write_text(text)
    return read_config("demo", Config, file=file, environ=env)


def test_defaults_need_neither_file_nor_environment(tmp_path: Path) -> None:
    assert read(tmp_path) == (Config(), Lifecycle())


def test_a_file_sets_both_and_the_environment_takes_precedence(tmp_path: Path) -> None:
    config, lifecycle = read(
        tmp_path,
        "limit: 1\npoll_s: 3\nlifecycle: {http_port: 80, nats_url: a}\n",
        KERF_LIMIT="2",
        KERF_DEMO_LIMIT="3",
        KERF_STRICT="false",
        KERF_NATS_URL="nats://b",
        KERF_NODES='[{"gpus": 8}]',
        KERF_SOMETHING="else",
    )
    assert config == Config(poll_s=3.0, limit=3, strict=False, nodes=(Part(8),))
    assert (lifecycle.http_port, lifecycle.nats_url) == (80, "nats://b")


def test_json_and_empty_files_are_read(tmp_path: Path) -> None:
    assert read(tmp_path, '{"limit": 4}', "c.json")[0].limit == 4
    assert read(tmp_path, "")[0] == Config()


@pytest.mark.parametrize(
    ("text", "env", "complaint"),
    [
        ("limit: many", {}, r"setting limit: Expected `int`, got `str`; given was 'many'"),
        ("nodes: [{gpus: 1}, {gpus: x}]", {}, r"setting nodes\[1\].gpus: Expected `int`, got `str`; given was 'x'"),
        ("nodes: [{}]", {}, r"missing required field `gpus`"),
        ("limits: 3", {}, r"there is no setting limits; known are limit, nodes, poll_s, strict"),
        ("lifecycle: {port: 3}", {}, r"there is no setting lifecycle.port"),
        ("lifecycle: 3", {}, r"lifecycle must be an object, not int"),
        ("lifecycle: {http_port: x}", {}, r"setting lifecycle.http_port: Expected `int`"),
        ("[1, 2]", {}, r"holds a list; it must be an object"),
        ("a: b: c", {}, r"cannot be read"),
        (None, {"KERF_LIMIT": "x"}, r"the environment: setting limit: Expected `int`, got `str`; given was 'x'"),
        (None, {"KERF_NODES": "[{"}, r"KERF_NODES looks like JSON and is none"),
    ],
)
def test_a_bad_setting_is_refused_with_field_wanted_and_given(
    tmp_path: Path, text: str | None, env: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        read(tmp_path, text, **env)


class Renamed(msgspec.Struct, frozen=True):
    FORMER_NAMES: ClassVar[dict[str, str]] = {"max_size": "size_most"}

    max_size: int = 1


@pytest.mark.parametrize(
    ("text", "env", "size"),
    [
        ("size_most: 2", {}, 2),
        ("max_size: 3", {}, 3),
        ("max_size: 3\nsize_most: 2", {}, 3),
        ("size_most: 2", {"KERF_MAX_SIZE": "4"}, 4),
        ("max_size: 3", {"KERF_DEMO_SIZE_MOST": "5"}, 5),
        ("", {"KERF_SIZE_MOST": "5", "KERF_MAX_SIZE": "6"}, 6),
    ],
)
def test_a_renamed_setting_is_read_by_its_former_name_too(
    tmp_path: Path, text: str, env: dict[str, str], size: int
) -> None:
    """The environment takes precedence over the file, and within each the present name over the former one."""
    file = tmp_path / "c.yaml"
    file.write_text(text)
    assert read_config("demo", Renamed, file=file, environ=env)[0] == Renamed(max_size=size)


@pytest.mark.parametrize("text", ["null: 1\n", "many: !!int x\n", "when: 2026-13-45\n", "[" * 20_000])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    """PyYAML raises errors of its own kinds, and a key may be none."""
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        read_config("placement", Renamed, file=file, environ={})


def test_a_value_that_would_fill_the_memory_as_text_is_shown_in_part(tmp_path: Path) -> None:
    """Each alias stands for eight of the one before: 8^9 words in 500 bytes."""
    levels = ["&a0 [x,x,x,x,x,x,x,x]", *(f"&a{i} [{','.join([f'*a{i - 1}'] * 8)}]" for i in range(1, 9))]
    file = tmp_path / "settings.yaml"
    file.write_text(f"max_size: [{','.join(levels)}]\n")
    with pytest.raises(ConfigError) as refused:
        read_config("demo", Renamed, file=file, environ={})
    assert len(str(refused.value)) < 5000


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.yaml: No such file"):
        read_config("demo", Config, file=tmp_path / "none.yaml", environ={})


def test_a_variable_that_kubernetes_sets_for_a_service_is_not_read() -> None:
    """A Service kerf-admission is KERF_ADMISSION_PORT=tcp://… in every container of its namespace."""
    link = {"KERF_DEMO_PORT": "tcp://10.96.0.7:443"}
    assert read_config("demo", Listening, environ=link)[0] == Listening()
    assert read_config("demo", Listening, environ=link | {"KERF_PORT": "9"})[0].port == 9
