"""The part of a spec that names a training function of the user's own, and its settings."""

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from storage.local_paths import hide_credentials
from training.settings.fault_messages import show_value

if TYPE_CHECKING:
    from training.spec import TrainingSpec

PASSED_SETTINGS = ("base_model", "task", "seed", "epochs", "learning_rate")
"""The settings of a spec that a loop finds in its `config`, beside those of `loop_config`."""

# Settings that mean something beside `loop`; all others are for our own loop.
_USED_SETTINGS = frozenset(
    {
        *PASSED_SETTINGS,
        "loop",
        "loop_config",
        "loop_split",
        "train_file",
        "train_files",
        "train_dataset",
        "validation_file",
        "validation_dataset",
        "validation_fraction",
        "text_rows",
        "max_rows",
        "num_workers",
        "accelerator",
        "cpus_per_worker",
        "threads_per_worker",
        "max_failures",
        "keep",
        "best_metric",
        "best_direction",
        "keep_checkpoints",
        "trackers",
    }
)
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_MAX_CONFIG_BYTES = 65_536


def check_loop_name(value: str) -> str:
    """Return the name of a loop unchanged; raises `ValueError` if it is none."""
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"loop is {show_value(value)}, expected 'package.module:function', as in "
            "'my_package.training:train_func'"
        )
    return value


def _check_config(value: dict[str, Any]) -> dict[str, Any]:
    if taken := [name for name in PASSED_SETTINGS if name in value]:
        raise ValueError(
            f"loop_config has {taken[0]!r}, which the loop receives from the setting of this name: "
            f"set {taken[0]} itself, outside of loop_config"
        )
    if (size := len(json.dumps(value, default=str))) > _MAX_CONFIG_BYTES:
        raise ValueError(
            f"loop_config has {size} bytes as JSON, expected at most {_MAX_CONFIG_BYTES}"
        )
    return value


class LoopSettings(BaseModel):
    """A training function in place of our own loop, and its settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    loop: Annotated[str, AfterValidator(check_loop_name)] | None = Field(
        None,
        description="A training function for Ray Train to run in place of our own loop, as "
        "'package.module:function'.",
    )
    loop_config: Annotated[dict[str, Any], AfterValidator(_check_config)] = Field(
        default_factory=dict,
        description="What 'loop' receives in its config, beside base_model, task, seed, epochs "
        "and learning_rate.",
    )
    loop_split: Literal["all", "train", "none"] = Field(
        "all",
        description="Rows that get_dataset_shard divides among the workers of 'loop': 'all', only "
        "those to 'train' on, or 'none'; every worker reads all of the others.",
    )


def check_loop_settings(spec: "TrainingSpec") -> None:
    """Raise `ValueError` for a setting that means nothing with a loop, or nothing without one."""
    if spec.loop is None:
        for name in ("loop_config", "loop_split"):
            if _is_set(spec, name):
                raise ValueError(f"{name} is set, and loop is not: set loop, or remove {name}")
        return
    for name in type(spec).model_fields:
        if name not in _USED_SETTINGS and _is_set(spec, name):
            raise ValueError(
                f"{name} is {getattr(spec, name)!r}, which has no effect on the loop "
                f"{spec.loop!r}: remove it, or pass a value of your own in loop_config"
            )
    if weighted := [entry.file for entry in spec.train_files if entry.weight != 1]:
        shown = hide_credentials(weighted[0])
        raise ValueError(
            f"train_files has a weight other than 1 for {shown!r}, expected 1 with a loop: "
            "it reads every row once"
        )


def _is_set(spec: "TrainingSpec", name: str) -> bool:
    default = type(spec).model_fields[name].get_default(call_default_factory=True)
    return bool(getattr(spec, name) != default)
