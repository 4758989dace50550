"""DeepSpeed workers without Ray: processes of one gloo group that run the product's own steps.

One group runs many cases, because starting the processes takes longer than the cases.
"""

import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from tests.e2e.worker_group import run_in_group
from training.batching import BatchLayout, BatchPlan, Step, plan_epoch
from training.checkpoint.format import TAG, Checkpoint
from training.checkpoint.reference_logits import PROBE_NAME, compute_probe
from training.checkpoint.restore import load_checkpoint
from training.data.row_table import RowTable, RowWriter
from training.data.text.encoding import TokenSample
from training.data.text.token_layout import TOKEN_LAYOUT
from training.deepspeed.optimizer import build_optimizer, learning_rate_at
from training.engine import take_step
from training.kernels.row_attention import use_attention_by_row
from training.losses.next_token import collate_tokens
from training.model import load_model
from training.monitoring.journal import Journal
from training.place import Place
from training.references import add_references
from training.run.folder import RunFolder
from training.run.progress import Progress
from training.spec import TrainingSpec
from training.strategies.zero import STRATEGY
from training.strategy import find_strategy
from training.task import find_task, open_default_objective

NUM_STEPS = 40  # length of the learning-rate schedule; fewer steps are taken

Parameters = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One training run to compute: settings of the spec, and the range of steps to take."""

    settings: dict[str, Any] = field(default_factory=dict)
    layout: BatchLayout = "padded"
    num_shares: int = 2
    first: int = 0
    last: int = 10
    save_after: int | None = None
    checkpoint: Path | None = None  # saved to, or loaded from if `first` is not 0
    saved_by: int = 0  # number of workers that wrote it
    allow_fp16: bool = False
    saves_probe: bool = False
    run: Path | None = None  # where figures of the reference are stored, for a task that has them


@dataclass(frozen=True)
class Trained:
    """The result of a case: loss and gradient norm of every step, and the weights."""

    losses: list[float]
    grad_norms: list[float]
    parameters: Parameters
    num_skipped: int = 0
    num_bytes: int = 0  # of parameters and optimizer state on this worker


def write_table(path: Path, num_rows: int = 60, vocabulary: int = 300) -> Path:
    """Write rows of random tokens; the first third of each is not learned."""
    random = np.random.default_rng(0)
    with RowWriter(path, TOKEN_LAYOUT) as writer:
        for line in range(num_rows):
            length = int(random.integers(5, 60))
            ids = random.integers(4, vocabulary, length).astype(np.int32)
            writer.write(TokenSample(line, ids, np.arange(length) >= length // 3))
    return path


def train_in_group(world_size: int, folder: Path, cases: Sequence[Case]) -> list[Trained]:
    """Compute cases in sequence with `world_size` workers; `folder` contains model and rows."""
    results = folder / "results.pickle"
    results.unlink(missing_ok=True)
    run_in_group(_work, world_size, folder, folder, list(cases), results)
    trained: list[Trained] = pickle.loads(results.read_bytes())
    return trained


def measure_memory_in_group(world_size: int, folder: Path, case: Case) -> int:
    """Return the bytes of parameters and optimizer state on rank 0, after the steps of a case."""
    return max(trained.num_bytes for trained in train_in_group(world_size, folder, [case]))


def train_plainly(folder: Path, case: Case, model: Any = None) -> Trained:
    """Compute the same steps with plain PyTorch in one process, each as one padded batch.

    The model is the base model of the case unless it is given.
    """
    torch.set_num_threads(1)
    spec, rows = make_spec(folder, case), RowTable(folder / "rows.arrow", TOKEN_LAYOUT)
    torch.manual_seed(0)
    model = model or load_model(spec, open_default_objective())
    optimizer = build_optimizer(model, spec)
    losses, grad_norms = [], []
    for number, step in enumerate(plan_steps(spec, rows, case)[: case.last]):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(number, NUM_STEPS, spec)
        batch = collate_tokens(rows.read(step.rows), "padded")
        logits = model(**batch.inputs).logits
        loss = cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=-100)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), spec.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        grad_norms.append(float(norm))
    weights = {name: p.detach().float() for name, p in model.named_parameters()}
    return Trained(losses, grad_norms, weights)


def make_spec(folder: Path, case: Case) -> TrainingSpec:
    """Build the spec of a case, with the largest steps at which errors exceed fp32 rounding.

    With a learning rate of 0.01 the plain loop itself differs by 2e-4 from one in fp64 after ten
    steps; with 0.003, by 2e-6.
    """
    return TrainingSpec.model_validate(
        {
            "base_model": str(folder / "tiny"),
            "train_file": "-",
            "learning_rate": 0.003,
            "micro_batch_tokens": 128,
            "weight_decay": 0.5,
            "precision": "fp32",
            "num_workers": case.num_shares,
            **case.settings,
        }
    )


def plan_steps(spec: TrainingSpec, rows: RowTable, case: Case) -> list[Step]:
    """Plan the steps of as many epochs as the case needs."""
    plan = BatchPlan.from_spec(spec, case.layout, case.num_shares)
    steps: list[Step] = []
    for epoch in count():
        steps.extend(plan_epoch(rows.lengths, plan, epoch))
        if len(steps) >= case.last:
            break
    return steps


def join_group(rank: int, world_size: int, rendezvous: str) -> Place:
    """Join the gloo group of a test's workers, with one thread."""
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",  # required by DeepSpeed; the group uses a file for its rendezvous
    )
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size
    )
    place = Place(rank, world_size, torch.device("cpu"))
    STRATEGY.prepare_process(place.device)
    use_attention_by_row()  # as the loop does on CPUs
    return place


