"""What surveys of rows count and list, as the API shows it."""

from typing import Literal, TypedDict

FindingKind = Literal["fault", "duplicate"]


class LengthsObject(TypedDict):
    """How long the samples of rows are in tokens; `counts[i]` of them are in bin `i`.

    Bin `i` has the lengths from `i * bin_width` to before the next one. `num_longer` samples are
    longer than the last bin, and `num_over_limit` longer than `max_length`.
    """

    num_samples: int
    min: int
    median: int
    mean: float
    percentile_95: int
    max: int
    num_over_limit: int
    bin_width: int
    counts: list[int]
    num_longer: int


class FindingObject(TypedDict):
    """A row with a fault, or one that is equal to an earlier row."""

    id: str
    object: str
    number: int
    line: int
    reason: str
    content: str
    first_number: int | None


class SurveyCounts(TypedDict):
    """What a survey counted."""

    format: str
    task: str
    unit: str
    max_length: int
    num_rows: int
    num_faulty_rows: int
    num_duplicate_rows: int
    num_compared_rows: int
    lengths: LengthsObject | None


class Findings(TypedDict):
    """What a survey lists."""

    fault: list[FindingObject]
    duplicate: list[FindingObject]
