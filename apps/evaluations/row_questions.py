"""Rows as questions for a model: the tokens before the last answer, and the expected answer.

Rows are read as a fine-tuning job from the model would read them, with the model's own tokenizer
and chat template.
"""

import json
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from apps.errors import InvalidInputError, invalid_input
from apps.evaluations.evaluation_record import RowPart
from apps.file_store import FileStore
from apps.fine_tuning.rows.file_spec import FileSpec, build_file_spec
from apps.fine_tuning.rows.timed_file import TimedRowFile
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from system.library_imports import import_transformers
from system.utf8 import clean_text
from training.data.faults import DataError, RowFault
from training.settings.task_settings import DEFAULT_TASK, PREFERENCE_TASK
from training.spec import SettingError, TrainingSpec

# Imported lazily: these modules take seconds, which would delay the start of the application.
if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from training.data.readers import RowSource
    from training.data.text.encoding import TokenSample

MAX_TOKENS = 1 << 24
"""Most tokens of all questions and expected answers of one model: 64 MB."""
_BATCH_ROWS = 64
_PLAIN_ROLES = {"user", "assistant"}


class Question(NamedTuple):
    """A row as a model is asked it: the prompt and the expected answer, as tokens and as text.

    `learned[i]` is 1 if the answer's token `i` counts for the perplexity, else 0. If the model
    cannot be asked, `fault` is the reason, and nothing else is known.
    """

    prompt_ids: Sequence[int] = ()
    answer_ids: Sequence[int] = ()
    learned: Sequence[int] = ()
    prompt: str = ""
    expected: str = ""
    fault: str | None = None


class RowsTooSlowError(Exception):
    """The rows could not be read in time; `num_read` of them were."""

    def __init__(self, num_read: int) -> None:
        super().__init__(f"{num_read} rows were read in time")
        self.num_read = num_read


def describe_slow_rows(exc: RowsTooSlowError, max_rows: int) -> InvalidInputError:
    """Return the refusal of rows that could not be read in time."""
    return InvalidInputError(
        f"only {exc.num_read} of at most {max_rows} rows could be read in the time for that; set a "
        "smaller max_rows, or evaluate a smaller file",
        param="max_rows",
        code="rows_too_slow",
    )


def read_questions(
    layout: StorageLayout,
    part: RowPart,
    model: str,
    training: Mapping[str, Any],
    max_rows: int,
    max_s: float,
) -> dict[int, Question]:
    """Read the first rows of a part for a model; return them by their numbers in the file.

    No more of the file is read than these rows need. Raises `InvalidInputError` for a file without
    questions, `ServingError` or `ApiError` as a preview of the file does, and `RowsTooSlowError`.
    """
    import_transformers()
    deadline = time.monotonic() + max_s
    asked = build_file_spec(layout, part.file, model, training)
    if asked.spec.task not in (DEFAULT_TASK, PREFERENCE_TASK):
        raise InvalidInputError(
            f"the rows of file {part.file!r} are for task {asked.spec.task!r}: expected chats, "
            "prompts with answers, or preferences",
            param="file",
            code="no_answers",
        )
    rows = _RowReading(part.numbers, max_rows, deadline)
    try:
        with invalid_input("model", only=SettingError):
            rows.read(layout, asked)
    except DataError as exc:
        FileStore(layout).check_unchanged(asked.known)
        raise InvalidInputError(str(exc), param="file", code="invalid_file") from exc
    except TimeoutError:
        raise RowsTooSlowError(len(rows.found)) from None
    return dict(sorted(rows.found.items()))


