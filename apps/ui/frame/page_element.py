"""The component of Gradio for the frame of a page, which the document has before Gradio starts."""

import json
from collections.abc import Sequence
from typing import Any

import gradio as gr

from apps.ui.frame.assets import link_script
from apps.ui.frame.first_views import FirstViews, Frame, ReadView


def build_frame(
    first_views: FirstViews,
    path: str,
    frame: Frame,
    read: ReadView,
    default: object = None,
    events: Sequence[str] = (),
    answers: Sequence[str] = (),
) -> gr.HTML:
    """Lay out the frame of the page at `path` inside the current Blocks.

    `read` returns the first value of the component for a request of the document, and `default` is
    its value without one. `events` are the names of events that the page's script sends, and
    `answers` those of properties in which it gets answers, beside the value.
    """
    first_views.add(path, frame, read, default)
    names = ", ".join(f'"{event}"' for event in events)  # Gradio looks for them in the script
    properties: dict[str, Any] = dict.fromkeys(answers)
    return gr.HTML(
        default,
        html_template=frame.template,
        js_on_load=f"""// Events: {names}
tuneserveFrames.connect({json.dumps(frame.elem_id)}, {{ element, props, watch, trigger }});""",
        head="".join(link_script(name) for name in frame.list_scripts()),
        apply_default_css=False,
        elem_id=frame.elem_id,
        **properties,
    )
