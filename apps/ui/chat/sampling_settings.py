"""The settings of an answer: their fields, their checks, and how they are kept in the browser."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

import gradio as gr
from gradio.blocks import Block
from gradio.components import Component

from apps.client.text import Message, Sampling
from apps.ui.events import LATEST_RAW, QUIET

MAX_SYSTEM_CHARACTERS = 4_000
MAX_TOKENS = 2**31 - 1
MAX_SEED = 2**53 - 1  # a browser's numbers are exact up to here
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
MAX_QUOTED_CHARACTERS = 40
STORE_SETTINGS_JS = "(text) => { localStorage.setItem('tuneserve-chat-settings', text); }"
RESTORE_SETTINGS_JS = "localStorage.getItem('tuneserve-chat-settings') || ''"


@dataclass(frozen=True)
class AnswerSettings:
    """The checked settings of an answer, with the system prompt."""

    system: str
    sampling: Sampling

    def add_system(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages with the system prompt before them."""
        start: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return [*start, *messages]


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


def _read_text(label: str, value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{label} is {_quote_value(value)}: enter a text.")
    return value


def _check_range(label: str, number: float, low: float, high: float) -> float:
    if not low <= number <= high:
        raise ValueError(f"{label} is {number:g}: enter a number from {low:g} to {high:g}.")
    return number


def _quote_value(value: Any) -> str:
    return "empty" if value in (None, "") else repr(value)[:MAX_QUOTED_CHARACTERS]


FIELDS: Mapping[str, _Field] = {
    "system": _Field(
        "System prompt", "Sent before the conversation, with each question.", "", _read_system
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


def check_settings(values: Sequence[Any]) -> tuple[AnswerSettings | None, dict[str, str]]:
    """Read the values of all fields, in their order.

    Return the settings, or None and a message for each field with an invalid value.
    """
    read: dict[str, Any] = {}
    faults: dict[str, str] = {}
    for (name, field), value in zip(FIELDS.items(), values, strict=True):
        try:
            read[name] = field.read(field.label, value)
        except ValueError as exc:
            faults[name] = str(exc)
    if faults:
        return None, faults
    return AnswerSettings(system=read.pop("system"), sampling=Sampling(**read)), {}


def pack_settings(values: Sequence[Any]) -> str:
    """Return the values of all fields as the text that the browser keeps."""
    return json.dumps(dict(zip(FIELDS, values, strict=True)), ensure_ascii=False)


def unpack_settings(text: Any) -> list[Any]:
    """Return the values of all fields from the text that the browser kept.

    A value that is missing or invalid is the default.
    """
    try:
        kept = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        kept = None
    values = []
    for name, field in FIELDS.items():
        value = kept.get(name, field.default) if isinstance(kept, dict) else field.default
        try:
            field.read(field.label, value)
        except ValueError:
            value = field.default
        values.append(value)
    return values


class SettingsPanel:
    """The fields of the settings, and the hidden text that the browser keeps."""

    def __init__(self, *, is_open: bool) -> None:
        with gr.Accordion("Settings", open=is_open, elem_id="chat-settings"):
            self.fields: dict[str, gr.Textbox | gr.Number | gr.Slider] = {
                name: _build_field(name, field) for name, field in FIELDS.items()
            }
            self.reset = gr.Button("Reset settings", size="sm", elem_id="reset-settings")
        self.kept = gr.Textbox(visible="hidden", elem_id="chat-kept-settings", show_label=False)

    @property
    def inputs(self) -> list[Component]:
        """The fields in their order."""
        return list(self.fields.values())

    def show_faults(self, faults: Mapping[str, str]) -> dict[Block, Any]:
        """Show the message of each invalid field in its label, and the help of the others."""
        return {
            component: type(component)(
                info=faults.get(name, FIELDS[name].info),
                elem_classes=["ts-invalid"] if name in faults else [],
            )
            for name, component in self.fields.items()
        }

    def keep_settings(self, *values: Any) -> dict[Block, Any]:
        """Check the fields; the browser keeps their values if all are valid."""
        settings, faults = check_settings(values)
        kept = gr.skip() if settings is None else pack_settings(values)
        return {self.kept: kept, **self.show_faults(faults)}

    def restore_settings(self, text: Any) -> dict[Block, Any]:
        """Fill the fields with the values that the browser kept."""
        values = unpack_settings(text)
        updates: dict[Block, Any] = {}
        updates.update(zip(self.inputs, values, strict=True))
        return updates

    def reset_settings(self) -> dict[Block, Any]:
        """Fill the fields with the defaults."""
        values = [field.default for field in FIELDS.values()]
        shown: dict[Block, Any] = {
            component: type(component)(value=value, info=field.info, elem_classes=[])
            for component, value, field in zip(self.inputs, values, FIELDS.values(), strict=True)
        }
        return {**shown, self.kept: pack_settings(values)}

    def listen(self) -> None:
        """Let the browser keep the settings that a visitor changes."""
        gr.on(
            [component.input for component in self.fields.values()],
            self.keep_settings,
            self.inputs,
            [self.kept, *self.inputs],
            **LATEST_RAW,
        )
        self.reset.click(self.reset_settings, None, [self.kept, *self.inputs], **QUIET)
        self.kept.change(None, self.kept, js=STORE_SETTINGS_JS)


def _build_field(name: str, field: _Field) -> gr.Textbox | gr.Number | gr.Slider:
    elem_id = f"chat-{name.replace('_', '-')}"
    common: dict[str, Any] = {"label": field.label, "info": field.info, "elem_id": elem_id}
    if name == "system":
        return gr.Textbox(lines=2, max_lines=8, placeholder="None", **common)
    if name == "stop":
        return gr.Textbox(lines=1, max_lines=4, placeholder="None", **common)
    if name == "temperature":
        return gr.Slider(0, 2, field.default, step=0.1, **common)
    if name == "top_p":
        return gr.Slider(0, 1, field.default, step=0.05, **common)
    if name == "seed":
        return gr.Number(None, precision=0, placeholder="Random", **common)
    return gr.Number(field.default, precision=0, minimum=1, **common)