@dataclass
class _RowReading:
    """One pass over the first rows of a file, or over those with given numbers."""

    numbers: Sequence[int] | None
    max_rows: int
    deadline: float
    found: dict[int, Question] = field(default_factory=dict)
    _num_tokens: int = 0

    def read(self, layout: StorageLayout, asked: FileSpec) -> None:
        from training.data.row_stream import form_batches

        tokenizer = _load_own_tokenizer(layout, asked)
        source = self._open_source(asked)
        with closing(_open_reader(asked.spec, source, tokenizer)) as reader:
            batches = form_batches(self._parse(source, reader), _BATCH_ROWS)
            for row, encoded in reader.encode(batches):
                if reader.format == "text":
                    raise DataError(
                        f"{source.name}: its rows are plain text without answers; expected chats, "
                        "or prompts with answers"
                    )
                self._check_time()
                question = self._make(row, encoded, tokenizer)
                if question.fault is None or row.number not in self.found:
                    self.found[row.number] = question

    def _open_source(self, asked: FileSpec) -> "RowSource":
        from training.data.sources import open_train_sources

        file: Any = open_train_sources(asked.spec, asked.known)[0].source
        return TimedRowFile(
            file.path,
            file.names,
            known=file.known,
            text_rows=file.text_rows,
            deadline=self.deadline,
        )

    def _parse(self, source: "RowSource", reader: Any) -> Iterator[Any]:
        wanted = None if self.numbers is None else sorted(self.numbers)[: self.max_rows]
        last = self.max_rows if wanted is None else max(wanted, default=0)
        chosen = None if wanted is None else frozenset(wanted)
        for number, (line, record) in enumerate(source.read(), 1):
            self._check_time()
            if number > last:
                return
            if chosen is not None and number not in chosen:
                continue
            try:
                if isinstance(record, RowFault):
                    raise record
                row = reader.parse(line, record, number)
            except RowFault as fault:
                self.found[number] = _describe_fault(fault)
            else:
                yield row

    def _check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise TimeoutError

    def _make(self, row: Any, encoded: Any, tokenizer: "PreTrainedTokenizerBase") -> Question:
        if isinstance(encoded, RowFault):
            return _describe_fault(encoded)
        sample, parsed = encoded, row
        if hasattr(row, "answers"):  # a preference: the better answer, or one that is good
            if encoded.verdict is False:
                return Question(fault="its answer is marked as bad, so it is not the expected one")
            sample, parsed = encoded.first, row.answers[0].row
        question = _split_sample(sample, parsed, tokenizer)
        self._num_tokens += len(question.prompt_ids) + len(question.answer_ids)
        if self._num_tokens > MAX_TOKENS:
            raise DataError(
                f"the first {len(self.found) + 1} rows have more than {MAX_TOKENS:,} tokens; set a "
                "smaller max_rows"
            )
        return question


def _load_own_tokenizer(layout: StorageLayout, asked: FileSpec) -> "PreTrainedTokenizerBase":
    """Load the tokenizer with which the model is served: an adapter may have its own."""
    from training.base_model import load_tokenizer

    own = ModelStore(layout).resolve(asked.model_id).path
    has_own = (own / "tokenizer.json").is_file()
    folder = str(own) if has_own else asked.spec.base_model
    return load_tokenizer(folder, asked.spec.template_arguments)


def _open_reader(
    spec: TrainingSpec, source: "RowSource", tokenizer: "PreTrainedTokenizerBase"
) -> Any:
    """Open the reader of rows, which learns only the last answer of a chat."""
    from training.base_model import find_end_ids
    from training.data.preference.reader import PreferenceReader
    from training.data.text.reader import TextReader

    end_ids = find_end_ids(spec.base_model, tokenizer)
    if spec.task == DEFAULT_TASK:
        last_only = spec.model_copy(update={"learned_turns": "last"})
        return TextReader(source, last_only, tokenizer, None, end_ids)
    return PreferenceReader(
        source,
        spec,
        tokenizer,
        end_ids,
        MAX_TOKENS,
        is_unpaired=spec.task_settings.get("loss") == "kto",
        needs_mismatch=False,
    )


def _split_sample(
    sample: "TokenSample", row: Any, tokenizer: "PreTrainedTokenizerBase"
) -> Question:
    """Split the tokens of a row before its answer; what follows the answer is left out."""
    places = sample.learned.nonzero()[0]
    if not len(places):
        return Question(fault="it has no answer")
    start, end = int(places[0]), int(places[-1]) + 1
    if start == 0:
        return Question(fault="nothing precedes its answer")
    answer_ids = sample.input_ids[start:end]
    expected = tokenizer.decode(
        answer_ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    return Question(
        array("i", sample.input_ids[:start].tolist()),
        array("i", answer_ids.tolist()),
        sample.learned[start:end].tobytes(),
        describe_prompt(row.messages, row.learned),
        clean_text(str(expected)),
    )


def describe_prompt(messages: Sequence[Mapping[str, Any]], learned: Sequence[bool]) -> str:
    """Return what precedes the last learned message of a chat as readable text.

    A single question is returned as it is; other messages follow their roles.
    """
    last = max((place for place, is_learned in enumerate(learned) if is_learned), default=0)
    before = messages[:last]
    if len(before) == 1 and before[0].get("role") in _PLAIN_ROLES:
        return clean_text(_describe_content(before[0]))
    return clean_text(
        "\n\n".join(f"{message.get('role')}: {_describe_content(message)}" for message in before)
    )


def _describe_content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    parts = [] if content in (None, "") else [_write(content)]
    if calls := message.get("tool_calls"):
        parts.append(_write(calls))
    return "\n".join(parts)


def _write(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _describe_fault(fault: RowFault) -> Question:
    return Question(fault=clean_text(str(fault)))
