"""Which column of a file is what: menus that set `columns`, with a guess for unknown names."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.client.resources import File
from apps.ui.fine_tune.data.file_menu import has_unknown_columns

COLUMNS = "columns"
"""The setting of a job that names the columns."""
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
class ColumnMenus:
    """The menus of a file: its columns, the chosen ones by the parts of a row, and a note.

    There is one menu for each part of a row of the task; none if the columns cannot be read.
    """

    parts: Mapping[str, str]
    columns: tuple[str, ...] = ()
    chosen: Mapping[str, str] | None = None
    note: str = ""
    is_open: bool = False

    def to_message(self) -> dict[str, object]:
        """Return what the script of the page shows."""
        chosen = self.chosen or {}
        menus = [
            {"part": part, "label": label, "value": chosen.get(part, BY_NAME)}
            for part, label in self.parts.items()
        ]
        return {
            "menus": menus if self.columns else [],
            "columns": list(self.columns),
            "note": self.note,
            "is_open": self.is_open,
        }


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


def recall_columns(
    task: str, columns: Sequence[str], remembered: Mapping[str, str], for_task: str
) -> dict[str, str]:
    """Return the remembered columns that a file still has; none if they are for another task."""
    if task != for_task:
        return {}
    parts = PARTS.get(task, {})
    return {part: name for part, name in remembered.items() if part in parts and name in columns}


def list_other_parts(task: str) -> set[str]:
    """Return the parts of rows that only other tasks have."""
    return {part for parts in PARTS.values() for part in parts} - set(PARTS.get(task, {}))


async def read_columns(client: ApiClient, file: File | None) -> FileColumns:
    """Read the columns of a file; none if it cannot be read, which the preview reports."""
    if file is None:
        return FileColumns(None)
    try:
        page = await client.rows.read_page(file.id, limit=1)
    except ApiClientError:
        return FileColumns(file.id)
    return FileColumns(file.id, page.columns, has_unknown_columns(file))


def fit_columns(
    found: FileColumns, fitted: str | None, task: str, entered: Mapping[str, Any]
) -> tuple[Mapping[str, Any], ColumnMenus]:
    """Return what is entered, and the menus, for the columns of a file.

    Guesses what the columns are if their names are unknown. What was entered for columns of another
    file or task is removed; `fitted` is the id of the file that it was entered for.
    """
    parts = PARTS.get(task, {})
    if not found.columns:
        return entered, ColumnMenus(parts)
    mapping = read_mapping(entered)
    is_foreign = found.data != fitted and not set(mapping.values()) <= set(found.columns)
    if is_foreign or set(mapping) & list_other_parts(task):
        mapping = {}
    note = ""
    if found.is_unknown:
        guess = guess_columns(task, found.columns)
        mapping = mapping or guess
        if mapping == guess:  # also after another setting was chosen
            note = _describe_guess(bool(guess))
    offered = {part: name for part, name in mapping.items() if name in found.columns}
    is_open = found.is_unknown or bool(mapping)
    menus = ColumnMenus(parts, found.columns, offered, note, is_open)
    return _enter(entered, mapping), menus


def map_columns(
    task: str, entered: Mapping[str, Any], chosen: Mapping[str, str]
) -> Mapping[str, Any]:
    """Return what is entered with the columns that are chosen in the menus.

    A row is a question with an answer, a plain text, or a conversation: the last choice removes
    what contradicts it.
    """
    parts = PARTS.get(task, {})
    before = read_mapping(entered)
    others = {part: name for part, name in before.items() if part not in parts}
    mapping = {part: name for part in parts if (name := chosen.get(part, BY_NAME)) != BY_NAME}
    return _enter(entered, {**others, **_drop_contradicted(task, mapping, before)})


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
