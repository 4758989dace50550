"""Notices on top of a page."""

from typing import Any

import gradio as gr

from apps.ui import markup

LOADING = '<p class="ts-empty">Loading…</p>'
"""What is in the place of content that has not been read."""


def show_notice(message: str, kind: str = "info") -> Any:
    """Show a message in a place for notices, or hide the place if there is none.

    `kind` is info or error.
    """
    return gr.HTML(markup.render_notice(message, kind), visible=bool(message))
