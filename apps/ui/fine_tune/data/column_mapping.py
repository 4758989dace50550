"""Which column of a file is what: menus that set `columns`, with a guess for unknown names."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

import gradio as gr

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.ui import markup
from apps.ui.fine_tune.data.file_menu import has_unknown_columns

COLUMNS = "columns"
"""The setting of a job that names the columns."""
_STORAGE_KEY = "tuneserve-columns"
REMEMBER_COLUMNS_JS = f"""(...chosen) => {{
  try {{ window.localStorage.setItem("{_STORAGE_KEY}", JSON.stringify(chosen)); }} catch {{}}
}}"""
"""Keep the id of a file, the task, and what the menus show in the browser."""
RECALL_COLUMNS_JS = f"""(() => {{
  try {{ return window.localStorage.getItem("{_STORAGE_KEY}") || ""; }} catch {{ return ""; }}
}})()"""
"""What the browser kept; an empty text if nothing."""
BY_NAME = ""
DEFAULT_TASK = "causal_lm"
PARTS: Mapping[str, Mapping[str, str]] = {
    "causal_lm": {
        "prompt": "Question",
        "completion": "Answer",
        "system": "System message",
        "text": "Plain text",
        "messages": "Conversation",
    },
    "preference": {
        "prompt": "Question",
        "chosen": "Better answer",
        "rejected": "Worse answer",
        "system": "System message",
    },
    "sequence_classification": {
        "text": "Text",
        "text_pair": "Second text",
        "label": "Label",
    },
    "image_classification": {"image": "Image", "label": "Label"},
}
"""The parts of a row of each task, by their names in `columns`."""
NUM_MENUS = max(map(len, PARTS.values()))
_GUESSES: Mapping[str, Sequence[str]] = {
    "system": ("system", "context", "persona"),
    "rejected": ("reject", "worse", "bad", "lose"),
    "chosen": ("chosen", "better", "good", "win", "preferred"),
    "completion": ("answer", "reply", "response", "completion", "output", "target", "assistant"),
    "prompt": ("question", "prompt", "query", "instruction", "input", "request", "user"),
    "label": ("label", "class", "category", "sentiment", "topic", "target"),
    "messages": ("messages", "conversation", "dialog", "chat", "turns"),
    "image": ("image", "img", "file", "path", "picture"),
    "text_pair": ("second", "hypothesis", "text2", "sentence2"),
    "text": ("text", "sentence", "content", "review", "body", "document", "comment"),
}
"""Parts of the names of columns, in the order in which columns are taken."""
_NEEDED: Mapping[str, Sequence[Sequence[str]]] = {
    "causal_lm": (("prompt", "completion"), ("messages",), ("text",)),
    "preference": (("prompt", "chosen", "rejected"),),
    "sequence_classification": (("text", "label"),),
    "image_classification": (("image", "label"),),
}
_ALONE = (("messages",), ("text",))


@dataclass(frozen=True)
class FileColumns:
    """The columns of the first row of a file, and whether no format knows their names."""

    data: str | None
    columns: tuple[str, ...] = ()
    is_unknown: bool = False


@dataclass(frozen=True)
class RememberedColumns:
    """The columns that were chosen last for a file, by the parts of a row of a task."""

    task: str
    mapping: Mapping[str, str]

    def select(self, found: FileColumns, task: str) -> dict[str, str]:
        """Return the columns that a file still has; empty for another task."""
        if task != self.task:
            return {}
        return {part: name for part, name in self.mapping.items() if name in found.columns}


def guess_columns(task: str, columns: Sequence[str]) -> dict[str, str]:
    """Guess which columns have the parts that a task needs; empty if some cannot be guessed.

    If names give no hint, two columns are taken as question and answer.
    """
    parts = PARTS.get(task, {})
    found: dict[str, str] = {}
    for part, hints in _GUESSES.items():
        free = [name for name in columns if name not in found.values()]
        if part in parts and (
            match := next((n for n in free if any(hint in n.lower() for hint in hints)), None)
        ):
            found[part] = match
    if task == "causal_lm" and "completion" in found and "prompt" not in found:
        question = found.pop("text", None)  # a text beside an answer
        found.update({"prompt": question} if question else {})
    for needed in _NEEDED.get(task, ()):
        if set(needed) <= set(found):
            extra = () if needed in _ALONE else ("system", "text_pair")
            return {
                part: found[part] for part in parts if part in (*needed, *extra) and part in found
            }
    if task == "causal_lm" and len(columns) == 2:
        return dict(zip(("prompt", "completion"), columns, strict=True))
    return {}


def read_mapping(entered: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns that were entered; empty if they are not an object of names."""
    value = entered.get(COLUMNS)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    if not isinstance(value, Mapping):
        return {}
    return {str(ours): str(theirs) for ours, theirs in value.items()}


