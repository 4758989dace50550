"""Responses of an API of another release."""

import logging

import pytest

from apps.client.errors import UnexpectedResponseError
from apps.client.model_resources import Model
from apps.client.resources import Access, Job, Metrics, read_resource, read_resources

JOB = {"id": "ftjob-1", "status": "running", "model": "m", "training_file": "f", "created_at": 1}


def test_unknown_keys_are_kept_only_in_raw_response() -> None:
    sent = {**JOB, "colour": "red"}
    job = read_resource(Job, sent)
    assert job.raw == sent
    assert "colour" not in job.model_dump()


def test_invalid_optional_value_is_ignored_and_required_one_raises() -> None:
    job = read_resource(Job, {**JOB, "progress": {"step": "third"}, "result_files": 3})
    assert (job.progress, job.result_files, job.raw["result_files"]) == (None, (), 3)
    with pytest.raises(UnexpectedResponseError, match=r"^Job\.status: "):
        read_resource(Job, {**JOB, "status": 3})
    with pytest.raises(UnexpectedResponseError, match=r"^found 'job', expected an object$"):
        read_resource(Job, "job")
    # As an API of another release may send it for a mix of files.
    assert read_resource(Job, {**JOB, "training_file": None}).training_file == ""


def test_access_response_without_valid_key_field_raises() -> None:
    """An unexpected key must not look like a request that needs none."""
    assert read_resource(Access, {"key": None, "permissions": []}).key is None
    without_key: dict[str, object] = {"permissions": []}
    for invalid in (without_key, {**without_key, "key": {"name": "a"}}):
        with pytest.raises(UnexpectedResponseError, match=r"^Access\.key: "):
            read_resource(Access, invalid)


def test_unreadable_list_entry_is_skipped_with_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    found = read_resources(Model, [{"id": "a", "created": "?"}, {"name": "b"}, None, {"id": "c"}])
    assert [(model.id, model.created) for model in found] == [("a", 0), ("c", 0)]
    assert len(caplog.records) == 2


def test_metrics_with_null_loss_are_kept() -> None:
    sent = [{"step": 1, "num_steps": 2, "loss": None}, {"step": 2, "num_steps": 2, "loss": 3.0}]
    assert [entry.loss for entry in read_resources(Metrics, sent)] == [None, 3.0]


def test_resources_with_different_raw_values_are_unequal() -> None:
    first = read_resource(Metrics, {"step": 1, "num_steps": 2, "grad_norm": 1.0})
    assert first == read_resource(Metrics, {"step": 1, "num_steps": 2, "grad_norm": 1.0})
    assert first != read_resource(Metrics, {"step": 1, "num_steps": 2, "grad_norm": 2.0})
