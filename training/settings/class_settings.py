"""The settings of a task that distinguishes classes."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from training.settings.fault_messages import show_value


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

    labels: tuple[str, ...] = Field(
        (),
        max_length=1000,
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
