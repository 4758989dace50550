"""Sources of rows besides a single file: a data set on the hub, and one of several files."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

MAX_TRAIN_FILES = 64


def limit_train_files(value: Any) -> Any:
    """Return a list of files unchanged; raises `ValueError` if it is too long."""
    if isinstance(value, list | tuple) and len(value) > MAX_TRAIN_FILES:
        raise ValueError(f"expected at most {MAX_TRAIN_FILES} train_files, got {len(value)}")
    return value


class HubDataset(BaseModel):
    """Rows of a data set on the Hugging Face hub, or of one in its local cache."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1, description="Id on the hub, as in 'owner/name'.")
    name: str | None = Field(None, description="Configuration, where the data set has several.")
    split: str = Field("train", min_length=1, description="Split, as in 'train' or 'test[:10%]'.")
    revision: str | None = Field(None, description="Branch, tag or commit; default: the newest.")


class TrainFile(BaseModel):
    """One of several files to learn from, and how often its rows are seen."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    file: str = Field(min_length=1, description="File, folder or pattern, as 'train_file'.")
    weight: float = Field(
        1.0,
        strict=True,
        gt=0,
        le=10,
        description="How often each row is seen in an epoch: 2 is twice; 0.5 is half of the rows, "
        "chosen by 'seed', the same ones in every epoch.",
    )
