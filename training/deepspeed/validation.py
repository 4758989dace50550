"""Validation of a user's keys by DeepSpeed's own configuration class before any worker starts.

DeepSpeed refuses an unknown key of a section that pydantic describes, but only in the worker, after
the model was found and the workers were started. It ignores misspelt keys at the top level and in
some sections, where it reads keys one by one. Both faults are found here: `DeepSpeedConfig` gets
the configuration in a mapping that records which keys are read.
"""

import os
import re
from collections.abc import ItemsView, Iterator, KeysView, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from training.deepspeed.config import build_deepspeed_config
from training.spec import SettingError, TrainingSpec

_ANY_WIDTH = 64  # hidden size for 'auto' values, which are not the user's
_MAX_FAULTS = 8
_ADVERTISEMENT = re.compile(r"\s*(For further information visit|See) https?://\S+")


class DeepSpeedSettingError(SettingError):
    """DeepSpeed does not know a key of the user's configuration, or refuses its value."""


def check_deepspeed_keys(spec: TrainingSpec) -> None:
    """Raise `DeepSpeedSettingError` that names each key which DeepSpeed does not accept.

    Imports DeepSpeed, which takes a second or more, if the spec has a DeepSpeed configuration of
    the user; otherwise there is nothing to check.
    """
    if not spec.deepspeed:
        return
    config = build_deepspeed_config(spec, 1, hidden_size=_ANY_WIDTH, num_shares=1)
    if faults := _find_faults(config):
        described = "; ".join(faults[:_MAX_FAULTS])
        if len(faults) > _MAX_FAULTS:
            described += f"; and {len(faults) - _MAX_FAULTS} more"
        raise DeepSpeedSettingError(f"{described}. Correct or remove these keys")


def _find_faults(config: Mapping[str, Any]) -> list[str]:
    read_config = _import_config_class()
    recorded = _RecordedKeys(config)
    try:
        read_config(recorded)
    except ValidationError as exc:
        return [_describe_fault(fault, config, exc.title) for fault in exc.errors()]
    except (AssertionError, ValueError, TypeError, KeyError) as exc:
        return [f"deepspeed is refused by DeepSpeed: {_shorten(str(exc))}"]
    except Exception as exc:
        if type(exc).__name__ != "DeepSpeedConfigError":  # it derives directly from `Exception`
            raise
        return [f"deepspeed is refused by DeepSpeed: {_shorten(str(exc))}"]
    return list(recorded.describe_unread("deepspeed."))


def _import_config_class() -> Any:
    """Import DeepSpeed's configuration class, without detecting accelerators."""
    before = os.environ.get("DS_ACCELERATOR")
    os.environ["DS_ACCELERATOR"] = before or "cpu"  # each worker sets its own
    try:
        from deepspeed.runtime.config import DeepSpeedConfig
    finally:
        if before is None:
            del os.environ["DS_ACCELERATOR"]
    return DeepSpeedConfig


class _RecordedKeys(dict[str, Any]):
    """A configuration that records which of its keys were read, in all of its sections."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(
            {
                key: _RecordedKeys(value) if isinstance(value, Mapping) else value
                for key, value in config.items()
            }
        )
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:  # also for `**`: the whole section is read
        self.asked.update(super().keys())
        return super().__iter__()

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        return KeysView(self)  # whose `in` and `iter` are ours

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        return ItemsView(self)

    def __copy__(self) -> "_RecordedKeys":
        return self

    def describe_unread(self, prefix: str) -> Iterator[str]:
        """Describe the keys that DeepSpeed did not read.

        No key is recorded as read in a section that is passed on as a whole: pydantic checks it.
        """
        for key, value in dict.items(self):
            if key not in self.asked:
                close = get_close_matches(key, self.asked, n=1)
                meant = f"; did you mean {close[0]!r}?" if close else ""
                yield f"'{prefix}{key}' is not a key that DeepSpeed reads{meant}"
            elif isinstance(value, _RecordedKeys) and value.asked:
                yield from value.describe_unread(f"{prefix}{key}.")


def _describe_fault(fault: Any, config: Mapping[str, Any], title: str) -> str:
    names = tuple(str(part) for part in fault["loc"])
    key = _find_full_key(config, names) or ".".join((title, *names))
    if fault["type"] == "extra_forbidden":
        return f"'deepspeed.{key}' is not a key that DeepSpeed knows"
    message = fault["msg"].replace("Input should", "DeepSpeed says that it should")
    return f"deepspeed.{key} is {fault['input']!r}: {_shorten(message)}"


def _find_full_key(
    config: Mapping[str, Any], names: tuple[str, ...], prefix: str = ""
) -> str | None:
    """Find the full key of a path of names that a section's error reports; None if not found."""
    value: Any = config
    for name in names:
        if not isinstance(value, Mapping) or name not in value:
            break
        value = value[name]
    else:
        return prefix + ".".join(names)
    for key, section in config.items():
        if isinstance(section, Mapping) and (
            found := _find_full_key(section, names, f"{prefix}{key}.")
        ):
            return found
    return None


def _shorten(message: str) -> str:
    return " ".join(_ADVERTISEMENT.sub("", message).split())[:300]
