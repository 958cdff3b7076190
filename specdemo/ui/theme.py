"""Gradio's theme on the system's own fonts: a theme's usual fonts would be fetched from another host."""

from __future__ import annotations

import gradio as gr
from gradio.themes.utils import fonts

SANS = ["system-ui", "-apple-system", "Segoe UI", "Noto Sans", "Hiragino Sans", "Noto Sans CJK JP", "sans-serif"]
MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "Noto Sans Mono CJK JP", "monospace"]


def theme() -> gr.themes.Base:
    return gr.themes.Base(
        primary_hue=gr.themes.colors.slate,
        neutral_hue=gr.themes.colors.slate,
        font=[fonts.Font(name) for name in SANS],
        font_mono=[fonts.Font(name) for name in MONO],
    )
