"""Schemas of rows, of their statistics, and of rows with faults."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _RowAnswer(BaseModel):
    model_config = ConfigDict(frozen=True)


class RowValue(_RowAnswer):
    """A turn of a chat or a column of a table."""

    name: str = Field(description="The role of a turn, or the name of a column.")
    kind: Literal["turn", "column"]
    text: str = Field(description="The text, or its beginning.")
    num_characters: int = Field(description="The length of the whole text.")


class FileRow(_RowAnswer):
    """A row of a file as readable text."""

    id: str
    object: Literal["file.row"]
    number: int = Field(description="The number of the row in the file, from 1.")
    line: int = Field(description="The line of the file that it begins in.")
    values: list[RowValue]
    num_values: int = Field(description="Turns and columns of the row, shown or not.")
    fault: str | None = Field(description="Why the row cannot be read.")


class FileRowPage(_RowAnswer):
    """A page of rows."""

    object: Literal["list"]
    data: list[FileRow]
    first_id: str | None
    last_id: str | None
    has_more: bool
    next_after: str | None = Field(
        description="The last row that was read, matching the search or not: the next page begins "
        "after it."
    )
    columns: list[str] = Field(description="Columns of the first row that was read.")
    unit: str = Field(description="What `line` counts: lines, or rows or images.")


class TokenLengths(_RowAnswer):
    """How long samples are in tokens."""

    num_samples: int
    min: int
    median: int
    mean: float
    percentile_95: int
    max: int
    num_over_limit: int = Field(description="Samples longer than `max_length`.")
    bin_width: int
    counts: list[int] = Field(
        description="Samples of each bin; bin `i` begins at `i * bin_width` tokens."
    )
    num_longer: int = Field(description="Samples longer than the last bin.")


class FileStatistics(_RowAnswer):
    """What was counted in all rows of a file; nothing while they are still being read."""

    object: Literal["file.statistics"]
    status: Literal["running", "completed"]
    model: str
    format: str | None = None
    task: str | None = None
    unit: str | None = None
    max_length: int | None = Field(None, description="The most tokens of a sample.")
    num_rows: int | None = None
    num_faulty_rows: int | None = None
    num_duplicate_rows: int | None = Field(None, description="Rows equal to an earlier one.")
    num_compared_rows: int | None = Field(
        None, description="Rows that were compared: the first million of a larger file."
    )
    lengths: TokenLengths | None = Field(None, description="Null for images.")


class RowFinding(_RowAnswer):
    """A row with a fault, or one that is equal to an earlier row."""

    id: str
    object: Literal["file.fault", "file.duplicate"]
    number: int
    line: int
    reason: str
    content: str = Field(description="The beginning of the row as JSON, if it can be read.")
    first_number: int | None = Field(description="The earlier row to which it is equal.")


class RowFindingPage(_RowAnswer):
    """A page of faulty or equal rows."""

    object: Literal["list"]
    data: list[RowFinding]
    first_id: str | None
    last_id: str | None
    has_more: bool
