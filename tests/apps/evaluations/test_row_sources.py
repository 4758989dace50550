"""The rows of evaluations: of files, and the validation rows of jobs, as questions for a model."""

import json
import shutil
from typing import Any

import pytest

from apps.errors import ApiError, InvalidInputError
from apps.evaluations.evaluation_queue import EvaluationQueue
from apps.evaluations.evaluation_record import RowPart
from apps.evaluations.evaluation_store import EvaluationStore
from apps.evaluations.row_questions import describe_prompt, read_questions
from apps.evaluations.row_sources import choose_file, choose_validation_rows
from apps.fine_tuning.queue import RunQueue
from apps.fine_tuning.rows.timed_file import _TimedBytes
from storage.layout import StorageLayout
from tests.apps.conftest import create_run
from tests.apps.evaluations.conftest import ScriptedSource, add_file, finish, make_rows, read_rows
from training.data.row_table import read_numbers
from training.run.folder import RunFolder

pytestmark = pytest.mark.anyio


def ask(
    layout: StorageLayout, part: RowPart, max_rows: int = 100, **training: Any
) -> dict[int, Any]:
    return read_questions(layout, part, "tiny", training, max_rows, 60.0)


def read_held_out(run: RunFolder) -> list[int]:
    return sorted(set(read_numbers(run.data / "validation.arrow").tolist()))


async def test_held_out_rows_of_job_are_evaluated(
    evaluations: EvaluationQueue,
    layout: StorageLayout,
    queue: RunQueue,
    source: ScriptedSource,
    ten_rows: str,
) -> None:
    run = await create_run(queue, ten_rows, training={"validation_fraction": 0.4})
    numbers = read_held_out(run)
    assert len(numbers) == 4
    job_id = run.path.name
    created = await evaluations.create({"models": ["tiny"], "job": job_id, "max_rows": 3})
    assert (created["file"], created["job"]) == (None, job_id)
    await queue.cancel(job_id)
    await queue.delete(job_id)  # the evaluation needs only the file
    record = await finish(evaluations, layout, created)
    assert (record.status, record.num_rows) == ("succeeded", 3)
    rows = read_rows(layout, record.id)
    assert [row.number for row in rows] == numbers[:3]
    assert [row.prompt for row in rows] == [f"What is {number}?" for number in numbers[:3]]


async def test_held_out_rows_of_several_files_are_evaluated(
    evaluations: EvaluationQueue, layout: StorageLayout, queue: RunQueue, ten_rows: str
) -> None:
    add_file(layout, make_rows(8), "file-more")
    files = [{"file": ten_rows}, {"file": "file-more", "weight": 2.0}]
    training = {"validation_fraction": 0.5}
    run = await create_run(queue, ten_rows, training_files=files, training=training)
    chosen = choose_validation_rows(layout, run.path.name, 100)
    assert [part.file for part in chosen.parts] == [ten_rows, "file-more"]
    counts = [len(part.numbers or ()) for part in chosen.parts]
    assert sum(counts) == 9
    created = await evaluations.create({"models": ["tiny"], "job": run.path.name})
    record = await finish(evaluations, layout, created)
    rows = read_rows(layout, record.id)
    found = [[row.number for row in rows if row.file == part.file] for part in chosen.parts]
    assert found == [list(part.numbers or ()) for part in chosen.parts]
    assert len({row.id for row in rows}) == len(rows) == 9


async def test_each_file_is_checked_before_an_evaluation_exists(
    evaluations: EvaluationQueue,
    layout: StorageLayout,
    queue: RunQueue,
    ten_rows: str,
) -> None:
    add_file(layout, make_rows(8), "file-more")
    files = [{"file": ten_rows}, {"file": "file-more"}]
    training = {"validation_fraction": 0.5}
    run = await create_run(queue, ten_rows, training_files=files, training=training)
    body = {"models": ["tiny"], "job": run.path.name}
    shutil.rmtree(layout.file("file-more"))
    add_file(layout, ["{broken"] * 8, "file-more")
    with pytest.raises(InvalidInputError, match="none of the first . rows of file 'file-more'"):
        await evaluations.create(body)
    assert EvaluationStore(layout).list_all() == []


