"""`/v1/evaluations`: models answer the questions of rows; create, list, show, cancel, delete."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response

from apps.access.roles import Permission, requires
from apps.errors import ApiError, not_found
from apps.evaluations.evaluation_objects import (
    describe_evaluation,
    describe_row,
    write_rows_csv,
)
from apps.evaluations.evaluation_record import RowFilter
from apps.evaluations.evaluation_requests import (
    EvaluationRequest,
    name_model_field,
    parse_evaluation,
)
from apps.http_api.closing_response import ClosingResponse
from apps.http_api.json_body import JsonBody
from apps.http_api.pagination import After, Limit, cut_page, describe_page
from apps.http_api.publish_on_demand import ensure_model
from apps.http_api.routes import PrincipalOf, ServicesOf, describe_body
from serving.openai.protocol import MAX_MODEL_CHARACTERS

router = APIRouter(prefix="/v1/evaluations")

RowLimit = Annotated[int, Query(ge=1, le=200, description="Maximum number of rows.")]
ListFormat = Annotated[
    Literal["json", "csv"], Query(description="A page of a list, or all rows together as CSV.")
]


@router.post("", openapi_extra=describe_body(EvaluationRequest))
@requires(Permission.WRITE_JOBS)
async def create_evaluation(
    services: ServicesOf, principal: PrincipalOf, body: JsonBody
) -> Mapping[str, object]:
    """Validate an evaluation and queue it; one is computed at a time."""
    request = await body.check(parse_evaluation)
    for place, name in enumerate(request.models):
        with name_model_field(place):
            await ensure_model(services, principal, name)
    return await services.evaluating.create(body.value)


@router.get("")
@requires(Permission.READ_JOBS)
async def list_model_evaluations(
    services: ServicesOf,
    limit: Limit = 20,
    after: After = None,
    model: Annotated[
        str | None,
        Query(
            max_length=MAX_MODEL_CHARACTERS,
            description="Only evaluations of this model, by its id or by the alias in the request.",
        ),
    ] = None,
) -> Mapping[str, object]:
    """List evaluations, newest first."""
    records = await asyncio.to_thread(services.evaluations.list_all)
    chosen = [record for record in records if model is None or record.uses_model(model)]
    page, has_more = cut_page(chosen, lambda record: record.id, limit, after, descending=True)
    return describe_page([dict(describe_evaluation(one)) for one in page], has_more=has_more)


@router.get("/{evaluation_id}")
@requires(Permission.READ_JOBS)
def get_evaluation(services: ServicesOf, evaluation_id: str) -> Mapping[str, object]:
    """Show one evaluation with its progress and its metrics."""
    return describe_evaluation(services.evaluations.get(evaluation_id))


@router.post("/{evaluation_id}/cancel")
@requires(Permission.WRITE_JOBS)
async def cancel_evaluation(services: ServicesOf, evaluation_id: str) -> Mapping[str, object]:
    """Cancel a queued or running evaluation; the rows that are done are kept."""
    return await services.evaluating.cancel(evaluation_id)


@router.delete("/{evaluation_id}")
@requires(Permission.WRITE_JOBS)
async def delete_evaluation(services: ServicesOf, evaluation_id: str) -> Mapping[str, object]:
    """Delete an evaluation that has ended, with its rows."""
    await services.evaluating.delete(evaluation_id)
    return {"id": evaluation_id, "object": "evaluation", "deleted": True}


@router.get("/{evaluation_id}/rows", response_model=None)
@requires(Permission.READ_FILES)
def list_evaluation_rows(
    services: ServicesOf,
    evaluation_id: str,
    limit: RowLimit = 20,
    after: After = None,
    filter: Annotated[  # noqa: A002 - the name of the parameter
        RowFilter,
        Query(
            description="All rows; those whose answers differ (with one model: are not exact); or "
            "those with an answer that is not exact."
        ),
    ] = "all",
    format: ListFormat = "json",  # noqa: A002 - the name of the parameter
) -> Mapping[str, object] | Response:
    """List the rows that are done, with the answers of the models, in the order of the file."""
    record = services.evaluations.get(evaluation_id)
    if format == "json":
        page = services.evaluated_rows.read_page(record.id, limit, after, filter)
        if page is None:
            error = not_found("row", (after or "")[:100])
            raise ApiError(404, error.message, param="after", code=error.code)
        rows = [dict(describe_row(row)) for row in page.rows]
        return describe_page(rows, has_more=page.has_more)
    if after is not None:
        message = f"after is {after[:100]!r}: a list as 'csv' has all entries, leave it out"
        raise ApiError(400, message, param="after")
    rows_done = services.evaluations.iterate_rows(record.id)
    chosen = (row for row in rows_done if row.matches(filter))
    return ClosingResponse(
        write_rows_csv(record, chosen),
        media_type="text/csv; charset=utf-8",
        headers={"content-disposition": f'attachment; filename="{record.id}.csv"'},
    )
