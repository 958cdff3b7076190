"""Put this checkout on a Hugging Face Space: `python deploy/space.py USER/NAME` (after `hf auth login`).

huggingface_hub uploads large files the way the hub wants them (LFS or Xet), so a plain `git push`, which Spaces refuse
for files over 10 MB, is not needed.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Annotated

import typer
from huggingface_hub import HfApi

ROOT = Path(__file__).parents[1]


def tracked_files() -> list[str]:
    """Everything that git knows here, relative to the root: what a visitor of the repository would get."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [name for name in listed.stdout.split("\0") if name]


def deploy(
    space: Annotated[str, typer.Argument(help="The Space, as USER/NAME; it is made if it does not exist.")],
    private: Annotated[bool, typer.Option(help="Make a new Space private.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Only list what would be uploaded.")] = False,
) -> None:
    """Create the Space if need be and upload the files that git tracks."""
    files = tracked_files()
    if dry_run:
        typer.echo("\n".join(files))
        return
    api = HfApi()
    api.create_repo(space, repo_type="space", space_sdk="gradio", private=private, exist_ok=True)
    api.upload_folder(
        repo_id=space,
        repo_type="space",
        folder_path=ROOT,
        allow_patterns=files,
        commit_message="Update from the repository",
    )
    typer.echo(f"https://huggingface.co/spaces/{space}")


if __name__ == "__main__":
    typer.run(deploy)
