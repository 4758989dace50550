"""The cluster resources that a run needs, and whether the cluster can provide them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from training.data.ray_data.pipelines import READER_CPUS, TASK_CPUS
from training.deepspeed.user_config import is_switched_off
from training.spec import SettingError, TrainingSpec

_ROUNDING = 1e-9
_CPU_INFO = Path("/proc/cpuinfo")
_BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


class ResourceError(SettingError):
    """The run asks for more than the whole cluster has."""


def check_resources(
    spec: TrainingSpec,
    nodes: Sequence[Mapping[str, float]],
    reserved_cpus: float = 0.0,
    reserved_gpus: float = 0.0,
) -> None:
    """Refuse a run that the cluster can never start.

    `nodes` are the total resources of each node under Ray's names; `reserved_cpus` and
    `reserved_gpus` are permanently reserved for other uses. An elastic run needs its smallest
    number of workers. Raises `ResourceError` with the requested and the available resources.
    """
    num_gpus = sum(node.get("GPU", 0.0) for node in nodes)
    num_workers = spec.min_workers or spec.num_workers
    on_gpu = wants_gpu(spec, num_gpus)
    free_gpus = num_gpus - reserved_gpus
    if on_gpu and free_gpus < num_workers:
        reserved = f" besides the {reserved_gpus:g} reserved for serving" if reserved_gpus else ""
        raise ResourceError(
            f"{num_workers} workers with one GPU each were asked for, the cluster has "
            f"{max(0.0, free_gpus):g} GPUs{reserved}; lower num_workers or set accelerator to 'cpu'"
        )
    if spec.precision == "fp16" and not on_gpu:
        raise ResourceError(
            "precision is 'fp16', which needs GPUs, and the workers are on CPUs; use 'bf16' or "
            "'fp32'"
        )
    if spec.quantization != "none":
        _check_quantization(spec, on_gpu=on_gpu)
    asked = _count_cpus(spec, num_workers)
    cpus = [node.get("CPU", 0.0) for node in nodes]
    free, largest = sum(cpus) - reserved_cpus, max(cpus, default=0.0)
    num_startable = sum(int(node / spec.cpus_per_worker + _ROUNDING) for node in cpus)
    if asked > free + _ROUNDING or num_workers > num_startable:
        reserved = f" besides the {reserved_cpus:g} reserved for serving" if reserved_cpus else ""
        rows = _count_row_cpus(spec)
        verb = "prepare" if spec.loop is None else "read"
        streaming = f" + {rows:g} to {verb} rows" if rows else ""
        raise ResourceError(
            f"{num_workers} workers × {spec.cpus_per_worker:g} CPUs{streaming} = {asked:g} CPUs "
            f"were asked for, the cluster has {free:g}{reserved}, at most {largest:g} on one node; "
            "lower num_workers or cpus_per_worker"
        )
    if on_gpu and (num_startable := _count_gpu_workers(spec, nodes)) < num_workers:
        raise ResourceError(
            f"{num_workers} workers with one GPU and {spec.cpus_per_worker:g} CPUs each were asked "
            f"for, the cluster's nodes have room for {num_startable}; lower num_workers or "
            "cpus_per_worker"
        )


def _check_quantization(spec: TrainingSpec, *, on_gpu: bool) -> None:
    if not on_gpu:
        raise ResourceError(
            f"quantization is {spec.quantization!r}, which needs GPUs, and the cluster has none: "
            "set it to 'none'"
        )
    if find_spec("bitsandbytes") is None:
        raise ResourceError(
            f"quantization is {spec.quantization!r}, which needs bitsandbytes, and it is not "
            "installed: install it on every node (pip install bitsandbytes), or set quantization "
            "to 'none'"
        )


def _count_cpus(spec: TrainingSpec, num_workers: int) -> float:
    """Count the CPUs of workers, and of one task for their rows if these are streamed."""
    return num_workers * spec.cpus_per_worker + _count_row_cpus(spec)


def _count_row_cpus(spec: TrainingSpec) -> float:
    """Count the CPUs of one task that prepares rows, or that reads those of a loop."""
    if spec.loop is not None:
        return READER_CPUS if spec.has_rows else 0.0
    return TASK_CPUS if spec.data_engine == "ray" else 0.0


def _count_gpu_workers(spec: TrainingSpec, nodes: Sequence[Mapping[str, float]]) -> int:
    """Count the workers for which one node has both a GPU and enough CPUs."""
    return sum(
        int(min(node.get("GPU", 0.0), node.get("CPU", 0.0) / spec.cpus_per_worker) + _ROUNDING)
        for node in nodes
    )


def find_shortage(
    spec: TrainingSpec,
    computing: Iterable[TrainingSpec],
    nodes: Sequence[Mapping[str, float]],
    reserved_cpus: float = 0.0,
    reserved_gpus: float = 0.0,
) -> str | None:
    """Describe what a run lacks beside the runs in `computing`; None if it can start.

    Only sums over the cluster are compared: Ray decides which node gets which worker.
    """
    num_gpus = sum(node.get("GPU", 0.0) for node in nodes)
    free_cpus = sum(node.get("CPU", 0.0) for node in nodes) - reserved_cpus
    free_gpus = num_gpus - reserved_gpus
    for other in computing:
        free_cpus -= _count_cpus(other, other.num_workers)
        free_gpus -= other.num_workers if wants_gpu(other, num_gpus) else 0
    num_workers = spec.min_workers or spec.num_workers
    if wants_gpu(spec, num_gpus) and num_workers > free_gpus + _ROUNDING:
        return f"waits for {num_workers} GPUs, of which {max(0.0, free_gpus):g} are free"
    asked = _count_cpus(spec, num_workers)
    if asked > free_cpus + _ROUNDING:
        return f"waits for {asked:g} CPUs, of which {max(0.0, free_cpus):g} are free"
    return None


def wants_gpu(spec: TrainingSpec, num_gpus: float) -> bool:
    """Return whether each worker needs a GPU."""
    return spec.accelerator == "gpu" or (spec.accelerator == "auto" and num_gpus > 0)


def resolve_precision(spec: TrainingSpec, *, on_gpu: bool) -> TrainingSpec:
    """Resolve a precision of 'auto'; a run that resumes on other hardware keeps its precision.

    On a CPU without bf16 instructions, bf16 matrix products are several times slower than fp32
    ones (7 against 65 GFLOP/s on one core of an AMD EPYC with AVX2); with these instructions they
    are faster.
    """
    if spec.precision != "auto":
        return spec
    precision = "bf16" if on_gpu or _computes_bf16(_CPU_INFO) else "fp32"
    if is_switched_off(spec.deepspeed, precision):
        precision = "fp32"
    return spec.model_copy(update={"precision": precision})


def _computes_bf16(cpu_info: Path) -> bool:
    """Return whether this machine's CPU has bf16 instructions: x86 AVX-512 or AMX, or Arm's."""
    try:
        text = cpu_info.read_text()
    except OSError:  # not Linux
        return False
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return flags is not None and not _BF16_FLAGS.isdisjoint(flags.group(1).split())
