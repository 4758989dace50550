"""A whole fine-tune in order: check, tokenise, train, consolidate."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from storage import durable
from training.cpu_op import ensure_cpu_op
from training.dataset import EncodedRow, encode_rows, read_rows
from training.runs import RunError, RunFolder
from training.spec import DataFormat, TrainingSpec

logger = logging.getLogger(__name__)

_UNLIMITED_CONTEXT = 1_000_000  # tokenizers say 10^30 when they do not know
_RECORDED_PACKAGES = ("ray", "deepspeed", "torch", "transformers", "tokenizers", "safetensors")


class UnknownModelError(ValueError):
    """There is no such base model, or it is not one that can be fine-tuned."""


class ResourceError(ValueError):
    """The cluster can never give what the run asks for."""


class TrainingFailedError(RuntimeError):
    """The workers failed; the message is the first one's own."""


@dataclass(frozen=True)
class EncodedData:
    """The rows of a run as tokens, with what a user wants to know about them."""

    format: DataFormat
    rows: list[EncodedRow]
    max_length: int
    sha256: str

    def summarise(self) -> dict[str, Any]:
        """Counts for events, previews and the lineage."""
        return {
            "format": self.format,
            "num_rows": len(self.rows),
            "num_tokens": sum(len(row.input_ids) for row in self.rows),
            "num_learned_tokens": sum(row.num_learned for row in self.rows),
            "num_truncated_rows": sum(row.truncated_tokens > 0 for row in self.rows),
            "max_length": self.max_length,
            "sha256": self.sha256,
        }


def load_tokenizer(base_model: str) -> PreTrainedTokenizerBase:
    """Load a base model's tokenizer; raises `UnknownModelError` if there is no such model."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(base_model, trust_remote_code=False)
    except (OSError, ValueError) as exc:
        raise UnknownModelError(_describe_unknown(base_model, exc)) from exc
    tokenizer.model_max_length = _UNLIMITED_CONTEXT  # lengths are ours to check
    return tokenizer


def split_tokens(row: EncodedRow, tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, bool]]:
    """Show an encoded row piece by piece: the text of each token and whether it is learned.

    Tokens that hold part of a character are joined until the character is whole.
    """
    pieces: list[tuple[str, bool]] = []
    pending: list[int] = []
    for token, learned in zip(row.input_ids, row.learned, strict=True):
        pending.append(token)
        text = str(tokenizer.decode(pending))
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            pieces.append((text, learned))
            pending = []
    if pending:
        pieces.append((str(tokenizer.decode(pending)), row.learned[-1]))
    return pieces


def quiet_libraries() -> None:
    """Keep the libraries' own progress bars out of logs and terminals; ours say more."""
    import datasets
    from transformers.utils import logging as transformers_logging

    datasets.disable_progress_bars()
    transformers_logging.disable_progress_bar()


def find_context_length(base_model: str) -> int:
    """Tokens that a base model's positions allow; raises `UnknownModelError`."""
    try:
        config = AutoConfig.from_pretrained(base_model, trust_remote_code=False)
    except (OSError, ValueError) as exc:
        raise UnknownModelError(_describe_unknown(base_model, exc)) from exc
    length = getattr(config, "max_position_embeddings", None)
    return int(length) if length else _UNLIMITED_CONTEXT


def encode_data(spec: TrainingSpec) -> EncodedData:
    """Read, check and tokenise the rows of a spec; what has to hold before anything starts.

    Raises `ValueError` for an unknown base model, a missing file, a bad row, or a length that the
    model has no positions for.
    """
    tokenizer = load_tokenizer(spec.base_model)
    context_length = find_context_length(spec.base_model)
    if spec.max_length is not None and spec.max_length > context_length:
        raise ValueError(
            f"max_length is {spec.max_length}, but {Path(spec.base_model).name!r} has a context of "
            f"{context_length} tokens; lower max_length"
        )
    max_length = spec.max_length or min(context_length, spec.micro_batch_tokens)
    file = Path(spec.train_file)
    found, rows = read_rows(file, spec.format)
    return EncodedData(
        found, encode_rows(rows, tokenizer, max_length), max_length, durable.hash_file(file)
    )


