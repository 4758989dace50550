"""The settings of an answer: their fields, their checks, and how they are kept in the browser."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite
from typing import Any, NamedTuple

import gradio as gr
from gradio.blocks import Block
from gradio.events import Dependency

from apps.client.text import Message, Sampling
from apps.ui.events import LATEST_RAW
from apps.ui.frame.assets import link_script

MAX_SYSTEM_CHARACTERS = 4_000
MAX_TOKENS = 2**31 - 1
MAX_SEED = 2**53 - 1  # a browser's numbers are exact up to here
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
MAX_QUOTED_CHARACTERS = 40
_ROWS = {"system": 2, "stop": 1}
"""Lines of the settings that are texts."""
_STEPS = {"temperature": (0.1, 2), "top_p": (0.05, 1)}
"""Steps and highest values of the settings that have a slider."""


@dataclass(frozen=True)
class AnswerSettings:
    """The checked settings of an answer, and what is sent before the question."""

    system: str
    sampling: Sampling
    sends_earlier: bool

    def select_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages to send of a conversation, after the system prompt if there is one.

        Without `sends_earlier`, the messages before the last question are left out.
        """
        questions = [place for place, one in enumerate(messages) if one["role"] == "user"]
        first = 0 if self.sends_earlier or not questions else questions[-1]
        start: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return [*start, *messages[first:]]


class _Field(NamedTuple):
    """A setting: its label, its help, its default as a browser sends it, and how it is read."""

    label: str
    info: str
    default: Any
    read: Callable[[str, Any], Any]


