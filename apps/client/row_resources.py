"""Responses about the rows of a file, as far as the API's clients use them."""

from apps.client.resources import Resource


class RowValue(Resource):
    """A turn of a chat or a column of a table; `text` may be only the beginning of its text."""

    name: str = ""
    kind: str = "column"
    text: str = ""
    num_characters: int = 0


class FileRow(Resource):
    """A row of a file as readable text; `fault` is why it cannot be read."""

    id: str
    number: int
    line: int = 0
    values: tuple[RowValue, ...] = ()
    num_values: int = 0
    fault: str | None = None


class FileRowPage(Resource):
    """A page of rows; the next one begins after `next_after`, if there are more."""

    data: tuple[FileRow, ...] = ()
    has_more: bool = False
    next_after: str | None = None
    columns: tuple[str, ...] = ()
    unit: str = "line"

    @property
    def last_number(self) -> int:
        """The number of the last row that was read; 0 if none was."""
        number = (self.next_after or "").partition("-")[0]
        return int(number) if number.isdecimal() else 0


class TokenLengths(Resource):
    """How long samples are in tokens; bin `i` of `counts` begins at `i * bin_width` tokens."""

    num_samples: int = 0
    min: int = 0
    median: int = 0
    mean: float = 0.0
    percentile_95: int = 0
    max: int = 0
    num_over_limit: int = 0
    bin_width: int = 1
    counts: tuple[int, ...] = ()
    num_longer: int = 0


class FileStatistics(Resource):
    """What was counted in all rows of a file, once the status is 'completed'."""

    status: str
    model: str = ""
    max_length: int = 0
    num_rows: int = 0
    num_faulty_rows: int = 0
    num_duplicate_rows: int = 0
    num_compared_rows: int = 0
    lengths: TokenLengths | None = None

    @property
    def is_running(self) -> bool:
        """Whether the rows are still being read."""
        return self.status == "running"


class RowFinding(Resource):
    """A row with a fault, or one that is equal to the earlier row `first_number`."""

    number: int
    line: int = 0
    reason: str = ""
    content: str = ""
    first_number: int | None = None
