"""The functions that a session of the page can call: those of all pages, and its own settings'."""

import gradio as gr
from gradio.blocks import BlocksConfig


class SessionFunctions:
    """Functions by session and id.

    Those of `gr.render` exist in one session. When it draws again, others replace them.
    """

    def __init__(self, blocks: gr.Blocks) -> None:
        self._blocks = blocks

    def has(self, session: str, function: int) -> bool:
        """Return whether a session has a function."""
        return function in self._find_config(session).fns

    def is_replaced(self, session: str, function: int) -> bool:
        """Return whether a session had a function that has been replaced."""
        config = self._find_config(session)
        return 0 <= function < config.fn_id and function not in config.fns

    def _find_config(self, session: str) -> BlocksConfig:
        found = self._blocks.state_holder.session_data.get(session)
        return self._blocks.default_config if found is None else found.blocks_config
