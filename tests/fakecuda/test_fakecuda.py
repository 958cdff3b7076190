"""The cases: what can be tested of the GPU's code where there is no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CASES = sorted(file.name for file in (HERE / "cases").glob("test_*.py"))


@pytest.mark.parametrize("case", CASES)
def test_on_a_pretended_gpu(case: str) -> None:
    """In a process of its own: it sees CUDA from its start to its end."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.fakecuda.plugin", "-p", "no:cacheprovider", "-q"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(
        [*command, str(HERE / "cases" / case)],
        cwd=ROOT,
        env=inherited | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
