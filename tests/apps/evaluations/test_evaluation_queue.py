"""Evaluations from their creation to their end: metrics, restarts, cancellation, refusals."""

import asyncio
import errno
import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest

from apps.errors import ApiError
from apps.evaluations import evaluation_creation
from apps.evaluations.evaluation_queue import EvaluationQueue
from apps.evaluations.evaluation_record import StoredRow
from apps.evaluations.evaluation_store import RECORD_NAME, ROWS_NAME, EvaluationStore
from apps.fine_tuning.queue import RunQueue
from apps.fine_tuning.validation.row_thread import RowThread
from serving.errors import (
    DeadlineExceededError,
    EngineDeadError,
    ModelNotFoundError,
    OverloadedError,
    ServingError,
)
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from tests.apps.conftest import NotedJobs
from tests.apps.evaluations.conftest import (
    LOGPROB,
    ScriptedSource,
    add_file,
    add_stored,
    answer_exactly,
    finish,
    make_rows,
    open_queue,
    read_rows,
)
from tests.tiny_encoder import build_tiny_encoder
from tests.waiting import wait_for

pytestmark = pytest.mark.anyio

BOTH = ["tiny", "other"]


async def test_two_models_are_compared(
    evaluations: EvaluationQueue, layout: StorageLayout, source: ScriptedSource, ten_rows: str
) -> None:
    source.answers["other"] = lambda prompt: f"I think: {answer_exactly(prompt).upper()}"
    created = await evaluations.create(
        {"models": ["latest", "other"], "file": ten_rows, "max_rows": 7, "max_tokens": 5}
    )
    assert (created["status"], created["num_rows"], created["num_done"]) == ("queued", None, 0)
    assert [one["exact_match"] for one in created["models"]] == [None, None]
    record = await finish(evaluations, layout, created)
    assert (record.status, record.num_rows, record.num_done) == ("succeeded", 7, 7)
    assert record.finished_at is not None
    tiny, other = record.models
    assert (tiny.model, tiny.requested, other.requested) == ("tiny", "latest", "other")
    assert (tiny.exact_match, tiny.contains, tiny.rouge_l) == (1.0, 1.0, 1.0)
    # 3 words of "i think it is 1", all 3 of "it is 1"
    assert (other.exact_match, other.contains) == (0.0, 1.0)
    assert other.rouge_l == pytest.approx(6 / 8)
    assert tiny.perplexity == other.perplexity == pytest.approx(math.exp(-LOGPROB))
    rows = read_rows(layout, record.id)
    assert [(row.id, row.number) for row in rows] == [(f"row-{n}", n) for n in range(1, 8)]
    assert (rows[2].prompt, rows[2].expected) == ("What is 3?", "It is 3.")
    assert [answer.text for answer in rows[2].answers] == ["It is 3.", "I think: IT IS 3."]
    assert rows[2].answers[0].finish_reason == "stop"
    # "It is 3." and the end of the turn
    num_tokens = len(source.tokenizer("It is 3.<|im_end|>")["input_ids"])
    assert rows[2].answers[0].num_tokens == num_tokens
    assert set(source.asked.values()) == {1}
    assert source.most_open <= 4


async def test_never_more_than_four_requests_are_open(
    evaluations: EvaluationQueue, layout: StorageLayout, source: ScriptedSource, ten_rows: str
) -> None:
    source.gate.clear()
    created = await evaluations.create({"models": ["tiny"], "file": ten_rows})
    await evaluations.start_next()
    await wait_for(lambda: source.num_open == 4, 30, "four requests are open")
    source.gate.set()
    await finish(evaluations, layout, created)
    assert source.most_open == 4