async def test_validation_file_of_job_is_read_with_its_settings(
    layout: StorageLayout, queue: RunQueue
) -> None:
    renamed = [{"question": "What is 1?", "answer": "It is 1."}]
    for name in ("file-train", "file-check"):
        add_file(layout, renamed, name)
    columns = {"prompt": "question", "completion": "answer"}
    run = await create_run(
        queue, "file-train", validation_file="file-check", training={"columns": columns}
    )
    chosen = choose_validation_rows(layout, run.path.name, 100)
    assert chosen.parts == (RowPart(file="file-check"),)
    assert chosen.training == {"columns": columns}
    found = ask(layout, chosen.parts[0], **chosen.training)
    assert (found[1].prompt, found[1].expected) == ("What is 1?", "It is 1.")


async def test_job_without_validation_rows_is_refused(
    layout: StorageLayout, queue: RunQueue, ten_rows: str
) -> None:
    run = await create_run(queue, ten_rows)
    with pytest.raises(InvalidInputError, match="has no validation rows: name the rows") as refused:
        choose_validation_rows(layout, run.path.name, 100)
    assert (refused.value.param, refused.value.code) == ("job", "no_validation_rows")


async def test_job_whose_rows_are_not_read_yet_is_refused(
    layout: StorageLayout, queue: RunQueue, ten_rows: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.fine_tuning.validation.row_validation.MAX_QUICK_BYTES", 0)
    run = await create_run(queue, ten_rows, training={"validation_fraction": 0.4})
    with pytest.raises(ApiError, match="have not been read yet") as refused:
        choose_validation_rows(layout, run.path.name, 100)
    assert refused.value.status == 409


def test_last_answer_of_chat_is_asked(layout: StorageLayout) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 1?"},
        {"role": "assistant", "content": "One."},
        {"role": "user", "content": "And 2?"},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "Thanks."},
    ]
    part = RowPart(file=add_file(layout, [{"messages": messages}]))
    (question,) = ask(layout, part).values()
    assert question.expected == "Two."
    expected = "system: Be brief.\n\nuser: What is 1?\n\nassistant: One.\n\nuser: And 2?"
    assert question.prompt == expected
    assert all(question.learned)


def test_better_answer_of_preference_is_expected(layout: StorageLayout) -> None:
    row = {"prompt": "What is 1?", "chosen": "It is 1.", "rejected": "It is 2."}
    (question,) = ask(layout, RowPart(file=add_file(layout, [row]))).values()
    assert (question.prompt, question.expected) == ("What is 1?", "It is 1.")


def test_answer_that_is_marked_as_bad_is_not_expected(layout: StorageLayout) -> None:
    rows = [
        {"prompt": "What is 1?", "completion": "It is 2.", "label": False},
        {"prompt": "What is 1?", "completion": "It is 1.", "label": True},
    ]
    bad, good = ask(layout, RowPart(file=add_file(layout, rows))).values()
    assert "marked as bad" in bad.fault
    assert (good.fault, good.expected) == (None, "It is 1.")


def test_no_more_is_read_than_needed(
    layout: StorageLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = RowPart(file=add_file(layout, make_rows(20_000)))
    read, num_bytes = _TimedBytes.readinto, 0

    def count(file: _TimedBytes, buffer: Any) -> int:
        nonlocal num_bytes
        num_bytes += (found := read(file, buffer))
        return found

    monkeypatch.setattr(_TimedBytes, "readinto", count)
    assert list(ask(layout, part, max_rows=3)) == [1, 2, 3]
    numbers = part.model_copy(update={"numbers": (2, 7, 9)})
    assert list(ask(layout, numbers, max_rows=2)) == [2, 7]
    assert 0 < num_bytes < 300_000


def test_file_of_another_purpose_is_refused(layout: StorageLayout, ten_rows: str) -> None:
    path = layout.file(ten_rows) / "file.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "purpose": "fine-tune-results"}))
    with pytest.raises(InvalidInputError, match="has the purpose 'fine-tune-results'"):
        choose_file(layout, ten_rows)


def test_single_question_is_shown_without_its_role() -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    assert describe_prompt(messages, [False, True]) == "Hi"
    calls = [{"type": "function", "function": {"name": "find", "arguments": "{}"}}]
    chat: list[dict[str, Any]] = [
        *messages[:1],
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "12\ud800"},
        messages[1],
    ]
    shown = describe_prompt(chat, [False, False, False, True])
    assert shown.splitlines()[0] == "user: Hi"
    assert '"name": "find"' in shown
    assert shown.endswith("tool: 12?")