def check_resources(
    spec: TrainingSpec, nodes: Sequence[Mapping[str, float]], reserved_cpus: float = 0.0
) -> None:
    """Refuse a run that the cluster can never start.

    `nodes` are the total resources of each node in Ray's names; `reserved_cpus` are held for good
    by something else. Raises `ResourceError` with what was asked and what there is.
    """
    num_gpus = sum(node.get("GPU", 0.0) for node in nodes)
    if wants_gpu(spec, num_gpus) and num_gpus < spec.num_workers:
        raise ResourceError(
            f"{spec.num_workers} workers with one GPU each were asked for, the cluster has "
            f"{num_gpus:g} GPUs; lower num_workers or set accelerator to 'cpu'"
        )
    asked = spec.num_workers * spec.cpus_per_worker
    cpus = [node.get("CPU", 0.0) for node in nodes]
    free, largest = sum(cpus) - reserved_cpus, max(cpus, default=0.0)
    num_places = sum(int(node / spec.cpus_per_worker + 1e-9) for node in cpus)
    if asked > free + 1e-9 or spec.num_workers > num_places:
        held = f" besides the {reserved_cpus:g} that serving holds" if reserved_cpus else ""
        raise ResourceError(
            f"{spec.num_workers} workers × {spec.cpus_per_worker:g} CPUs = {asked:g} CPUs were "
            f"asked for, the cluster has {free:g}{held}, at most {largest:g} on one node; lower "
            "num_workers or cpus_per_worker"
        )


def wants_gpu(spec: TrainingSpec, num_gpus: float) -> bool:
    """Whether the workers take a GPU each."""
    return spec.accelerator == "gpu" or (spec.accelerator == "auto" and num_gpus > 0)


def save_data(run: RunFolder, data: EncodedData) -> None:
    """Put the tokenised rows into the run's folder and tell what they are."""
    from training.token_rows import save_rows

    summary = data.summarise()
    save_rows(data.rows, run.data)
    durable.write_json(run.data / "summary.json", summary)
    run.add_event(
        f"{summary['num_rows']} rows ({data.format}), {summary['num_tokens']:,} tokens, "
        f"{summary['num_learned_tokens']:,} of them learned",
        data=summary,
    )
    if num_truncated := summary["num_truncated_rows"]:
        run.add_event(
            f"{num_truncated} rows are longer than {data.max_length} tokens and were truncated",
            level="warn",
            data={"num_truncated_rows": num_truncated},
        )


def execute_run(run: RunFolder, spec: TrainingSpec) -> Path:
    """Compute a prepared run and keep its record; returns the model directory.

    Needs a connected Ray cluster. Raises `ResourceError`, `TrainingFailedError`,
    `ConsolidationError` or `CompilerError`, after writing it into the record.
    """
    run.update_record(status="running", started_at=int(time.time()))
    try:
        model = _compute(run, spec)
    except (Exception, KeyboardInterrupt) as exc:
        fail_run(run, exc)
        raise
    trained_tokens = int(run.read_metrics()[-1]["trained_tokens"])
    run.update_record(trained_tokens=trained_tokens)
    return model


def fail_run(run: RunFolder, exc: BaseException) -> None:
    """Write a failure into the run's events and record."""
    logger.error("run %s failed", run.path.name, exc_info=exc)
    message = str(exc) or type(exc).__name__
    run.add_event(message, level="error")
    error = RunError(code=type(exc).__name__, message=message)
    run.update_record(status="failed", finished_at=int(time.time()), error=error.model_dump())


def succeed_run(run: RunFolder, model_id: str | None = None) -> None:
    """Write the good end of a run into its events and record."""
    run.add_event("The fine-tune succeeded", data={"model_id": model_id} if model_id else {})
    run.update_record(status="succeeded", finished_at=int(time.time()), model_id=model_id)


def _compute(run: RunFolder, spec: TrainingSpec) -> Path:
    import ray

    alive: list[Any] = ray.nodes()  # type: ignore[no-untyped-call]
    nodes = [node["Resources"] for node in alive if node["Alive"]]
    check_resources(spec, nodes)
    use_gpu = wants_gpu(spec, sum(node.get("GPU", 0.0) for node in nodes))
    if not use_gpu and ensure_cpu_op():
        run.add_event("Compiled DeepSpeed's CPU operation; this happens once on a machine")
    return train_model(run, spec, use_gpu=use_gpu)