def _work(
    rank: int, world_size: int, rendezvous: str, folder: Path, cases: list[Case], results: Path
) -> None:
    place = join_group(rank, world_size, rendezvous)
    trained = [_train(folder, case, place) for case in cases]
    if rank == 0:
        results.write_bytes(pickle.dumps(trained))
    dist.barrier()
    dist.destroy_process_group()


def _train(folder: Path, case: Case, place: Place) -> Trained:
    if case.allow_fp16:
        _allow_fp16()
    spec = make_spec(folder, case)
    objective = find_task(spec.task).open_objective(spec, {})
    rows = RowTable(folder / "rows.arrow", objective.layout)
    checkpoint = Checkpoint(case.checkpoint or folder, case.saved_by, Progress(num_shares=2))
    plan = BatchPlan.from_spec(spec, case.layout, case.num_shares)
    engine = find_strategy(spec.strategy).start_engine(
        spec, place, plan, objective, checkpoint if case.first > 0 else None
    )
    if case.first > 0:
        load_checkpoint(engine, checkpoint, place, folder / "universal")
    if objective.needs_references:
        assert case.run is not None
        run = RunFolder(case.run)
        journal = Journal(run, place, (), NUM_STEPS)
        rows = add_references(
            engine,
            place,
            objective,
            plan,
            run,
            journal,
            rows,
            "training",
            has_started=case.first > 0,
        )
    losses, grad_norms = [], []
    for number, step in enumerate(plan_steps(spec, rows, case)[: case.last]):
        if number < case.first:
            continue
        rate = learning_rate_at(number, NUM_STEPS, spec)
        result = take_step(
            engine,
            place,
            objective,
            rows,
            step,
            case.layout,
            rate,
            seed=f"0/{number}",
        )
        losses.append(result.loss)
        grad_norms.append(result.grad_norm)
        if case.save_after == number + 1:
            engine.save_checkpoint(str(case.checkpoint), tag=TAG)
            if case.saves_probe and case.checkpoint is not None:
                probe = compute_probe(engine, place, objective)
                probe.write(case.checkpoint / PROBE_NAME)
    num_bytes = _measure_state(engine) if spec.zero_stage == 3 else 0
    parameters = _gather_parameters(engine, place)
    return Trained(losses, grad_norms, parameters, int(engine.skipped_steps), num_bytes)


def _measure_state(engine: Any) -> int:
    """Return the bytes of all local storages of parameters, master weights and moments.

    A storage that several tensors share counts once.
    """
    optimizer = engine.optimizer
    tensors = [parameter.ds_tensor for parameter in engine.module.parameters()]
    tensors += [parameter.data for parameter in engine.module.parameters()]
    tensors += optimizer.fp32_partitioned_groups_flat
    tensors += [
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    ]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _gather_parameters(engine: Any, place: Place) -> Parameters:
    import deepspeed

    parameters: Parameters = {}
    for name, parameter in engine.module.named_parameters():
        sharded = [parameter] if hasattr(parameter, "ds_id") else []
        with deepspeed.zero.GatheredParameters(sharded):
            parameters[name] = parameter.detach().float().clone()
    everyones: list[Any] = [None] * place.world_size
    dist.all_gather_object(everyones, parameters)
    return {name: one for of_worker in everyones for name, one in of_worker.items()}


def _allow_fp16() -> None:
    """Let DeepSpeed compute in fp16 on a CPU without fp16 instructions: slow, but equivalent."""
    from deepspeed.accelerator import get_accelerator

    kind: Any = type(get_accelerator())
    kind.is_fp16_supported = lambda _: True
    kind.supported_dtypes = lambda _: [torch.float, torch.bfloat16, torch.float16]
