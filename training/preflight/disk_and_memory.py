"""Comparison of the disk space and memory that a run needs with the available ones at its start.

A run is refused only if it certainly cannot work; if it is close, an event warns.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from system.free_resources import (
    are_on_one_disk,
    measure_free_disk,
    measure_gpu_memory,
    measure_host_memory,
    measure_size,
)
from training.checkpoint.format import list_checkpoints
from training.preflight.requirements import (
    ModelSize,
    Need,
    estimate_checkpoint,
    estimate_disk,
    estimate_memory,
)
from training.preflight.resources import ResourceError
from training.run.folder import RunFolder
from training.spec import TrainingSpec


class _Resource(NamedTuple):
    """A kind of space that a run needs: the need, the bytes that exist, and those that are free."""

    what: str
    need: Need
    total_bytes: int
    free_bytes: int
    advice: str


def check_disk_and_memory(
    run: RunFolder,
    spec: TrainingSpec,
    size: ModelSize,
    nodes: Sequence[Mapping[str, float]],
    *,
    on_gpu: bool,
) -> None:
    """Compare disk space and memory with a run's needs; add a warning event if it is close.

    The memory of several nodes, as Ray reports it, is compared only for a warning. Raises
    `ResourceError` if the run cannot work.
    """
    resources = [*_list_disks(run, spec, size, len(nodes))]
    resources += _list_memory(spec, size, nodes, on_gpu=on_gpu)
    for what, need, total_bytes, _, advice in resources:
        if need.certain > total_bytes:
            raise ResourceError(
                f"{what}: at least {_write_gb(need.certain)} are needed for "
                f"{size.num_parameters:,} parameters, there are {_write_gb(total_bytes)}; {advice}"
            )
    for what, need, _, free_bytes, advice in resources:
        if need.likely > free_bytes:
            run.events.add(
                f"{what} may not be enough: about {_write_gb(need.likely)} are needed for "
                f"{size.num_parameters:,} parameters, {_write_gb(free_bytes)} are free; {advice}",
                level="warn",
                code="resources_close",
                data={"needed_bytes": need.likely, "free_bytes": free_bytes},
            )


def _list_disks(
    run: RunFolder, spec: TrainingSpec, size: ModelSize, num_nodes: int
) -> Iterator[_Resource]:
    """List the disk of the run, and the disk for temporary shards if it is a different one."""
    checkpoints = list_checkpoints(run.checkpoints)
    has_trained = bool(checkpoints)
    folder_need = estimate_disk(spec, size, has_trained=has_trained)
    own = sum(measure_size(checkpoint.path) for checkpoint in checkpoints)
    free = measure_free_disk(run.path) + own
    staging = estimate_checkpoint(spec, size)
    temporary = Path(tempfile.gettempdir())
    is_shared = num_nodes == 1 and are_on_one_disk(temporary, run.path)
    if is_shared:
        certain = folder_need.certain + (0 if has_trained else staging.certain)
        folder_need = Need(certain, folder_need.likely + staging.likely)
    yield _Resource(
        f"the disk of {run.path.name!r}, for checkpoints and the model",
        folder_need,
        free,
        free,
        "make room, lower keep_checkpoints, or choose a folder on another disk",
    )
    if num_nodes == 1 and not is_shared:
        free = measure_free_disk(temporary)
        yield _Resource(
            "the folder for temporary files (TMPDIR), for the shards of one checkpoint",
            Need(0 if has_trained else staging.certain, staging.likely),
            free,
            free,
            "make room there, or set TMPDIR to a folder on another disk",
        )


def _list_memory(
    spec: TrainingSpec,
    size: ModelSize,
    nodes: Sequence[Mapping[str, float]],
    *,
    on_gpu: bool,
) -> Iterator[_Resource]:
    host, device = estimate_memory(spec, size, on_gpu=on_gpu)
    advice = "take a smaller model"
    if on_gpu:
        advice += ", more GPUs with zero_stage 3, or offload_optimizer"
    elif spec.sharding_stage < 3:
        advice += ", or zero_stage 3, which shards it over the workers"
    if len(nodes) == 1:
        memory = measure_host_memory()
        yield _Resource("the memory of this machine", host, memory.total, memory.free, advice)
    elif known := sum(int(node.get("memory", 0)) for node in nodes):
        yield _Resource("the memory of the cluster", host._replace(certain=0), known, known, advice)
    if on_gpu and (gpus := measure_gpu_memory()):
        largest, freest = max(gpu.total for gpu in gpus), max(gpu.free for gpu in gpus)
        if len(nodes) > 1:  # other nodes may have larger ones
            device = device._replace(certain=0)
        yield _Resource("the memory of a GPU", device, largest, freest, advice)


def _write_gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.2f} GB" if size_bytes >= 10_000_000 else f"{size_bytes:,} bytes"
