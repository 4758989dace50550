"""The element of a page that a script fills with what it asks for, as Runs and Evaluate have it."""

from collections.abc import Awaitable, Callable
from typing import Any

import gradio as gr

from apps.ui.events import QUIET
from apps.ui.frame.first_views import FirstViews, Frame, ReadView
from apps.ui.frame.page_element import build_frame
from apps.ui.tab_state import TabMessage, TabState

UpdateTab = Callable[[TabState, gr.EventData], Awaitable[tuple[TabMessage, TabState]]]
ChangeTab = Callable[[TabState, gr.EventData], Awaitable[tuple[Any, TabState]]]


def build_tab_frame(
    first_views: FirstViews,
    path: str,
    frame: Frame,
    read_first: ReadView,
    update: UpdateTab,
    change: ChangeTab,
) -> None:
    """Lay out the frame of the page at `path`, and its events, inside the current Blocks.

    The page's script asks for what is shown by `update`, and sends what a visitor does to `change`.
    `read_first` returns the first message, which the document has.
    """
    state = gr.State(TabState())
    element = build_frame(first_views, path, frame, read_first, events=("ask", "act"))
    for listen, function in ((element.ask, update), (element.act, change)):
        listen(
            function,
            state,
            [element, state],
            trigger_mode="multiple",  # the script waits for each answer; Gradio would drop its data
            **QUIET,
        )