async def test_evaluation_continues_after_its_last_stored_row(
    evaluations: EvaluationQueue,
    layout: StorageLayout,
    row_thread: RowThread,
    source: ScriptedSource,
    ten_rows: str,
) -> None:
    created = await evaluations.create({"models": ["tiny"], "file": ten_rows})
    path = layout.evaluations.find(created["id"]) / ROWS_NAME

    def count_done() -> int:
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def answer_slowly(prompt: str) -> str:
        if sum(source.asked.values()) == 6:
            source.gate.clear()
        return answer_exactly(prompt)

    source.answers["tiny"] = answer_slowly
    await evaluations.start_next()
    await wait_for(lambda: not source.gate.is_set() and source.num_open == 4, 30, "it stalls")
    await evaluations.stop()
    num_done = count_done()
    assert 0 < num_done < 10
    assert EvaluationStore(layout).get(created["id"]).status == "running"
    with path.open("ab") as file:  # the application was killed while it wrote a line
        file.write(b'{"id": "row-9", "numb')
    source.gate.set()
    source.answers.clear()
    source.asked.clear()
    restarted = open_queue(layout, row_thread, source)
    record = await finish(restarted, layout, created)
    assert (record.status, record.num_done) == ("succeeded", 10)
    assert [row.number for row in read_rows(layout, record.id)] == list(range(1, 11))
    assert sum(source.asked.values()) == 10 - num_done
    assert record.models[0].exact_match == 1.0


async def test_queue_of_jobs_computes_evaluations_and_stops_them_to_drain(
    layout: StorageLayout, source: ScriptedSource, ten_rows: str, jobs: NotedJobs
) -> None:
    queue = RunQueue(layout, jobs, answers=source)
    source.gate.clear()
    created = await queue.evaluations.create({"models": ["tiny"], "file": ten_rows})
    await queue.reconcile()
    await wait_for(lambda: source.num_open == 4, 30, "the evaluation asks")
    assert await queue.drain()
    assert (source.num_open, source.num_cancelled) == (0, 4)
    queue.close()
    source.gate.set()
    after = RunQueue(layout, jobs, answers=source)
    store = EvaluationStore(layout)
    async with asyncio.timeout(30):
        while not store.get(created["id"]).is_final:
            await after.reconcile()
            await asyncio.sleep(0.01)
    after.close()
    assert store.get(created["id"]).status == "succeeded"


async def test_running_evaluation_is_cancelled_and_the_next_starts(
    evaluations: EvaluationQueue, layout: StorageLayout, source: ScriptedSource, ten_rows: str
) -> None:
    source.gate.clear()
    first = await evaluations.create({"models": ["tiny"], "file": ten_rows})
    second = await evaluations.create({"models": ["other"], "file": ten_rows, "max_rows": 2})
    await evaluations.start_next()
    await wait_for(lambda: source.num_open == 4, 30, "the first one asks")
    assert EvaluationStore(layout).get(second["id"]).status == "queued"
    cancelled = await evaluations.cancel(first["id"])
    assert cancelled["status"] == "cancelled"
    assert cancelled["finished_at"] is not None
    assert (source.num_open, source.num_cancelled) == (0, 4)
    source.gate.set()
    assert (await finish(evaluations, layout, second)).status == "succeeded"
    assert EvaluationStore(layout).get(first["id"]).status == "cancelled"
    with pytest.raises(ApiError, match="has the status 'cancelled'") as refused:
        await evaluations.cancel(first["id"])
    assert refused.value.status == 409


