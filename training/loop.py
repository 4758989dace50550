"""One ZeRO-3 worker: what every Ray Train worker runs, from start to end.

The gradient of an optimizer step is the mean over the step's learned tokens, across workers and
micro batches alike: each micro batch contributes its summed loss divided by the learned tokens of
the whole step. DeepSpeed averages gradients over workers, so the sum is scaled by the world size.
"""

import logging
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - everybody's name for it

from training.batching import IGNORED_LABEL, BatchLimits, MicroBatch, Step, plan_epoch
from training.checkpoint import save_checkpoint
from training.deepspeed_config import build_deepspeed_config
from training.optimizer import build_optimizer, learning_rate_at
from training.runs import RunFolder, log_to_file
from training.spec import TrainingSpec
from training.token_rows import TokenRows

logger = logging.getLogger(__name__)


class WeightsError(RuntimeError):
    """The base model's file and its architecture do not name the same weights."""


class NonFiniteLossError(RuntimeError):
    """The loss is infinite or not a number; the optimizer was not stepped."""


@dataclass(frozen=True)
class Worker:
    """Where this worker stands: its rank among `world_size`, its device and its run."""

    rank: int
    world_size: int
    device: torch.device
    run: RunFolder

    def tell(self, message: str, **data: float) -> None:
        """Put an event into the run's file and its log; rank 0 speaks for all."""
        if self.rank == 0:
            logger.info(message)
            self.run.add_event(message, data=data)


def run_worker(config: dict[str, Any]) -> None:
    """Train; Ray Train calls this in each worker with the spec and the path of the run's folder."""
    spec = TrainingSpec.model_validate(config["spec"])
    torch.set_num_threads(spec.threads_per_worker)
    torch.manual_seed(spec.seed)
    run = RunFolder(Path(config["run"]))
    with log_to_file(run.log_file):
        try:
            _train(spec, run)
        except Exception:
            logger.exception("worker failed")
            raise


def load_model(spec: TrainingSpec) -> torch.nn.Module:
    """Load the base model; raises `WeightsError` unless file and architecture agree wholly."""
    from transformers import AutoModelForCausalLM

    model, info = AutoModelForCausalLM.from_pretrained(
        spec.base_model,
        dtype=torch.bfloat16 if spec.precision == "bf16" else torch.float32,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
    )
    faults = {
        kind: sorted(str(key) for key in info[kind])
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")
        if info.get(kind)
    }
    if faults:
        raise WeightsError(
            f"the weights of {Path(spec.base_model).name!r} do not fit its architecture: {faults}; "
            "training would start from random values in their place"
        )
    model.config.use_cache = False
    model.train()
    return model  # type: ignore[no-any-return]


def sum_loss(model: Any, batch: MicroBatch, device: torch.device) -> torch.Tensor:
    """Cross entropy summed over the batch's learned tokens, in fp32; shape `[]`."""
    labels = batch.labels.to(device)
    logits = model(
        input_ids=batch.input_ids.to(device), attention_mask=batch.attention_mask.to(device)
    ).logits  # [rows, longest, vocabulary]
    return F.cross_entropy(
        logits[:, :-1].float().flatten(0, 1),
        labels[:, 1:].flatten(),
        ignore_index=IGNORED_LABEL,
        reduction="sum",
    )


def _train(spec: TrainingSpec, run: RunFolder) -> None:
    import ray.train.torch

    context = ray.train.get_context()
    worker = Worker(
        context.get_world_rank(), context.get_world_size(), ray.train.torch.get_device(), run
    )
    worker.tell(f"{worker.world_size} workers are up on {worker.device.type}; loading the model")
    engine = _start_engine(spec, worker)
    rows = TokenRows(run.data)
    _run_epochs(spec, worker, engine, rows)


def _start_engine(spec: TrainingSpec, worker: Worker) -> Any:
    # DeepSpeed guesses its accelerator at import: say which, and import it here in the worker only.
    os.environ["DS_ACCELERATOR"] = worker.device.type
    import deepspeed
    from transformers.integrations import HfDeepSpeedConfig

    deepspeed.init_distributed(dist_backend="nccl" if worker.device.type == "cuda" else "gloo")
    config = build_deepspeed_config(spec, worker.world_size)
    shards_on_load = HfDeepSpeedConfig(config)  # must live across from_pretrained
    model = load_model(spec)
    del shards_on_load
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=build_optimizer(model, spec), config=config
    )
    num_parameters = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    worker.tell(f"Loaded {num_parameters:,} parameters, sharded", num_parameters=num_parameters)
    return engine


