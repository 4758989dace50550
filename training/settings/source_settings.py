"""The part of a spec that names the base model, the task and the rows."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from templating.arguments import check_arguments
from training.settings.row_sources import HubDataset, TrainFile, limit_train_files
from training.settings.task_settings import DEFAULT_TASK, check_task

MAX_INTEGER = 2**31 - 1

DataFormat = Literal["auto", "chat", "prompt_completion", "alpaca", "sharegpt", "text"]
TextRows = Literal["line", "paragraph", "document"]

_MAX_COLUMNS = 64


def _limit_columns(value: Any) -> Any:
    if isinstance(value, Mapping) and len(value) > _MAX_COLUMNS:
        raise ValueError(f"expected at most {_MAX_COLUMNS} columns, got {len(value)}")
    return value


class SourceSettings(BaseModel):
    """The base model, the task, and the rows to learn from and to evaluate on."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    base_model: str = Field(
        min_length=1, description="Folder of a Hugging Face model, or a model id on the hub."
    )
    task: Annotated[str, AfterValidator(check_task)] = Field(
        DEFAULT_TASK, description="What is learned: the name of a task."
    )
    task_settings: dict[str, Any] = Field(
        default_factory=dict, description="Settings of the task, beside those of every task."
    )
    train_file: str | None = Field(
        None,
        min_length=1,
        description="File of rows to learn from: JSON, JSONL, CSV, Parquet, Arrow or plain text. "
        "A folder, or a pattern as in 'data/*.jsonl', means its files in the order of their "
        "names.",
    )
    train_files: Annotated[tuple[TrainFile, ...], BeforeValidator(limit_train_files)] = Field(
        (),
        description="Several files to learn from, mixed by weight, in place of train_file, as in "
        '[{"file": "a.jsonl", "weight": 2}, {"file": "b.jsonl"}].',
    )
    train_dataset: HubDataset | None = Field(
        None, description="Rows to learn from on the Hugging Face hub, in place of a file."
    )
    validation_file: str | None = Field(
        None,
        min_length=1,
        description="File, folder or pattern of rows to evaluate on, in the same format.",
    )
    validation_dataset: HubDataset | None = Field(
        None, description="Rows to evaluate on on the hub, in place of a file."
    )
    validation_fraction: float = Field(
        0.0, ge=0, le=0.5, description="Share of the rows held out to evaluate on, by 'seed'."
    )
    format: DataFormat = Field(
        "auto", description="Shape of a row; 'auto' recognises it by the keys of the first row."
    )
    columns: Annotated[dict[str, str], BeforeValidator(_limit_columns)] = Field(
        default_factory=dict,
        description="Where the rows' own names differ: our key to theirs, as in "
        '{"prompt": "question", "completion": "answer"}.',
    )
    text_rows: TextRows = Field(
        "line",
        description="What is one row of a plain text file (.txt): a 'line', a 'paragraph' (blank "
        "lines separate them), or the whole 'document'.",
    )
    max_length: int | None = Field(
        None,
        ge=8,
        le=MAX_INTEGER,
        description="Tokens of one row at most; default: the model's context, within a micro "
        "batch.",
    )
    overlong: Literal["truncate", "drop", "refuse"] = Field(
        "truncate", description="What becomes of a row with more tokens than 'max_length'."
    )
    learned_turns: Literal["all", "last"] = Field(
        "all",
        description="Answers of a chat that are learned: 'all' but those of weight 0, or the "
        "'last' of these.",
    )
    reasoning: Literal["learn", "mask", "drop"] = Field(
        "learn",
        description="Reasoning before an answer, in 'reasoning_content' or between '<think>' "
        "and '</think>': 'learn' it, 'mask' it (seen but not learned), or 'drop' it.",
    )
    template_arguments: Annotated[
        dict[str, str | int | float | bool], BeforeValidator(check_arguments)
    ] = Field(
        default_factory=dict,
        description='Variables of the chat template, as in {"enable_thinking": false}; the '
        "fine-tuned model is served with them too.",
    )

    data_engine: Literal["local", "ray"] = Field(
        "local",
        description="Where rows are prepared: 'local' tokenises them once, in one process, into a "
        "table that all workers map; 'ray' tokenises them in every epoch, as a Ray Data pipeline "
        "over the CPUs of the cluster, and streams them to the workers.",
    )
    data_memory_mb: int = Field(
        128,
        ge=16,
        le=MAX_INTEGER,
        description="Megabytes of Ray's object store for each worker that streamed rows may take; "
        "only for data_engine 'ray'.",
    )
    shuffle_window: int | None = Field(
        None,
        ge=1,
        le=MAX_INTEGER,
        description="Tokens (or images) of the rows that are shuffled and grouped by length "
        "together. Default: all rows with data_engine 'local'; about a million tokens (or a "
        "thousand images), and at least 8 steps, with 'ray'.",
    )

    max_rows: int | None = Field(
        None,
        ge=1,
        le=MAX_INTEGER,
        description="Rows read of each file or data set to learn from, from its beginning; rows "
        "beyond are not checked; default: all.",
    )