def train_model(run: RunFolder, spec: TrainingSpec, *, use_gpu: bool) -> Path:
    """Train a prepared run and consolidate the chosen checkpoint; returns the model directory.

    Raises `TrainingFailedError`, or `ConsolidationError` if the weights cannot be trusted.
    """
    import ray.train
    from ray.train.torch import TorchTrainer

    from training.loop import run_worker

    trainer = TorchTrainer(
        run_worker,
        train_loop_config={"spec": spec.model_dump(), "run": str(run.path)},
        scaling_config=ray.train.ScalingConfig(
            num_workers=spec.num_workers,
            use_gpu=use_gpu,
            resources_per_worker={"CPU": spec.cpus_per_worker, **({"GPU": 1} if use_gpu else {})},
        ),
        run_config=ray.train.RunConfig(
            name=run.ray.name,
            storage_path=str(run.ray.parent),
            checkpoint_config=choose_checkpoints(spec),
        ),
    )
    run.add_event("Starting the workers", data={"num_workers": spec.num_workers})
    try:
        result = trainer.fit()
    except ray.train.TrainingFailedError as exc:
        raise TrainingFailedError(_describe_failure(exc)) from exc
    checkpoint, metrics = choose_result(spec, result)
    _consolidate(run, spec, Path(checkpoint.path), metrics)
    return run.model


def choose_checkpoints(spec: TrainingSpec) -> Any:
    """Tell Ray Train which checkpoints to keep; it always keeps the newest as well."""
    from ray.train import CheckpointConfig

    if spec.keep == "best":
        return CheckpointConfig(spec.keep_checkpoints, "loss", "min")
    return CheckpointConfig(spec.keep_checkpoints)


def choose_result(spec: TrainingSpec, result: Any) -> tuple[Any, dict[str, Any]]:
    """Choose the checkpoint that becomes the model, with its metrics."""
    kept = result.best_checkpoints or []
    if spec.keep == "best":
        return min(kept, key=lambda pair: float(pair[1]["loss"]))  # type: ignore[no-any-return]
    return max(kept, key=lambda pair: int(pair[1]["step"]))  # type: ignore[no-any-return]


def _consolidate(
    run: RunFolder, spec: TrainingSpec, checkpoint: Path, metrics: Mapping[str, Any]
) -> None:
    import torch

    from training.consolidate import consolidate_checkpoint

    run.add_event(f"Consolidating the checkpoint of step {metrics['step']}", data=dict(metrics))
    started = time.monotonic()
    consolidate_checkpoint(
        checkpoint,
        spec.base_model,
        run.model,
        dtype=torch.bfloat16 if spec.precision == "bf16" else torch.float32,
    )
    write_lineage(run, spec, metrics)
    took_s = time.monotonic() - started
    run.add_event(f"The model is complete after {took_s:.1f} s", data={"took_s": took_s})


def write_lineage(run: RunFolder, spec: TrainingSpec, metrics: Mapping[str, Any]) -> None:
    """Write where a model came from into its directory: `lineage.json` and the model card."""
    from training.model_card import render_model_card

    data = durable.read_json(run.data / "summary.json")
    lineage = {
        "run_id": run.path.name,
        "base_model": Path(spec.base_model).name
        if Path(spec.base_model).is_dir()
        else spec.base_model,
        "checkpoint_step": metrics["step"],
        "metrics": dict(metrics),
        "data": {"name": Path(spec.train_file).name, **data},
        "spec": spec.model_dump(exclude={"base_model", "train_file"}),  # no paths of this machine
        "packages": {name: version(name) for name in _RECORDED_PACKAGES},
        "created_at": int(time.time()),
    }
    durable.write_json(run.model / "lineage.json", lineage)
    (run.model / "README.md").write_text(render_model_card(lineage))


def _describe_unknown(base_model: str, exc: Exception) -> str:
    shown = Path(base_model).name if Path(base_model).is_dir() else base_model
    return (
        f"base_model {shown!r} is neither the folder of a Hugging Face model nor a model id "
        f"that can be loaded: {str(exc).splitlines()[0][:200]}"
    )


def _describe_failure(exc: Any) -> str:
    failures = getattr(exc, "worker_failures", None)
    if not failures:
        return str(exc).strip().splitlines()[-1]
    rank, failure = min(failures.items())
    cause = getattr(failure, "cause", None) or failure
    return f"worker {rank} failed: {type(cause).__name__}: {cause}"