async def test_cancellation_completes_although_its_caller_has_left(
    evaluations: EvaluationQueue,
    layout: StorageLayout,
    ten_rows: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writes, may_end = threading.Event(), threading.Event()
    add_row = EvaluationStore.add_row

    def add_slowly(store: EvaluationStore, evaluation_id: str, row: StoredRow) -> None:
        writes.set()
        assert may_end.wait(30)
        add_row(store, evaluation_id, row)

    monkeypatch.setattr(EvaluationStore, "add_row", add_slowly)
    created = await evaluations.create({"models": ["tiny"], "file": ten_rows})
    await evaluations.start_next()
    await wait_for(writes.is_set, 30, "a row is written")
    caller = asyncio.create_task(evaluations.cancel(created["id"]))
    is_stopping = lambda: any(task.cancelling() for task in asyncio.all_tasks())  # noqa: E731
    await wait_for(is_stopping, 30, "the evaluation is being stopped")
    caller.cancel()
    await asyncio.wait([caller])
    may_end.set()
    store = EvaluationStore(layout)
    await wait_for(lambda: store.get(created["id"]).is_final, 30, "it is cancelled")
    assert store.get(created["id"]).status == "cancelled"
    assert len(read_rows(layout, created["id"])) == 1


async def test_runs_do_not_wait_for_requests_about_evaluations(
    layout: StorageLayout, source: ScriptedSource, jobs: NotedJobs, ten_rows: str
) -> None:
    queue = RunQueue(layout, jobs, answers=source)
    await queue.evaluations.create({"models": ["tiny"], "file": ten_rows})
    may_end = threading.Event()
    blocked = [asyncio.create_task(asyncio.to_thread(may_end.wait)) for _ in range(64)]
    try:
        await asyncio.sleep(0)
        await asyncio.wait_for(queue.reconcile(), 30)
    finally:
        may_end.set()
        await asyncio.gather(*blocked)
        queue.close()


async def test_queued_evaluation_is_cancelled_without_being_asked(
    evaluations: EvaluationQueue, layout: StorageLayout, source: ScriptedSource, ten_rows: str
) -> None:
    created = await evaluations.create({"models": ["tiny"], "file": ten_rows})
    assert (await evaluations.cancel(created["id"]))["status"] == "cancelled"
    await evaluations.start_next()
    assert not source.asked


async def test_only_ended_evaluation_is_deleted(
    evaluations: EvaluationQueue, layout: StorageLayout, ten_rows: str
) -> None:
    created = await evaluations.create({"models": ["tiny"], "file": ten_rows})
    with pytest.raises(ApiError, match="is queued: cancel it first") as refused:
        await evaluations.delete(created["id"])
    assert refused.value.status == 409
    await finish(evaluations, layout, created)
    await evaluations.delete(created["id"])
    assert list(layout.evaluations.folder.iterdir()) == []
    for call in (evaluations.delete, evaluations.cancel):
        with pytest.raises(ApiError) as missing:
            await call(created["id"])
        assert missing.value.status == 404


async def test_rows_that_cannot_be_answered_are_counted_and_not_fatal(
    evaluations: EvaluationQueue, layout: StorageLayout
) -> None:
    long = {"prompt": f"What is 1? {'x y ' * 200}", "completion": "Unknown."}
    good = make_rows(2)
    file_id = add_file(layout, [good[0], "{broken", long, {"prompt": "no answer"}, good[1]])
    created = await evaluations.create({"models": BOTH, "file": file_id})
    record = await finish(evaluations, layout, created)
    assert (record.status, record.num_rows, record.num_done) == ("succeeded", 5, 5)
    for figures in record.models:
        assert (figures.num_rows, figures.num_failed) == (5, 3)
        assert (figures.exact_match, figures.rouge_l) == (1.0, 1.0)
    errors = [row.answers[0].error for row in read_rows(layout, record.id)]
    assert errors[0] is errors[4] is None
    assert "not JSON" in str(errors[1])
    assert "the prompt has" in str(errors[2])
    assert "completion" in str(errors[3])


async def test_expected_answer_beyond_the_context_has_no_perplexity(
    evaluations: EvaluationQueue, layout: StorageLayout
) -> None:
    row = {"prompt": "What is 1?", "completion": "x y " * 200}
    created = await evaluations.create({"models": ["tiny"], "file": add_file(layout, [row])})
    record = await finish(evaluations, layout, created)
    (stored,) = read_rows(layout, record.id)
    assert (stored.answers[0].error, stored.answers[0].perplexity) == (None, None)
    assert (record.models[0].num_failed, record.models[0].perplexity) == (0, None)


async def test_perplexity_is_over_all_tokens_of_all_rows(
    evaluations: EvaluationQueue, layout: StorageLayout, source: ScriptedSource, ten_rows: str
) -> None:
    created = await evaluations.create({"models": ["tiny"], "file": ten_rows, "max_rows": 2})
    record = await finish(evaluations, layout, created)
    answers = [row.answers[0] for row in read_rows(layout, record.id)]
    total = sum(answer.loss_sum for answer in answers)
    assert total == -LOGPROB * sum(answer.num_tokens for answer in answers)


async def test_request_is_repeated_while_generators_are_busy_or_restart(
    evaluations: EvaluationQueue, layout: StorageLayout, source: ScriptedSource, ten_rows: str
) -> None:
    source.failures = [OverloadedError("full") for _ in range(20)]
    source.failures += [EngineDeadError("its process ended"), DeadlineExceededError("late")]
    created = await evaluations.create({"models": ["tiny"], "file": ten_rows, "max_rows": 1})
    record = await finish(evaluations, layout, created)
    assert (record.status, record.models[0].num_failed) == ("succeeded", 0)
    assert source.failures == []


async def test_row_fails_whose_answer_is_late_three_times(
    evaluations: EvaluationQueue, layout: StorageLayout, source: ScriptedSource, ten_rows: str
) -> None:
    source.failures = [DeadlineExceededError("late") for _ in range(3)]
    created = await evaluations.create({"models": ["tiny"], "file": ten_rows, "max_rows": 1})
    record = await finish(evaluations, layout, created)
    assert (record.status, record.models[0].num_failed) == ("succeeded", 1)


async def test_answers_are_not_late_while_generators_start(
    evaluations: EvaluationQueue, layout: StorageLayout, source: ScriptedSource, ten_rows: str
) -> None:
    source.is_starting = True
    source.failures = [DeadlineExceededError("late") for _ in range(4)]
    created = await evaluations.create({"models": ["tiny"], "file": ten_rows, "max_rows": 1})
    record = await finish(evaluations, layout, created)
    assert (record.status, record.models[0].num_failed) == ("succeeded", 0)


async def test_lasting_system_error_fails_only_its_own_evaluation(
    evaluations: EvaluationQueue, layout: StorageLayout, ten_rows: str
) -> None:
    body = {"models": ["tiny"], "file": ten_rows, "max_rows": 2}
    broken, other = await evaluations.create(body), await evaluations.create(body)
    (layout.evaluations.find(broken["id"]) / ROWS_NAME).mkdir()  # reading it raises an OSError
    assert (await finish(evaluations, layout, other)).status == "succeeded"
    record = await finish(evaluations, layout, broken)
    assert record.status == "failed"
    assert record.error is not None
    assert record.error.code == "system_error"
    assert "8 attempts were interrupted by a system error (Is a directory)" in record.error.message
    assert str(layout.root) not in record.error.message


async def test_interrupted_evaluation_is_queued_and_succeeds_once_the_error_is_gone(
    evaluations: EvaluationQueue,
    layout: StorageLayout,
    ten_rows: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, add_row, num_attempts = EvaluationStore(layout), EvaluationStore.add_row, 0

    def add_one(self: EvaluationStore, evaluation_id: str, row: StoredRow) -> None:
        """Add one row per attempt: each makes progress."""
        nonlocal num_attempts
        if row.number % 2 == 0 and row.number > num_attempts:
            num_attempts = row.number
            raise OSError(errno.ENOSPC, "No space left on device")
        add_row(self, evaluation_id, row)

    monkeypatch.setattr(EvaluationStore, "add_row", add_one)
    monkeypatch.setattr("apps.evaluations.evaluation_queue.MAX_ATTEMPTS", 2)
    created = await evaluations.create({"models": ["tiny"], "file": ten_rows})
    await evaluations.start_next()
    await wait_for(lambda: num_attempts == 2, 30, "the evaluation is interrupted")
    await wait_for(lambda: store.get(created["id"]).status == "queued", 30, "it is queued again")
    record = await finish(evaluations, layout, created)
    assert (record.status, record.num_done, num_attempts) == ("succeeded", 10, 10)


@pytest.mark.parametrize(
    ("failure", "code"),
    [(ModelNotFoundError("gone"), "model_not_found"), (EngineDeadError("damaged"), "model_failed")],
)
async def test_evaluation_fails_if_its_model_cannot_be_served(
    evaluations: EvaluationQueue,
    layout: StorageLayout,
    source: ScriptedSource,
    ten_rows: str,
    failure: Exception,
    code: str,
) -> None:
    source.failures = [failure] * 50
    created = await evaluations.create({"models": ["tiny"], "file": ten_rows})
    record = await finish(evaluations, layout, created)
    assert record.status == "failed"
    assert record.error is not None
    assert record.error.code == code
    assert str(failure) in record.error.message


async def test_bug_fails_only_its_evaluation(
    evaluations: EvaluationQueue, layout: StorageLayout, source: ScriptedSource, ten_rows: str
) -> None:
    source.failures = [ZeroDivisionError("a bug")]
    broken = await evaluations.create({"models": ["tiny"], "file": ten_rows})
    whole = await evaluations.create({"models": ["other"], "file": ten_rows})
    failed = await finish(evaluations, layout, broken)
    assert (failed.status, failed.error and failed.error.code) == ("failed", "internal_error")
    assert (await finish(evaluations, layout, whole)).status == "succeeded"


async def test_failure_with_half_of_a_surrogate_pair_is_recorded(
    evaluations: EvaluationQueue, layout: StorageLayout, source: ScriptedSource, ten_rows: str
) -> None:
    source.failures = [ServingError("the row has \ud800")]
    created = await evaluations.create({"models": ["tiny"], "file": ten_rows})
    failed = await finish(evaluations, layout, created)
    assert failed.error is not None
    assert failed.error.message == "the row has ?"


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"models": []}, 400, "expected at least 1 models, got 0"),
        ({"models": ["tiny", "other", "latest"]}, 400, "expected at most 2 models, got 3"),
        ({"models": ["tiny", "latest"]}, 400, "'tiny' and 'latest' are the same model, 'tiny'"),
        ({"models": ["gone"]}, 404, "gone"),
        ({"models": ["encoder"]}, 400, "is an encoder"),
        ({"file": "file-gone"}, 404, "there is no file 'file-gone'"),
        ({"file": None}, 400, "neither file nor job is given"),
        ({"job": "ftjob-1"}, 400, "file and job are both given"),
        ({"file": None, "job": "ftjob-1"}, 404, "there is no job 'ftjob-1'"),
        ({"file": "file-text"}, 400, "its rows are plain text without answers"),
        ({"file": "file-broken"}, 400, "can be asked none of the first 2 rows of file"),
        ({"file": "file-labels"}, 400, "are for task 'sequence_classification'"),
        ({"file": "file-result"}, 400, "has the purpose 'fine-tune-results'"),
        ({"file": "file-empty"}, 400, "file-empty"),
        ({"max_rows": 0}, 400, "'max_rows'"),
        ({"max_rows": 2001}, 400, "'max_rows'"),
        ({"max_tokens": 4097}, 400, "'max_tokens'"),
        ({"training": {"columns": {"prompt": "question"}}}, 400, "question"),
        ({"training": {"learning_rate": 0}}, 400, "learning_rate"),
        ({"temperature": 1}, 400, "'temperature'"),
    ],
)
async def test_invalid_request_is_refused(
    evaluations: EvaluationQueue,
    layout: StorageLayout,
    ten_rows: str,
    tmp_path: Path,
    change: dict[str, Any],
    status: int,
    message: str,
) -> None:
    ModelStore(layout).add(build_tiny_encoder(tmp_path / "encoder"), "encoder")
    add_file(layout, [{"text": "Only text."}] * 2, "file-text")
    add_file(layout, ["{broken", "{broken"], "file-broken")
    add_file(layout, [{"text": "good", "label": "yes"}], "file-labels")
    add_file(layout, [], "file-empty")
    path = layout.file("file-result")
    add_file(layout, make_rows(1), "file-result")
    record = json.loads((path / "file.json").read_text())
    (path / "file.json").write_text(json.dumps({**record, "purpose": "fine-tune-results"}))
    body = {"models": ["tiny"], "file": ten_rows, **change}
    with pytest.raises((ApiError, ServingError), match=message) as refused:
        await evaluations.create(body)
    assert _find_status(refused.value) == status
    assert EvaluationStore(layout).list_all() == []