class _Progress:
    """Which step of how many, and how long the rest will take."""

    def __init__(self, num_steps: int) -> None:
        self.step = 0
        self.num_steps = num_steps
        self._started = time.monotonic()
        self._tokens = 0.0

    def advance(self, metrics: dict[str, float], epoch: float) -> dict[str, float]:
        """Count one step; returns the line of `metrics.jsonl` for it."""
        self.step += 1
        self._tokens += metrics["tokens"]
        elapsed_s = time.monotonic() - self._started
        return {
            "step": self.step,
            "num_steps": self.num_steps,
            "epoch": round(epoch, 4),
            **metrics,
            "trained_tokens": self._tokens,
            "tokens_per_s": round(self._tokens / elapsed_s, 1),
            "elapsed_s": round(elapsed_s, 3),
            "remaining_s": round(elapsed_s / self.step * (self.num_steps - self.step), 3),
        }


def _run_epochs(spec: TrainingSpec, worker: Worker, engine: Any, rows: TokenRows) -> None:
    def plan(epoch: int) -> list[Step]:
        return plan_epoch(
            rows.lengths,
            BatchLimits(spec.micro_batch_tokens, spec.micro_batch_size),
            world_size=worker.world_size,
            accumulation=spec.gradient_accumulation_steps,
            seed=spec.seed,
            epoch=epoch,
        )

    progress = _Progress(sum(len(plan(epoch)) for epoch in range(spec.epochs)))
    worker.tell(
        f"Training for {progress.num_steps} steps in {spec.epochs} epochs",
        num_steps=progress.num_steps,
    )
    for epoch in range(spec.epochs):
        loss_sum = num_learned = 0.0
        steps = plan(epoch)
        for index, step in enumerate(steps, 1):
            rate = learning_rate_at(progress.step, progress.num_steps, spec)
            metrics = _take_step(engine, worker, rows, step, rate)
            loss_sum += metrics["loss"] * metrics["learned_tokens"]
            num_learned += metrics["learned_tokens"]
            line = progress.advance(metrics, epoch + index / len(steps))
            if worker.rank == 0:
                worker.run.add_metrics(line)
        summary = {"epoch": epoch + 1, "step": progress.step, "loss": loss_sum / num_learned}
        save_checkpoint(engine, summary)
        worker.tell(
            f"Epoch {epoch + 1} of {spec.epochs}: loss {summary['loss']:.4f}; checkpoint saved",
            **summary,
        )


def _take_step(
    engine: Any, worker: Worker, rows: TokenRows, step: Step, learning_rate: float
) -> dict[str, float]:
    """Take one optimizer step; returns its loss, gradient norm and token counts, over all ranks."""
    num_learned = rows.count_learned(step)
    for group in engine.optimizer.param_groups:
        group["lr"] = learning_rate
    total = torch.zeros((), dtype=torch.float64, device=worker.device)
    for index, micro_batch in enumerate(step.micro_batches):
        engine.set_gradient_accumulation_boundary(index == len(step.micro_batches) - 1)
        loss_sum = sum_loss(engine, rows.collate(micro_batch[worker.rank]), worker.device)
        engine.backward(loss_sum * (worker.world_size / num_learned), scale_wrt_gas=False)
        total += loss_sum.detach()
    dist.all_reduce(total)
    loss = float(total) / num_learned
    if not math.isfinite(loss):
        raise NonFiniteLossError(
            f"the loss is {loss} on the rows of lines {rows.find_lines(step)}; nothing was learned "
            "from them. Lower the learning rate, or look at these rows"
        )
    engine.step()
    return {
        "loss": loss,
        "learning_rate": learning_rate,
        "grad_norm": float(engine.get_global_grad_norm()),
        "learned_tokens": num_learned,
        "tokens": rows.count_tokens(step),
    }
