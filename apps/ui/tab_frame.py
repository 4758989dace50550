"""The element of a page that a script fills with what it asks for, as Runs and Evaluate have it."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import gradio as gr

from apps.ui.events import QUIET
from apps.ui.frame.assets import link_script
from apps.ui.tab_state import TabMessage, TabState

UpdateTab = Callable[[TabState, gr.EventData], Awaitable[tuple[TabMessage, TabState]]]
ChangeTab = Callable[[TabState, gr.EventData], Awaitable[tuple[Any, TabState]]]


def build_tab_frame(
    template: str,
    elem_id: str,
    scripts: Sequence[str],
    start: str,
    update: UpdateTab,
    change: ChangeTab,
    first: str,
) -> None:
    """Lay out the element and its events inside the current Blocks.

    `scripts` are the names of the page's scripts, and `start` is the function of theirs that gets
    the element. It asks for what is shown by `update`, and sends what a visitor does to `change`.
    `first` marks the first message, which the document has.
    """
    state = gr.State(TabState())
    frame = gr.HTML(
        first,
        html_template=template,
        js_on_load=f"""{start}(element, props, watch, (asked) => trigger("ask", asked),
  (change) => trigger("act", change));""",
        head="".join(link_script(f"{name}.js") for name in scripts),
        apply_default_css=False,
        elem_id=elem_id,
    )
    for listen, function in ((frame.ask, update), (frame.act, change)):
        listen(
            function,
            state,
            [frame, state],
            trigger_mode="multiple",  # the script waits for each answer; Gradio would drop its data
            **QUIET,
        )
