import asyncio

import pytest

from apps.client.client import ApiClient
from apps.client.errors import (
    AnswerFailedError,
    ApiClientError,
    ApiTimeoutError,
    ApiUnreachableError,
    ConnectionLostError,
    RequestRefusedError,
    UnexpectedResponseError,
)
from apps.ui.error_messages import describe_error
from tests.apps.stub_api import StubApi

URL = "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("exc", "message"),
    [
        (RequestRefusedError(404, "Not Found", "there is no job 'x'"), "There is no job 'x'"),
        (
            RequestRefusedError(400, "Bad Request", "learning_rate is 0: it should be greater"),
            "learning_rate is 0: it should be greater",
        ),
        (
            RequestRefusedError(429, "Too Many", "all places are taken"),
            "All places are taken. Please try again in a moment.",
        ),
        (RequestRefusedError(404, "Not Found"), "The API returned status 404."),
        (
            RequestRefusedError(503, "Unavailable"),
            "The API returned status 503. Please try again in a moment.",
        ),
        (ApiTimeoutError(URL, ""), "The API took too long to answer; please try again."),
        (
            ApiUnreachableError(URL, "[Errno 111] Connection refused"),
            f"The API at {URL} does not answer; it may still be starting.",
        ),
        (ConnectionLostError(URL, ""), "The connection was lost during the answer."),
        (
            UnexpectedResponseError("not JSON"),
            "The API returned an unexpected response.",
        ),
        (AnswerFailedError("the model was unloaded"), "the model was unloaded"),
    ],
)
def test_errors_are_described_for_visitors(exc: ApiClientError, message: str) -> None:
    assert describe_error(exc) == message


def test_response_of_foreign_server_is_described(api: StubApi) -> None:
    async def list_models() -> None:
        async with ApiClient(f"{api.url}/elsewhere") as client:
            await client.models.list_all()

    with pytest.raises(RequestRefusedError) as caught:
        asyncio.run(list_models())
    assert describe_error(caught.value) == "The API returned status 404."
