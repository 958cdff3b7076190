"""The files around the code agree with it."""

from __future__ import annotations

import ast
import re
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def front_matter() -> dict[str, str]:
    head = README.split("---\n")[1]
    return dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)


def test_the_space_runs_the_gradio_that_was_tested() -> None:
    assert front_matter()["sdk_version"] == version("gradio")


def test_the_front_matter_has_what_a_space_needs() -> None:
    head = front_matter()
    assert head["sdk"] == "gradio"
    assert (ROOT / head["app_file"]).is_file()
    assert {"python_version", "suggested_hardware", "license"} <= head.keys()
    assert "models:" in README


def test_ci_calls_the_test_command_that_the_readme_names() -> None:
    command = re.search(r"^Test it: `(.+)`$", README, re.MULTILINE).group(1)
    assert command in (ROOT / ".ci" / "run").read_text().splitlines()


@pytest.mark.parametrize("link", re.findall(r"\]\((?!http)([^)#]+)\)", README))
def test_links_of_the_readme_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_files_named_in_the_readme_exist() -> None:
    for name in re.findall(r"`((?:specdemo|tests|deploy|assets)/[\w/.]+)`", README):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("folder", ["models", "decoding"])
def test_no_guard_is_an_assert(folder: str) -> None:
    """python -O drops them, and texts would be wrong instead of refused."""
    for file in (ROOT / "specdemo" / folder).glob("*.py"):
        found = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Assert)]
        assert found == [], file
