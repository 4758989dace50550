"""Checks of the settings of a spec that depend on each other."""

from typing import TYPE_CHECKING

from storage.local_paths import check_local_path, hide_credentials, is_bucket_url
from training.deepspeed.user_config import check_batch_size
from training.settings.loop_settings import check_loop_settings

if TYPE_CHECKING:
    from training.spec import TrainingSpec


def check_settings_together(spec: "TrainingSpec") -> None:
    """Raise `ValueError` for settings that exclude each other or need another one."""
    check_loop_settings(spec)
    check_batch_size(
        spec.deepspeed, spec.micro_batch_size, spec.gradient_accumulation_steps, spec.num_workers
    )
    _refuse_urls(spec)
    _check_sources(spec)
    _check_engine(spec)
    _check_evaluation(spec)
    _check_steps(spec)
    _check_strategy(spec)
    _check_sharding(spec)
    _check_continuation(spec)
    _check_quantization(spec)
    _check_elastic(spec)


def _refuse_urls(spec: "TrainingSpec") -> None:
    check_local_path("base_model", spec.base_model, "a folder or a model id on the hub")
    for name in ("train_file", "validation_file"):
        _check_file(spec, name, getattr(spec, name) or "")
    for mixed in spec.train_files:
        _check_file(spec, "train_files", mixed.file)
    for name in ("train_dataset", "validation_dataset"):
        dataset_id = getattr(getattr(spec, name), "id", "")
        check_local_path(f"{name}.id", dataset_id, "an id on the hub, as in 'owner/name'")


def _check_file(spec: "TrainingSpec", name: str, place: str) -> None:
    """Raise `ValueError` for a URL, unless it is one that Ray Data streams."""
    if not is_bucket_url(place):
        check_local_path(name, place)
    elif spec.data_engine != "ray":
        raise ValueError(
            f"{name} is {hide_credentials(place)!r}, expected a path of the file system, because "
            f"data_engine is {spec.data_engine!r}: set data_engine to 'ray', or download the data"
        )


def _check_engine(spec: "TrainingSpec") -> None:
    if spec.data_engine == "local":
        return
    for name in ("train_dataset", "validation_dataset"):
        if getattr(spec, name):
            raise ValueError(
                f"{name} is set, and data_engine is {spec.data_engine!r}, which reads files: "
                "download the data set as Parquet or JSONL files, or set data_engine to 'local'"
            )


def _check_sources(spec: "TrainingSpec") -> None:
    sources = ("train_file", "train_files", "train_dataset")
    found = [name for name in sources if getattr(spec, name)]
    if len(found) != 1 and (found or spec.loop is None):  # a loop may need no rows of ours
        set_ones = f"{' and '.join(found)} are set" if found else "none of them is set"
        raise ValueError(
            f"rows come from train_file, train_files or train_dataset, and {set_ones}: set one "
            "of them"
        )
    sources = ("validation_file", "validation_dataset", "validation_fraction")
    if len(several := [name for name in sources if getattr(spec, name)]) > 1:
        raise ValueError(f"{' and '.join(several)} are set: set one of them")


def _check_evaluation(spec: "TrainingSpec") -> None:
    if spec.loop is not None:  # it evaluates as it likes
        return
    for name, is_set in (
        ("keep", spec.keep == "best"),
        ("early_stopping_patience", spec.early_stopping_patience),
        ("evaluate_every_steps", spec.evaluate_every_steps),
    ):
        if is_set and not spec.has_validation:
            raise ValueError(
                f"{name} is {getattr(spec, name)!r}, which needs rows to evaluate on: set "
                "validation_file, validation_dataset or validation_fraction"
            )


def _check_steps(spec: "TrainingSpec") -> None:
    if spec.max_steps is not None and (spec.warmup_steps or 0) >= spec.max_steps:
        raise ValueError(
            f"warmup_steps is {spec.warmup_steps}, expected fewer than max_steps "
            f"{spec.max_steps}: the learning rate would never fall"
        )
    if spec.max_length is not None and spec.max_length > spec.micro_batch_tokens:
        raise ValueError(
            f"micro_batch_tokens is {spec.micro_batch_tokens}, less than max_length "
            f"{spec.max_length}: a row of full length would fit no micro batch; raise "
            "micro_batch_tokens or lower max_length"
        )


def _check_strategy(spec: "TrainingSpec") -> None:
    if spec.strategy == "pipeline":
        _check_pipeline(spec)
    elif spec.pipeline_stages is not None:
        raise ValueError(
            f"pipeline_stages is {spec.pipeline_stages}, and strategy is {spec.strategy!r}: remove "
            "it, or set strategy to 'pipeline'"
        )
    if spec.strategy == "zero":
        return
    names = ("offload_optimizer", "offload_parameters", "wall_clock_breakdown", "deepspeed")
    if found := [name for name in names if getattr(spec, name)]:
        raise ValueError(
            f"strategy is {spec.strategy!r}, which does not support {' and '.join(found)}: "
            f"remove {'it' if len(found) == 1 else 'them'}, or set strategy to 'zero'"
        )
    if spec.precision == "fp16":
        raise ValueError(
            f"precision is 'fp16', which needs a loss scale, and strategy {spec.strategy!r} has "
            "none: set precision to 'bf16' or 'fp32', or strategy to 'zero'"
        )


