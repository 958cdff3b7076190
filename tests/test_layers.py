"""Data flows one way: decoding knows nothing of the page, the page nothing of tensors."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "specdemo"
FORBIDDEN = {
    "decoding": {"gradio", "plotly", "specdemo.ui", "specdemo.race", "specdemo.host"},
    "drafters": {"gradio", "plotly", "specdemo.ui", "specdemo.race", "specdemo.host", "specdemo.decoding"},
    "models": {"gradio", "plotly", "specdemo.ui", "specdemo.race", "specdemo.host", "specdemo.decoding"},
    "ui": {
        "torch",
        "transformers",
        "specdemo.decoding",
        "specdemo.drafters",
        "specdemo.models",
        "specdemo.race",
        "specdemo.host",
        "specdemo.sampling",
    },
}


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("layer", FORBIDDEN)
def test_a_layer_imports_nothing_from_above(layer: str) -> None:
    files = list((PACKAGE / layer).rglob("*.py"))
    assert len(files) > 2
    for file in files:
        bad = {
            name
            for name in imports(file)
            for forbidden in FORBIDDEN[layer]
            if name == forbidden or name.startswith(forbidden + ".")
        }
        assert not bad, f"{file.name} imports {bad}"


@pytest.mark.parametrize(("module", "absent"), [("specdemo.ui.page", "torch"), ("specdemo.race", "gradio")])
def test_importing_a_layer_does_not_bring_in_the_other(module: str, absent: str) -> None:
    code = f"import sys, {module}; sys.exit({absent!r} in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)
