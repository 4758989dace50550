"""Failures of the hub's library as errors of requests, without tokens."""

import httpx2
import pytest
from huggingface_hub import errors

from apps.hub.hub_process import explain_failure
from tests.apps.hub.conftest import TOKEN


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def answer(status: int, message: str = "") -> errors.HfHubHTTPError:
    request = httpx2.Request("GET", f"https://hub/x?token={TOKEN}")
    response = httpx2.Response(status, request=request)
    return errors.HfHubHTTPError(message, response=response, server_message=message)


@pytest.mark.parametrize(
    ("failure", "status", "code", "message"),
    [
        (answer(401), 404, "hub_model_not_found", "there is no model 'o/n' on the hub, or the ser"),
        (answer(403), 403, "hub_refused", "the hub refuses the server access to 'o/n'"),
        (answer(500, "on fire"), 502, "hub_failed", "the hub answered 500: on fire; try again"),
        (answer(503), 502, "hub_failed", "the hub answered 503: Service Unavailable; try again"),
        (ConnectionError("reset"), 502, "hub_unreachable", "the connection to the hub failed: res"),
        (httpx2.ReadTimeout("slow"), 502, "hub_unreachable", "the connection to the hub failed: s"),
        (errors.OfflineModeIsEnabled("x"), 409, "hub_offline", "the server does not use the hub"),
        (errors.FileMetadataError("x"), 502, "hub_failed", "the download from the hub failed: x"),
        (OSError(28, "full"), 507, "disk_full", "the server's disk has no room for it"),
        (RuntimeError(TOKEN), 500, "transfer_failed", "the server's log has the reason"),
    ],
)
def test_failures_have_a_status_and_a_reason(
    failure: Exception, status: int, code: str, message: str
) -> None:
    found = explain_failure(failure, "o/n")
    assert (found["status"], found["code"]) == (status, code)
    assert found["message"].startswith(message)


def test_answers_to_a_push_are_about_the_token() -> None:
    for status in (401, 403, 404):
        found = explain_failure(answer(status), "o/n", is_push=True)
        assert (found["status"], found["code"]) == (403, "hub_refused")


@pytest.mark.parametrize("num_before", [0, 280, 290])
def test_token_is_in_no_message_also_where_that_is_cut(num_before: int) -> None:
    text = f"{'x' * num_before} {TOKEN} was sent"
    for failure in (answer(500, text), ConnectionError(text), errors.FileMetadataError(text)):
        message = explain_failure(failure, "o/n")["message"]
        assert "<hid" in message or num_before == 290
        assert not any(TOKEN[:length] in message for length in range(6, len(TOKEN)))