def _check_pipeline(spec: "TrainingSpec") -> None:
    if spec.task != "causal_lm":
        raise ValueError(
            f"strategy is 'pipeline', which cuts language models only, and task is {spec.task!r}: "
            "set strategy to 'zero' or 'ddp'"
        )
    if spec.zero_stage != 1:
        raise ValueError(
            f"zero_stage is {spec.zero_stage}, and a pipeline has 1: its stages already have "
            "different parameters, and DeepSpeed shards the optimizer's state over the replicas; "
            "remove zero_stage, or set strategy to 'zero'"
        )
    if spec.num_workers < 2 or spec.num_workers % spec.num_stages:
        stages = spec.pipeline_stages or "2 or more"
        raise ValueError(
            f"num_workers is {spec.num_workers}, expected a multiple of the {stages} stages of the "
            "pipeline: each stage of each replica is a worker"
        )
    if spec.min_workers is not None:
        raise ValueError(
            f"min_workers is {spec.min_workers}, and a pipeline cannot continue without one of its "
            "stages: remove min_workers"
        )
    if spec.data_engine != "local":
        raise ValueError(
            f"data_engine is {spec.data_engine!r}, which divides rows among all workers, and the "
            "stages of a pipeline need the same rows: set it to 'local'"
        )
    if spec.adapter is not None:
        raise ValueError(
            "adapter is set, and a pipeline trains all weights of its stages: set strategy to "
            "'zero' or 'ddp', or remove adapter"
        )
    if spec.batch_layout == "flattened":
        raise ValueError("batch_layout is 'flattened', and a pipeline pads rows: set it to 'auto'")


def _check_sharding(spec: "TrainingSpec") -> None:
    if spec.offload_parameters and spec.zero_stage != 3:
        raise ValueError(
            f"offload_parameters needs zero_stage 3, which alone shards parameters; it is "
            f"{spec.zero_stage}"
        )
    if spec.strategy == "zero" and spec.precision == "fp16" and spec.zero_stage == 0:
        raise ValueError(
            "precision fp16 needs zero_stage 1, 2 or 3: at stage 0 DeepSpeed leaves the loss "
            "unscaled and divides the gradients by the scale all the same; it is 0"
        )
    if spec.offload_optimizer and spec.zero_stage == 0:
        raise ValueError("offload_optimizer needs zero_stage 1, 2 or 3; it is 0")


def _check_continuation(spec: "TrainingSpec") -> None:
    if spec.base_adapter is None:
        return
    check_local_path("base_adapter", spec.base_adapter)
    if spec.adapter is None:
        raise ValueError(
            "base_adapter is set, and adapter is not: set adapter, or merge the adapter with its "
            "base model to train all weights"
        )
    if spec.task not in ("causal_lm", "preference"):
        raise ValueError(
            f"base_adapter is set, and task is {spec.task!r}, whose adapters have a head of their "
            "own: expected 'causal_lm' or 'preference', or merge the adapter with its base model"
        )
    for name, value, default in (
        ("init", spec.adapter.init, "default"),
        ("modules_to_save", list(spec.adapter.modules_to_save), []),
    ):
        if value != default:
            raise ValueError(
                f"base_adapter is set, and adapter.{name} is {value!r}, which an adapter cannot "
                f"get later: remove {name}"
            )


def _check_quantization(spec: "TrainingSpec") -> None:
    if spec.quantization == "none":
        return
    found = f"quantization is {spec.quantization!r}"
    if spec.adapter is None:
        raise ValueError(
            f"{found}, and quantised weights cannot be learned themselves: set adapter, or set "
            "quantization to 'none'"
        )
    if spec.strategy == "zero" and spec.zero_stage == 3:
        raise ValueError(
            f"{found}, and zero_stage is 3, which would shard weights that bitsandbytes keeps "
            "whole: set zero_stage to 0, 1 or 2, or strategy to 'ddp'"
        )
    if spec.accelerator == "cpu":
        raise ValueError(
            f"{found}, which needs GPUs, and accelerator is 'cpu': set it to 'auto' or 'gpu', or "
            "quantization to 'none'"
        )
    if spec.task != "causal_lm":
        raise ValueError(
            f"{found}, which is for task 'causal_lm', and task is {spec.task!r}: set quantization "
            "to 'none'"
        )
    for name, value, default in (
        ("init", spec.adapter.init, "default"),
        ("modules_to_save", list(spec.adapter.modules_to_save), []),
    ):
        if value != default:
            raise ValueError(
                f"{found}, and adapter.{name} is {value!r}, which needs weights that are not "
                f"quantised: remove {name}, or set quantization to 'none'"
            )


def _check_elastic(spec: "TrainingSpec") -> None:
    if spec.min_workers is not None and spec.min_workers > spec.num_workers:
        raise ValueError(
            f"min_workers is {spec.min_workers}, more than num_workers {spec.num_workers}"
        )
    if (spec.min_workers or spec.num_workers) < spec.num_workers and not spec.save_every_steps:
        raise ValueError(
            f"min_workers is {spec.min_workers}, fewer than num_workers {spec.num_workers}: "
            "whenever the cluster grows or shrinks, training resumes from the last checkpoint; "
            "set save_every_steps to the number of steps that may be repeated"
        )