@pytest.mark.parametrize(
    ("models", "field"),
    [
        (["gone"], "models.0"),
        (["tiny", "gone"], "models.1"),
        (["encoder", "tiny"], "models.0"),
        (["tiny", "encoder"], "models.1"),
    ],
)
async def test_refused_model_is_named_as_a_field(
    evaluations: EvaluationQueue,
    layout: StorageLayout,
    ten_rows: str,
    tmp_path: Path,
    models: list[str],
    field: str,
) -> None:
    ModelStore(layout).add(build_tiny_encoder(tmp_path / "encoder"), "encoder")
    with pytest.raises(ServingError) as refused:
        await evaluations.create({"models": models, "file": ten_rows})
    assert refused.value.param == field


def _find_status(exc: BaseException) -> int:
    if isinstance(exc, ApiError):
        return exc.status
    return 404 if isinstance(exc, ModelNotFoundError) else 400


async def test_too_many_queued_evaluations_are_refused(
    evaluations: EvaluationQueue, ten_rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"models": ["tiny"], "file": ten_rows, "max_rows": 1}
    for _ in range(8):
        await evaluations.create(body)
    with pytest.raises(ApiError, match="8 evaluations are queued") as refused:
        await evaluations.create(body)
    assert (refused.value.status, refused.value.code) == (429, "too_many_queued_evaluations")
    monkeypatch.setattr(evaluation_creation, "MAX_QUEUED", 100)
    monkeypatch.setattr(evaluation_creation, "MAX_EVALUATIONS", 8)
    with pytest.raises(ApiError, match="8 evaluations are stored") as refused:
        await evaluations.create(body)
    assert refused.value.status == 409


