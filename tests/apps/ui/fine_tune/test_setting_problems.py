"""Refusals of the API are shown at the fields that are at fault, in the words of their labels."""

import pytest

from apps.client.errors import ApiTimeoutError, RequestRefusedError
from apps.ui.fine_tune.setting_fields import FieldError
from apps.ui.fine_tune.setting_problems import (
    Verdict,
    explain,
    explain_refusal,
)

KEYS = (
    *("epochs", "learning_rate", "micro_batch_tokens", "max_length", "columns", "adapter"),
    *("num_workers", "cpus_per_worker", "keep", "task_settings.beta"),
)


@pytest.mark.parametrize(
    ("param", "message", "key", "shown"),
    [
        (
            "learning_rate",
            "learning_rate is 0: it should be greater than 0",
            "learning_rate",
            "Learning rate is 0: it should be greater than 0.",
        ),
        (
            "training",
            "a row has 300 tokens, more than micro_batch_tokens 64; raise micro_batch_tokens",
            "micro_batch_tokens",
            "A row has 300 tokens, more than “Tokens per micro batch” 64; raise “Tokens per micro "
            "batch”.",
        ),
        (
            "training",
            "max_length is 1000, but 'tiny' has a context of 128 tokens",
            "max_length",
            "Max length is 1000, but 'tiny' has a context of 128 tokens.",
        ),
        (
            "training.num_workers",
            "num_workers is 300; this server accepts at most 256",
            "num_workers",
            "Workers is 300; this server accepts at most 256.",
        ),
        (
            None,
            "64 workers were asked for; lower num_workers or cpus_per_worker",
            "num_workers",
            "64 workers were asked for; lower “Workers” or “CPUs per worker”.",
        ),
        (
            "adapter.rank",
            "adapter.rank is 0: too small",
            "adapter",
            "Adapter (rank) is 0: too small.",
        ),
        (
            "training",
            "task_settings of task 'preference': beta is 0: it should be greater than 0",
            "task_settings.beta",
            "Beta is 0: it should be greater than 0.",
        ),
        (
            "training",
            "keep is 'best', which needs rows to evaluate on: set validation_file",
            "keep",
            "Keep is 'best', which needs rows to evaluate on: set “Validation file”.",
        ),
        (
            "suffix",
            "'suffix': String should match pattern '^[A-Za-z0-9][A-Za-z0-9_-]*$', found '../x'",
            "suffix",
            "Name of the result: use at most 64 letters, digits, hyphens and underscores, of which "
            "the first is a letter or a digit.",
        ),
    ],
)
def test_refusal_is_a_problem_of_its_field(
    param: str | None, message: str, key: str, shown: str
) -> None:
    refusal = RequestRefusedError(400, "Bad Request", message, "invalid_value", param)
    assert explain_refusal(refusal, KEYS) == Verdict({key: shown})


def test_several_faults_are_problems_of_several_fields() -> None:
    message = "learning_rate is 0: too small; epochs is 0: too small; raise it"
    refusal = RequestRefusedError(400, "Bad Request", message, None, "learning_rate")
    assert explain_refusal(refusal, KEYS).problems == {
        "learning_rate": "Learning rate is 0: too small.",
        "epochs": "Epochs is 0: too small; raise it.",
    }


def test_refusal_without_field_is_a_reason() -> None:
    refusal = RequestRefusedError(400, "Bad", "line 2: not JSON", None, "training_file")
    assert explain_refusal(refusal, KEYS) == Verdict(reason="Data: Line 2: not JSON.")
    busy = RequestRefusedError(429, "Too Many", "3 jobs are queued", None)
    assert "Please try again" in explain_refusal(busy, KEYS).reason
    assert explain_refusal(busy, KEYS).is_temporary
    denied = RequestRefusedError(403, "Forbidden", "the key may not read files", None)
    assert not explain_refusal(denied, KEYS).is_temporary
    lost = ApiTimeoutError("http://api", "slow")
    assert (
        explain_refusal(lost, KEYS).reason == "The API took too long to answer; please try again."
    )


def test_verdict_names_elements_of_fields() -> None:
    found = explain(FieldError("task_settings.beta", "Beta is empty"), ()).to_message()
    problem = {"id": "setting-beta", "message": "Beta is empty"}
    assert found == {"problems": [problem], "reason": "Beta is empty", "is_temporary": False}
    assert Verdict().to_message()["reason"] == ""
    named = Verdict({"suffix": "x" * 500}).to_message()
    assert named["problems"] == [{"id": "run-name", "message": "x" * 500}]
    assert len(str(named["reason"])) < 200
