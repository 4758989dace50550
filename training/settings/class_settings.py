"""The settings of a task that distinguishes classes."""

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from training.settings.fault_messages import show_value

CHAT_SETTINGS = ("format", "learned_turns", "reasoning", "template_arguments", "batch_layout")
"""Settings that mean nothing to a task without chats."""

_MAX_LABELS = 1000
_MAX_CHARACTERS = 200


def _check_labels(value: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of classes unchanged; raises `ValueError` for too many, or for one twice."""
    if len(value) > _MAX_LABELS:
        raise ValueError(f"expected at most {_MAX_LABELS} labels, got {len(value)}")
    if twice := sorted(name for name, count in Counter(value).items() if count > 1):
        raise ValueError(f"labels has {show_value(twice[0])} more than once, expected it once")
    if faulty := [name for name in value if not 0 < len(name.strip()) <= _MAX_CHARACTERS]:
        raise ValueError(
            f"labels has {show_value(faulty[0])}, expected names of 1 to {_MAX_CHARACTERS} "
            "characters"
        )
    return value


def _check_weights(value: Any) -> Any:
    """Return weights of classes unchanged; raises `ValueError` that says what is expected."""
    if value in ("equal", "balanced"):
        return value
    numbers: list[Any] = list(value.values()) if isinstance(value, dict) else [None]
    if not all(type(one) in (int, float) and 0 < one < float("inf") for one in numbers):
        raise ValueError(
            f"class_weights is {show_value(value)}, expected 'equal', 'balanced', or a number "
            'above zero for each class, as in {"spam": 2.0}'
        )
    return value


class ClassSettings(BaseModel):
    """The names of the classes, and their weights."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    labels: Annotated[tuple[str, ...], AfterValidator(_check_labels)] = Field(
        (),
        description="Names of the classes, in the order of the model's outputs; default: the "
        "labels of the training rows, numbers in ascending order, else by the alphabet.",
    )
    class_weights: Annotated[
        Literal["equal", "balanced"] | dict[str, float], BeforeValidator(_check_weights)
    ] = Field(
        "equal",
        description="Factor on the loss of a row by its class: the same for all, 'balanced' "
        'against the number of rows of each, or your own, as in {"spam": 2.0}; 1 for others.',
    )