def recall_columns(remembered: str | None, data: str | None) -> RememberedColumns | None:
    """Return the columns that were chosen last, as the browser kept them; None for another file.

    `remembered` is a JSON list: the id of the file, the task, then the value of each menu.
    """
    try:
        kept = json.loads(remembered or "")
    except (ValueError, RecursionError):
        return None
    if not isinstance(kept, list) or len(kept) < 2 or kept[0] != data or kept[1] not in [*PARTS]:
        return None
    pairs = zip(PARTS[kept[1]], kept[2:], strict=False)
    mapping = {part: name for part, name in pairs if isinstance(name, str) and name != BY_NAME}
    return RememberedColumns(kept[1], mapping)


def list_other_parts(task: str) -> set[str]:
    """Return the parts of rows that only other tasks have."""
    return {part for parts in PARTS.values() for part in parts} - set(PARTS.get(task, {}))


class ColumnMapping:
    """One menu for each part of a row, and their event handlers."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self.found: gr.State = gr.State(FileColumns(None))
        self.fitted: gr.State = gr.State()  # the id of the file that the menus are for
        self.remembered = gr.Textbox(
            visible="hidden", elem_id="remembered-columns", show_label=False
        )
        self.place = gr.Accordion("Columns", open=False, visible=False, elem_id="column-mapping")
        with self.place:
            self.note = gr.HTML(elem_id="column-note")
            with gr.Row():
                self.menus = [
                    gr.Dropdown(
                        elem_id=f"column-{number}",
                        elem_classes=markup.NAMES,
                        visible=False,
                        filterable=False,
                        min_width=150,
                    )
                    for number in range(NUM_MENUS)
                ]

    @property
    def outputs(self) -> list[Any]:
        """What `fit_columns` updates besides what was entered."""
        return [self.fitted, self.place, self.note, *self.menus]

    async def read_columns(self, data: str | None, known: FileColumns | None = None) -> FileColumns:
        """Read the columns of a file; none if it cannot be read, which the preview reports.

        They are not read again if they are known.
        """
        if not data:
            return FileColumns(None)
        if known is not None and known.data == data and known.columns:
            return known
        try:
            page, file = await asyncio.gather(
                self._client.rows.read_page(data, limit=1), self._client.files.get(data)
            )
        except ApiClientError:
            return FileColumns(data)
        return FileColumns(data, page.columns, has_unknown_columns(file))

    def fit_columns(
        self,
        found: FileColumns,
        fitted: str | None,
        data: str | None,
        task: str | None,
        entered: Mapping[str, Any],
    ) -> tuple[Any, ...]:
        """Show the columns of a file; guess what they are if their names are unknown.

        What was entered for columns of another file or task is removed. This does not wait for
        anything, because it would overwrite what is entered meanwhile.
        """
        if found.data != data:  # another file was chosen, whose columns are read next
            return (gr.skip(),) * (1 + len(self.outputs))
        now_entered, *shown = self.fit(found, fitted, task, entered)
        return (_skip_same(entered, now_entered), *shown)

    def fit(
        self,
        found: FileColumns,
        fitted: str | None,
        task: str | None,
        entered: Mapping[str, Any],
    ) -> tuple[Any, ...]:
        """Return what is entered, and `outputs`, for the columns of a file.

        What is entered is the same object as before unless the mapping changes.
        """
        task = task or DEFAULT_TASK
        if not found.columns:
            return entered, fitted, *self._show(task, (), {}, "", is_open=False)
        mapping = read_mapping(entered)
        is_foreign = found.data != fitted and not set(mapping.values()) <= set(found.columns)
        if is_foreign or set(mapping) & list_other_parts(task):
            mapping = {}
        note = ""
        if not mapping and found.is_unknown:
            mapping = guess_columns(task, found.columns)
            note = _describe_guess(bool(mapping))
        is_open = found.is_unknown or bool(mapping)
        return (
            _enter(entered, mapping),
            found.data,
            *self._show(task, found.columns, mapping, note, is_open=is_open),
        )

    def map_columns(
        self, task: str | None, entered: Mapping[str, Any], *chosen: Any
    ) -> tuple[Any, ...]:
        """Enter the chosen columns as a setting, and empty menus that contradict the last choice.

        A row is a question with an answer, a plain text, or a conversation. Returns the updates of
        what is entered and of the menus, and a text that marks the choice as another one.
        """
        task = task or DEFAULT_TASK
        parts = PARTS.get(task, {})
        before = read_mapping(entered)
        typed = {part: name for part, name in before.items() if part not in parts}
        pairs = zip(parts, chosen, strict=False)
        mapping = {part: str(name) for part, name in pairs if name}
        kept = _drop_contradicted(task, mapping, before)
        now_entered = _enter(entered, {**typed, **kept})
        menus = [gr.skip() if part in kept or part not in mapping else BY_NAME for part in parts]
        return (
            _skip_same(entered, now_entered),
            *menus,
            *(gr.skip(),) * (len(self.menus) - len(menus)),
            token_hex(4),
        )

    def _show(
        self,
        task: str,
        columns: Sequence[str],
        mapping: Mapping[str, str],
        note: str,
        *,
        is_open: bool,
    ) -> tuple[Any, ...]:
        """Show a menu of all columns for each part of a row."""
        parts = list(PARTS.get(task, {}).items())
        choices = [("by its name", BY_NAME), *((name, name) for name in columns)]
        offered = {part: name for part, name in mapping.items() if name in columns}
        menus = [
            gr.Dropdown(
                choices=choices,
                value=offered.get(part, BY_NAME),
                label=label,
                visible=True,
                interactive=True,
            )
            for part, label in parts
        ]
        menus += [gr.Dropdown(visible=False)] * (NUM_MENUS - len(menus))
        return (
            gr.Accordion(visible=bool(columns and parts), open=is_open),
            gr.HTML(markup.render_notice(note), visible=bool(note)),
            *menus,
        )


def _drop_contradicted(
    task: str, mapping: Mapping[str, str], before: Mapping[str, str]
) -> dict[str, str]:
    """Return a mapping without the parts of other kinds of rows than the parts that are new."""
    new = {part for part, name in mapping.items() if before.get(part) != name}
    if task != "causal_lm" or not new:
        return dict(mapping)
    kinds = {_find_kind(part) for part in new}
    return {part: name for part, name in mapping.items() if _find_kind(part) in kinds}


def _find_kind(part: str) -> str:
    return part if (part,) in _ALONE else "question and answer"


def _enter(entered: Mapping[str, Any], mapping: Mapping[str, str]) -> Mapping[str, Any]:
    """Return what is entered with a mapping; the same object if it is the same.

    An empty mapping is the same as text that is no mapping, which stays.
    """
    if mapping == read_mapping(entered):
        return entered
    others = {key: value for key, value in entered.items() if key != COLUMNS}
    return {**others, COLUMNS: dict(mapping)} if mapping else others


def _skip_same(old: Any, new: Any) -> Any:
    """Return the new value, or no update if it is the same object."""
    return gr.skip() if new is old else new


def _describe_guess(has_guess: bool) -> str:
    if has_guess:
        return (
            "The columns of this file have names of their own. This is a guess of what they are; "
            "the preview below shows what is learned."
        )
    return (
        "The columns of this file have names of their own: choose what they are, such as the "
        "question and the answer."
    )
