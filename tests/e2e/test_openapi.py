"""Thousands of requests made from the API's own description; none of them may be our fault."""

from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from tests.e2e.conftest import Application

pytestmark = pytest.mark.e2e

MODEL = "tuneserve-demo"
MIN_REQUESTS = 3000
MAX_TOKENS = 4
TEXT_PATHS = ("/v1/chat/completions", "/v1/completions")


def test_no_request_that_the_description_allows_is_our_fault(application: Application) -> None:
    schema: Any = schemathesis.openapi.from_url(f"{application.url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    statuses: Counter[int] = Counter()
    answered: Counter[str] = Counter()
    faults: list[str] = []

    def send(case: Any) -> None:
        _lead_to_the_model(case)
        response = case.call(timeout=60)
        statuses[response.status_code] += 1
        answered[case.path] += response.status_code == 200
        if response.status_code >= 500:
            faults.append(f"{case.method} {case.formatted_path}: {response.status_code}")

    num_each = 4 * MIN_REQUESTS // (3 * len(operations))  # one without parameters has one request
    for operation in operations:

        @settings(
            max_examples=num_each * (4 if operation.path in TEXT_PATHS else 1),
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def send_cases(case: Any) -> None:
            send(case)

        send_cases()
    print(dict(statuses), f"{len(operations)} operations")
    assert not faults, faults[:10]
    assert sum(statuses.values()) >= MIN_REQUESTS
    for path in TEXT_PATHS:
        assert answered[path] > 10, f"{answered}: some of them reached the model"
    assert application.client.models.retrieve(MODEL).id == MODEL


def _lead_to_the_model(case: Any) -> None:
    """Let requests for text get beyond the name of the model, and be short."""
    if isinstance(case.body, dict) and case.path in TEXT_PATHS:
        case.body["model"] = MODEL
        for name in ("max_tokens", "max_completion_tokens"):
            if isinstance(case.body.get(name), int):
                case.body[name] = min(case.body[name], MAX_TOKENS)
        if "max_completion_tokens" not in case.body:
            case.body.setdefault("max_tokens", MAX_TOKENS)
