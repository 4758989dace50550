"""Requests for evaluations: the answers of models to rows, compared with the expected ones."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal, NotRequired, TypedDict

from apps.client.connection import ApiConnection, ApiRequest, join_path
from apps.client.errors import UnexpectedResponseError
from apps.client.evaluation_resources import Evaluation, EvaluationRow, EvaluationRows
from apps.client.resources import read_resource, read_resources

EVALUATIONS_PATH = "/v1/evaluations"
RowFilter = Literal["all", "different", "wrong"]
_MAX_PAGE_ENTRIES = 100


class EvaluationRequest(TypedDict):
    """A new evaluation of one or two models; None: the field is absent.

    Its rows are those of `file`, or the validation rows of `job`: one of both is needed.
    """

    models: Sequence[str]
    file: NotRequired[str | None]
    job: NotRequired[str | None]
    max_rows: NotRequired[int | None]
    max_tokens: NotRequired[int | None]
    training: NotRequired[Mapping[str, object] | None]


class EvaluationsClient:
    """Creates, lists, shows, cancels and deletes evaluations."""

    def __init__(self, connection: ApiConnection) -> None:
        self._connection = connection

    async def create(self, request: EvaluationRequest) -> Evaluation:
        """Create an evaluation, which then runs in the background."""
        content = {name: value for name, value in request.items() if value is not None}
        sent = ApiRequest("POST", EVALUATIONS_PATH, json=content)
        return read_resource(Evaluation, await self._connection.read_object(sent))

    async def get(self, evaluation_id: str) -> Evaluation:
        """Return one evaluation."""
        request = ApiRequest("GET", join_path(EVALUATIONS_PATH, evaluation_id))
        return read_resource(Evaluation, await self._connection.read_object(request))

    async def list_all(
        self, model: str | None = None, limit: int | None = None
    ) -> list[Evaluation]:
        """List all evaluations or the newest `limit`, newest first; with `model` only its own."""
        size = _MAX_PAGE_ENTRIES if limit is None else min(limit, _MAX_PAGE_ENTRIES)
        query = {"limit": str(size)} | ({"model": model} if model else {})
        entries = await self._connection.read_entries(EVALUATIONS_PATH, query, limit)
        return read_resources(Evaluation, entries)

    async def cancel(self, evaluation_id: str) -> Evaluation:
        """Cancel an evaluation; the rows that are done remain."""
        path = join_path(EVALUATIONS_PATH, evaluation_id, "cancel")
        request = ApiRequest("POST", path, kind="change")
        return read_resource(Evaluation, await self._connection.read_object(request))

    async def delete(self, evaluation_id: str) -> Mapping[str, object]:
        """Delete an evaluation that has ended; return the response."""
        request = ApiRequest("DELETE", join_path(EVALUATIONS_PATH, evaluation_id))
        return await self._connection.read_object(request)

    async def list_rows(
        self,
        evaluation_id: str,
        limit: int = 20,
        after: str | None = None,
        filter: RowFilter = "all",  # noqa: A002 - the API's
    ) -> EvaluationRows:
        """List the rows after a row, or those of them that a filter keeps, in the file's order."""
        query = {"limit": str(limit), "filter": filter} | ({"after": after} if after else {})
        request = ApiRequest("GET", _find_rows(evaluation_id), query=query)
        page = await self._connection.read_object(request)
        entries = page.get("data")
        if not isinstance(entries, list):
            raise UnexpectedResponseError("the body has no list 'data'")
        return EvaluationRows(read_resources(EvaluationRow, entries), bool(page.get("has_more")))

    @asynccontextmanager
    async def download_csv(
        self,
        evaluation_id: str,
        filter: RowFilter = "all",  # noqa: A002 - the API's
        key: str | None = None,
    ) -> AsyncGenerator[AsyncIterator[bytes], None]:
        """Stream all rows that a filter keeps, as CSV; with `key` in place of the client's key."""
        query = {"filter": filter, "format": "csv"}
        path = _find_rows(evaluation_id)
        request = ApiRequest("GET", path, query=query, key=key, kind="transfer")
        async with self._connection.stream(request) as response:
            yield response.aiter_bytes()


def _find_rows(evaluation_id: str) -> str:
    return join_path(EVALUATIONS_PATH, evaluation_id, "rows")
