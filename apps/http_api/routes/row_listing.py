"""Rows of a file: pages with a search, statistics, and the rows with faults or equal ones."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response

from apps.access.roles import Permission, requires
from apps.csv_table import write_csv_line
from apps.errors import ApiError
from apps.fine_tuning.rows.row_pages import RowQuery
from apps.fine_tuning.rows.survey_objects import FindingKind
from apps.http_api.dependencies import Services
from apps.http_api.pagination import After, Limit, cut_page, describe_page
from apps.http_api.routes import ServicesOf
from apps.http_api.routes.files import Training, read_settings

router = APIRouter(prefix="/v1/files/{file_id}")

ModelName = Annotated[str, Query(description="Id or alias of the model.")]
ListFormat = Annotated[
    Literal["json", "jsonl", "csv"],
    Query(description="A page of a list, or all entries together as JSONL or CSV."),
]
_COLUMNS = ("number", "line", "reason", "content")
_MEDIA_TYPES = {"csv": "text/csv; charset=utf-8", "jsonl": "application/x-ndjson"}


@router.get("/rows")
@requires(Permission.READ_FILES)
async def list_rows(
    services: ServicesOf,
    file_id: str,
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of rows.")] = 20,
    after: Annotated[
        str | None, Query(description="Id of a row of this file, as in next_after.")
    ] = None,
    search: Annotated[
        str, Query(max_length=200, description="Only rows with this text, in any case.")
    ] = "",
    max_characters: Annotated[
        int, Query(ge=100, le=20_000, description="Most characters of a row; longer ones are cut.")
    ] = 4000,
) -> Mapping[str, object]:
    """Show rows as readable text, in the order of the file.

    A page may have fewer rows than the limit, or none, although more follow: one call reads for a
    few seconds. The next page begins after next_after.
    """
    query = RowQuery(after, search, limit, max_characters)
    return await services.fine_tuning.read_rows(file_id, query)


@router.get("/statistics")
@requires(Permission.READ_FILES)
async def show_statistics(
    services: ServicesOf, file_id: str, model: ModelName = "latest", training: Training = "{}"
) -> Mapping[str, object]:
    """Show how long the rows are in a model's tokens, and how many are faulty or equal.

    Rows of a large file are read in the background; the status is 'running' until then.
    """
    return await services.fine_tuning.survey_rows(file_id, model, read_settings(training))


@router.get("/faults", response_model=None)
@requires(Permission.READ_FILES)
async def list_faults(
    services: ServicesOf,
    file_id: str,
    model: ModelName = "latest",
    training: Training = "{}",
    limit: Limit = 100,
    after: After = None,
    format: ListFormat = "json",  # noqa: A002 - the name of the parameter
) -> Mapping[str, object] | Response:
    """List the rows that cannot be used, with the reason of each; at most 10,000."""
    found = await _find(services, file_id, model, training, "fault")
    return _show(found, limit, after, format, f"{file_id}-faults")


@router.get("/duplicates", response_model=None)
@requires(Permission.READ_FILES)
async def list_duplicates(
    services: ServicesOf,
    file_id: str,
    model: ModelName = "latest",
    training: Training = "{}",
    limit: Limit = 100,
    after: After = None,
    format: ListFormat = "json",  # noqa: A002 - the name of the parameter
) -> Mapping[str, object] | Response:
    """List the rows that are equal to an earlier row; at most 10,000."""
    found = await _find(services, file_id, model, training, "duplicate")
    return _show(found, limit, after, format, f"{file_id}-duplicates")


async def _find(
    services: Services, file_id: str, model: str, training: str, kind: FindingKind
) -> Sequence[Mapping[str, object]]:
    settings = read_settings(training)
    return await services.fine_tuning.list_findings(file_id, model, settings, kind)


def _show(
    found: Sequence[Mapping[str, object]], limit: int, after: str | None, shown_as: str, name: str
) -> Mapping[str, object] | Response:
    if shown_as == "json":
        page, has_more = cut_page(found, lambda one: str(one["id"]), limit, after)
        return describe_page(page, has_more=has_more)
    if after is not None:
        message = f"after is {after[:100]!r}: a list as {shown_as!r} has all entries, leave it out"
        raise ApiError(400, message, param="after")
    write = write_csv if shown_as == "csv" else write_json_lines
    return Response(
        write(found),
        media_type=_MEDIA_TYPES[shown_as],
        headers={"content-disposition": f'attachment; filename="{name}.{shown_as}"'},
    )


def write_csv(found: Sequence[Mapping[str, object]]) -> bytes:
    """Write entries as a table with a header."""
    rows = ([one[name] for name in _COLUMNS] for one in found)
    return b"".join(map(write_csv_line, [_COLUMNS, *rows]))


def write_json_lines(found: Sequence[Mapping[str, object]]) -> bytes:
    """Write entries as one JSON object a line."""
    return "".join(
        json.dumps({name: one[name] for name in _COLUMNS}, ensure_ascii=False) + "\n"
        for one in found
    ).encode()
