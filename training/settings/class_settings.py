"""The settings of a task that distinguishes classes."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ClassSettings(BaseModel):
    """The names of the classes, and their weights."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    labels: tuple[str, ...] = Field(
        (),
        max_length=1000,
        description="Names of the classes, in the order of the model's outputs; default: the "
        "labels of the training rows, numbers in ascending order, else by the alphabet.",
    )
    class_weights: Literal["equal", "balanced"] | dict[str, float] = Field(
        "equal",
        description="Factor on the loss of a row by its class: the same for all, 'balanced' "
        'against the number of rows of each, or your own, as in {"spam": 2.0}; 1 for others.',
    )