def read_number(label: str, value: Any) -> float:
    """Read a number as the browser sends it.

    Raises `ValueError` if the value is not a finite number.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and isfinite(value):
        return value
    raise ValueError(f"{label} is {_quote_value(value)}: enter a number.")


def read_whole_number(label: str, value: Any) -> int:
    """Read an integer as the browser sends it.

    Raises `ValueError` as `read_number` does, and for a number with a fraction.
    """
    number = read_number(label, value)
    if number % 1:
        raise ValueError(f"{label} is {_quote_value(value)}: enter a whole number.")
    return int(number)


def _read_temperature(label: str, value: Any) -> float:
    return _check_range(label, read_number(label, value), 0, 2)


def _read_top_p(label: str, value: Any) -> float:
    return _check_range(label, read_number(label, value), 0, 1)


def _read_max_tokens(label: str, value: Any) -> int:
    return int(_check_range(label, read_whole_number(label, value), 1, MAX_TOKENS))


def _read_seed(label: str, value: Any) -> int | None:
    if value in (None, ""):
        return None
    return int(_check_range(label, read_whole_number(label, value), -MAX_SEED, MAX_SEED))


def _read_stop(label: str, value: Any) -> tuple[str, ...] | None:
    """Read the stop texts, one per line; a backslash and an n are a line break."""
    lines = _read_text(label, value).split("\n")
    stops = tuple(line.replace("\\n", "\n") for line in lines if line)
    if len(stops) > MAX_STOPS:
        raise ValueError(f"{label} has {len(stops)} lines: enter at most {MAX_STOPS}.")
    longest = max(map(len, stops), default=0)
    if longest > MAX_STOP_CHARACTERS:
        raise ValueError(
            f"{label} has a line of {longest:,} characters: enter at most {MAX_STOP_CHARACTERS}."
        )
    return stops or None


def _read_system(label: str, value: Any) -> str:
    text = _read_text(label, value).strip()
    if len(text) > MAX_SYSTEM_CHARACTERS:
        raise ValueError(
            f"{label} has {len(text):,} characters: enter at most {MAX_SYSTEM_CHARACTERS:,}."
        )
    return text


def _read_boolean(label: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{label} is {_quote_value(value)}: expected true or false.")
    return value


def _read_text(label: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{label} is {_quote_value(value)}: enter a text.")
    return value


def _check_range(label: str, number: float, low: int, high: int) -> float:
    if not low <= number <= high:
        raise ValueError(f"{label} is {number:g}: enter a number from {low:,} to {high:,}.")
    return number


def _quote_value(value: Any) -> str:
    return "empty" if value in (None, "") else repr(value)[:MAX_QUOTED_CHARACTERS]


FIELDS: Mapping[str, _Field] = {
    "system": _Field(
        "System prompt", "Sent before the conversation, with each question.", "", _read_system
    ),
    "earlier": _Field(
        "Send earlier messages",
        "Clear it to send each question on its own: for models fine-tuned on single questions.",
        True,
        _read_boolean,
    ),
    "temperature": _Field(
        "Temperature", "0 always selects the most likely token.", 0, _read_temperature
    ),
    "top_p": _Field(
        "Top-p", "Samples among the most likely tokens of this probability.", 1, _read_top_p
    ),
    "seed": _Field("Seed", "The same seed draws the same tokens.", None, _read_seed),
    "max_tokens": _Field("Maximum number of tokens", "Of one answer.", 128, _read_max_tokens),
    "stop": _Field("Stop texts", "One per line, at most 4; \\n is a line break.", "", _read_stop),
}


def check_settings(sent: Any) -> tuple[AnswerSettings | None, dict[str, str]]:
    """Read the contents of the fields by name, as the browser sends them.

    Return the settings, or None and a message for each field with an invalid value. A field that
    is missing has its default.
    """
    values = sent if isinstance(sent, dict) else {}
    read: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for name, field in FIELDS.items():
        try:
            read[name] = field.read(field.label, values.get(name, field.default))
        except ValueError as exc:
            faults[name] = str(exc)
    if faults:
        return None, faults
    system, sends_earlier = read.pop("system"), read.pop("earlier")
    return AnswerSettings(system, Sampling(**read), sends_earlier), {}


def get_defaults() -> Mapping[str, Any]:
    """Return the contents of the fields at first, by name."""
    return {name: field.default for name, field in FIELDS.items()}


class SettingsPanel:
    """The fields of the settings, which the script `sampling_settings.js` keeps in the browser."""

    def __init__(self, *, is_open: bool) -> None:
        self.panel = gr.HTML(
            get_defaults(),
            html_template=render_panel(is_open=is_open),
            js_on_load="""tuneserveSampling.start(element, props, watch,
  () => trigger("input"));""",
            head=link_script("sampling_settings.js"),
            apply_default_css=False,
            elem_id="chat-settings",
            faults=None,
        )

    def show_faults(self, sent: Any, faults: Mapping[str, str]) -> dict[Block, Any]:
        """Show the message of each invalid field in place of its help.

        The browser ignores the faults of what was `sent` if the fields contain something else now.
        """
        return {self.panel: gr.HTML(faults={"sent": sent, "messages": dict(faults)})}

    def check_fields(self, sent: Any) -> dict[Block, Any]:
        """Check what the fields contain."""
        return self.show_faults(sent, check_settings(sent)[1])

    def listen(self) -> Dependency:
        """Check the settings that a visitor changes; return the event."""
        return self.panel.input(self.check_fields, self.panel, self.panel, **LATEST_RAW)


def render_panel(*, is_open: bool) -> str:
    """Render all fields and the button that resets them, in a part that can be opened."""
    fields = "".join(_render_field(name, field) for name, field in FIELDS.items())
    return (
        f'<details class="ts-more"{" open" if is_open else ""}><summary>Settings'
        f' <span class="ts-changed-count"></span></summary>{fields}'
        '<button type="button" id="reset-settings" class="ts-action">Reset settings</button>'
        "</details>"
    )


def _render_field(name: str, field: _Field) -> str:
    elem_id = "chat-stop-texts" if name == "stop" else f"chat-{name.replace('_', '-')}"
    info = escape(field.info).replace(
        "\\", "&#92;"
    )  # a template of Gradio is a literal of JavaScript
    label = f'<label for="{elem_id}-input">{field.label}</label>'
    inputs = _render_input(name, field, elem_id)
    is_boolean = isinstance(field.default, bool)  # the check box comes before its label
    content = f"<div>{inputs}{label}</div>" if is_boolean else f"{label}<div>{inputs}</div>"
    return (
        f'<div class="ts-field ts-sampling" id="{elem_id}" data-name="{name}">{content}'
        f'<p class="ts-note" id="{elem_id}-info" data-info="{info}">{info}</p></div>'
    )


def _render_input(name: str, field: _Field, elem_id: str) -> str:
    common = (
        f'id="{elem_id}-input" data-default="{escape(json.dumps(field.default))}" '
        f'aria-describedby="{elem_id}-info" autocomplete="off"'
    )
    if name in _ROWS:
        return f'<textarea {common} rows="{_ROWS[name]}" placeholder="None"></textarea>'
    if isinstance(field.default, bool):
        return f'<input type="checkbox" {common}{" checked" if field.default else ""}>'
    step, high = _STEPS.get(name, (1, None))
    shown = "" if field.default is None else field.default
    hint = ' placeholder="Random"' if field.default is None else ""
    number = f'<input type="number" step="{step}" value="{shown}" {common}{hint}>'
    if high is None:
        return number
    return (
        f'<input type="range" min="0" max="{high}" step="{step}" value="{shown}" '
        f'aria-label="{field.label}">{number}'
    )