async def test_application_with_upstreams_evaluates_nothing(
    layout: StorageLayout, row_thread: RowThread, ten_rows: str
) -> None:
    queue = open_queue(layout, row_thread, None)
    with pytest.raises(ApiError, match="no generator of its own") as refused:
        await queue.create({"models": ["tiny"], "file": ten_rows})
    assert (refused.value.status, refused.value.code) == (400, "no_generator")


async def test_rows_that_take_too_long_fail_the_evaluation(
    evaluations: EvaluationQueue,
    layout: StorageLayout,
    ten_rows: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    created = await evaluations.create({"models": ["tiny"], "file": ten_rows})
    monkeypatch.setattr("apps.evaluations.evaluation_run._MAX_READ_S", -1.0)
    record = await finish(evaluations, layout, created)
    assert (record.status, record.error and record.error.code) == ("failed", "rows_too_slow")
    monkeypatch.setattr(evaluation_creation, "_MAX_CHECK_S", -1.0)
    with pytest.raises(ApiError, match="only 0 of at most 10 rows could be read"):
        await evaluations.create({"models": ["tiny"], "file": ten_rows, "max_rows": 10})


async def test_damaged_record_hides_and_stops_no_other_evaluation(
    evaluations: EvaluationQueue, layout: StorageLayout, ten_rows: str
) -> None:
    add_stored(layout, "eval-bad")
    add_stored(layout, "eval-good")
    (layout.evaluations.find("eval-bad") / RECORD_NAME).write_text("{")
    store = EvaluationStore(layout)
    assert [record.id for record in store.list_all()] == ["eval-good"]
    with pytest.raises(ApiError, match="'eval-bad' cannot be read") as damaged:
        store.get("eval-bad")
    assert (damaged.value.status, damaged.value.code) == (500, "evaluation_unreadable")
    created = await evaluations.create({"models": ["tiny"], "file": ten_rows})
    assert (await finish(evaluations, layout, created)).status == "succeeded"
    await evaluations.delete("eval-bad")
    assert not layout.evaluations.find("eval-bad").exists()
