"""Why a job cannot start: each problem at its field, in the words of the fields' labels."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from apps.client.errors import ApiClientError, RequestRefusedError
from apps.ui.error_messages import describe_error
from apps.ui.fine_tune.setting_fields import FieldError, find_elem_id, label_setting

NAME_KEY = "suffix"
"""The name of the result, as the API calls it."""
NAME_LABEL = "Name of the result"
_NAME_RULE = (
    "use at most 64 letters, digits, hyphens and underscores, of which the first is a letter or a "
    "digit"
)
_OTHER_LABELS = {"training_file": "Data", "validation_file": "Validation data", "model": "Model"}
_ABSENT_SETTINGS = ("validation_file", "validation_dataset", "train_file", "base_model")
_TASK_PREFIX = re.compile(r"^task_settings of task '\w+': ")
_MAX_REASON_CHARACTERS = 160
_TEMPORARY_STATUSES = (429, 500, 503)


@dataclass(frozen=True)
class Verdict:
    """Whether a job can start; `problems` has the messages of fields by their names.

    `reason` is why it cannot, if no field is at fault; empty if there is no reason. What
    `is_temporary` does not keep a visitor from trying again.
    """

    problems: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    is_temporary: bool = False

    def to_message(self) -> dict[str, object]:
        """Return what the script of the page shows: the ids of fields, and a reason."""
        first = next(iter(self.problems.values()), "")
        reason = self.reason or first
        if len(reason) > _MAX_REASON_CHARACTERS:
            reason = f"{reason[:_MAX_REASON_CHARACTERS]}…"
        problems = [
            {"id": find_elem_id(key), "message": message} for key, message in self.problems.items()
        ]
        return {"problems": problems, "reason": reason, "is_temporary": self.is_temporary}


def explain(exc: FieldError | ApiClientError, keys: Collection[str]) -> Verdict:
    """Return the verdict for a field that cannot be read, or for a job that the API refuses."""
    if isinstance(exc, FieldError):
        return Verdict({exc.key: str(exc)})
    return explain_refusal(exc, keys)


def explain_refusal(exc: ApiClientError, keys: Collection[str]) -> Verdict:
    """Return the verdict for a job that the API refuses; `keys` are the flat names of the fields.

    The API names the setting in `param`, or else at the beginning of the message or of its parts.
    """
    if not isinstance(exc, RequestRefusedError) or not exc.api_message:
        return Verdict(reason=describe_error(exc), is_temporary=True)
    if exc.param == NAME_KEY:
        return Verdict({NAME_KEY: f"{NAME_LABEL}: {_NAME_RULE}."})
    if exc.status != 400:
        reason = rename_settings(describe_error(exc), keys)
        return Verdict(reason=reason, is_temporary=exc.status in _TEMPORARY_STATUSES)
    problems: dict[str, str] = {}
    api_message = _TASK_PREFIX.sub("", exc.api_message)
    for number, part in enumerate(_split_faults(api_message, keys)):
        named = exc.param if number == 0 else None
        key = _find_key(named, keys) or _find_key(_read_first_name(part), keys)
        if key is None:
            key = _find_mentioned(part, keys) if number == 0 else None
        if key is not None and key not in problems:
            problems[key] = _end_sentence(rename_settings(part, keys))
    if problems:
        return Verdict(problems)
    label = _OTHER_LABELS.get(exc.param or "")
    message = _end_sentence(rename_settings(api_message, keys))
    return Verdict(reason=f"{label}: {message}" if label else message)


def rename_settings(message: str, keys: Collection[str]) -> str:
    """Replace the API's names of settings by the labels of their fields.

    A name that is a word of English too is replaced only at the beginning.
    """
    names = {key.rpartition(".")[2]: key for key in keys}
    message = re.sub(r"^training\.", "", message)
    first = _read_first_name(message)
    if first is not None and (key := _find_key(first, keys)) is not None:
        rest = message[message.index(first) + len(first) :].lstrip("'")
        own = first.partition(".")[2].replace("_", " ")
        message = f"{label_setting(key)}{f' ({own})' if own else ''}{rest}"
    for name in sorted([*names, *_ABSENT_SETTINGS], key=len, reverse=True):
        if "_" in name:
            label = label_setting(names.get(name, name))
            message = re.sub(rf"'?\b{re.escape(name)}\b'?", f"“{label}”", message)
    return message[:1].upper() + message[1:]


def _split_faults(message: str, keys: Collection[str]) -> Sequence[str]:
    """Split the faults that the API joins by semicolons; each begins with the name of a setting."""
    parts: list[str] = []
    for part in message.split("; "):
        if parts and _find_key(_read_first_name(part), keys) is None:
            parts[-1] += f"; {part}"
        else:
            parts.append(part)
    return parts


def _read_first_name(text: str) -> str | None:
    found = re.match(r"'?([a-z][a-z0-9_.]*[a-z0-9])'?(?=[ :,]|$)", text)
    return found.group(1).removeprefix("training.") if found else None


def _find_key(param: str | None, keys: Collection[str]) -> str | None:
    """Return the flat name of the field for the API's name of a value, as 'adapter.rank'."""
    if param is None:
        return None
    name = param.removeprefix("training.").removeprefix("task_settings.")
    for key in (name, f"task_settings.{name}", name.partition(".")[0]):
        if key in keys:
            return key
    return None


def _find_mentioned(message: str, keys: Collection[str]) -> str | None:
    """Return the first setting that a message mentions, if its name is no word of English."""
    names = {key.rpartition(".")[2]: key for key in keys if "_" in key.rpartition(".")[2]}
    words = re.findall(r"[a-z][a-z0-9_]+", message)
    return next((names[word] for word in words if word in names), None)


def _end_sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
