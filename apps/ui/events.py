"""Options of Gradio's events that several views use.

By default, Gradio ignores an event while the previous one of its kind is being processed, also in a
chain (`then`). That is right for a button that starts something. An event that shows what was
chosen or typed has the options `LATEST`: it is repeated for the latest value. A repetition repeats
all listeners of the event of the component. So at most one of them may have these options, or two
could repeat each other without end; others follow it in its chain.
"""

from typing import Any, Literal, TypedDict


class EventOptions(TypedDict, total=False):
    """Options of Gradio's events."""

    show_progress: Literal["hidden", "minimal"]
    api_visibility: Literal["private"]
    preprocess: bool
    trigger_mode: Literal["always_last"]
    cancels: Any  # Gradio annotates dictionaries, of which `Dependency` is a subclass


QUIET: EventOptions = {"show_progress": "hidden", "api_visibility": "private"}
RAW: EventOptions = {**QUIET, "preprocess": False}
"""Gradio's preprocessing would refuse a model that the menu had before the server was restarted."""
LATEST: EventOptions = {**QUIET, "trigger_mode": "always_last"}
LATEST_RAW: EventOptions = {**RAW, "trigger_mode": "always_last"}
