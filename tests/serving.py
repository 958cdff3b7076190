"""Pages served for a test. The workers of a suite serve at the same time, each at a port of its own: Gradio's search
for one has two of them find the same."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import gradio as gr

from specdemo.ui.page import launch_kwargs


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def launched(page: gr.Blocks) -> Iterator[str]:
    """The page's address while it is served in this process."""
    _, address, _ = page.launch(server_port=free_port(), prevent_thread_lock=True, quiet=True, **launch_kwargs())
    yield address
    page.close(verbose=False)
