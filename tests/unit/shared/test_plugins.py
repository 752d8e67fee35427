"""What is loaded from other packages, and what is said about a package that cannot be used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shared import plugins
from shared.plugins import Plugin, PluginError

Install = Callable[..., None]


class Part:
    """What plug-ins of this test provide."""

    name = ""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package `name` 1.0 with entry points of kerf.filters and a module `name` with this text."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "_loaded", {})

    def package(name: str, points: str, text: str = "") -> None:
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[kerf.filters]\n{points}\n")
        (tmp_path / f"{name}.py").write_text(f"from {__name__} import Part\n{text}")
        monkeypatch.delitem(sys.modules, name, raising=False)
        plugins._points.cache_clear()

    yield package
    plugins._points.cache_clear()


def test_without_packages_there_are_none() -> None:
    assert plugins.load("kerf.filters", Part) == ()
    assert plugins.names("kerf.strategies") == ()


def test_plugins_come_in_the_order_of_their_names_and_are_listed_for_the_log(install: Install) -> None:
    install("kerf_test_one", "b = kerf_test_one:B", "class B(Part):\n    name = 'b'\n")
    install("kerf_test_two", "a = kerf_test_two:made", "class A(Part):\n    name = 'a'\nmade = A()\n")
    assert plugins.names("kerf.filters", ["c"]) == ("a", "b")
    assert plugins.loaded() == (), "their code is not imported for their names"
    assert [part.name for part in plugins.load("kerf.filters", Part, ["c"])] == ["a", "b"]
    assert plugins.loaded() == (
        Plugin(group="kerf.filters", name="a", package="kerf_test_two 1.0"),
        Plugin(group="kerf.filters", name="b", package="kerf_test_one 1.0"),
    )


def test_classes_are_returned_as_they_are(install: Install) -> None:
    install("kerf_test_one", "b = kerf_test_one:B", "class B(Part):\n    name = 'b'\n")
    (found,) = plugins.load_classes("kerf.filters", Part)
    assert issubclass(found, Part)


SAID = "plug-in 'b' of kerf_test_bad 1.0 (entry point kerf.filters): "


@pytest.mark.parametrize(
    ("points", "text", "problem"),
    [
        ("b = kerf_test_bad:B", "", "kerf_test_bad:B cannot be imported: AttributeError: "),
        ("b = kerf_test_none:B", "", "kerf_test_none:B cannot be imported: ModuleNotFoundError: "),
        ("b = kerf_test_bad:B", "1 / 0", "kerf_test_bad:B cannot be imported: ZeroDivisionError: "),
        ("b = kerf_test_bad:B", "class B:\n    name = 'b'", "kerf_test_bad:B is no "),
        (
            "b = kerf_test_bad:B",
            "class B(Part):\n    name = 'c'",
            "kerf_test_bad:B has the name 'c'; its `name` must be ",
        ),
        (
            "b = kerf_test_bad:B",
            "class B(Part):\n    name = 'b'\n    def __init__(self, book): pass",
            "kerf_test_bad:B() fails: TypeError: ",
        ),
        ("b = kerf_test_bad:B", "B = 5", "kerf_test_bad:B is no "),
        ("taken = kerf_test_bad:B", "", "Kerf itself has one of that name; rename the entry point"),
    ],
)
def test_the_error_names_the_package_the_entry_point_and_what_to_do(
    install: Install, points: str, text: str, problem: str
) -> None:
    install("kerf_test_bad", points, text)
    with pytest.raises(PluginError) as error:
        plugins.load("kerf.filters", Part, ["taken"])
    assert str(error.value).startswith(SAID.replace("'b'", repr(points.split(" ")[0])) + problem)


def test_a_class_that_is_none_of_the_kind_is_refused(install: Install) -> None:
    install("kerf_test_bad", "b = kerf_test_bad:B", "class B:\n    name = 'b'")
    with pytest.raises(PluginError, match=r"kerf_test_bad:B is no subclass of .*Part; derive it from that class"):
        plugins.load_classes("kerf.filters", Part)


def test_a_name_that_two_packages_use_is_refused(install: Install) -> None:
    install("kerf_test_bad", "b = kerf_test_bad:B", "class B(Part):\n    name = 'b'")
    install("kerf_test_other", "b = kerf_test_other:B", "class B(Part):\n    name = 'b'")
    with pytest.raises(PluginError, match=r"kerf_test_other 1\.0 .*: kerf_test_bad 1\.0 has an entry point"):
        plugins.names("kerf.filters")


def test_a_problem_that_the_caller_finds_is_told_in_the_same_words(install: Install) -> None:
    install("kerf_test_bad", "b = kerf_test_bad:B", "class B(Part):\n    name = 'b'")
    assert str(plugins.refuse("kerf.filters", "b", "its scope is wrong")) == SAID + "its scope is wrong"
