"""Consolidation of checkpoint shards into a complete, verified Hugging Face model directory.

    python -m training.export.consolidate RUN/ray/checkpoints/checkpoint_0000000100 my-model

One tensor at a time is copied from the mapped shards through a small buffer into the files, so
memory does not grow with the model. A model that fails a check is kept with the suffix `.rejected`,
with a report.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from storage import durable
from storage.scratch import build_in_scratch
from system.byte_progress import OnBytes, show_bytes
from templating.renderer import TemplateValue
from training.checkpoint.format import find_damage, find_shards, read_checkpoint
from training.checkpoint.reference_logits import Probe, read_probe
from training.export.companions import open_config, save_inputs
from training.export.model_settings import check_settings
from training.export.plan import ConsolidationError, build_meta_model
from training.export.verification import (
    Check,
    Verification,
    check_model,
    check_values,
    reject_model,
)
from training.export.weight_files import WrittenWeights, write_weights
from training.export.zero_shards import ShardsError, StoredWeights, open_weights
from training.model import DTYPES
from training.run.folder import RunFolder
from training.task import Objective, find_task, open_default_objective

DEFAULT_SHARD_BYTES = 5_000_000_000

AddFiles = Callable[[Path], None]


def consolidate_checkpoint(
    checkpoint: Path,
    base_model: str,
    output: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    trained_in: torch.dtype | None = None,
    template_arguments: Mapping[str, TemplateValue] | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    add_files: AddFiles | None = None,
    on_progress: OnBytes | None = None,
    objective: Objective | None = None,
) -> Verification:
    """Write the model of a checkpoint as a self-contained Hugging Face directory.

    Configuration, tokenizer, chat template and generation settings come from `base_model`. The
    weights are written in `dtype`; `trained_in` is the precision of the training, by default the
    same. `template_arguments` become defaults of its chat template. `add_files` adds more files to
    the directory before its manifest is written; `on_progress` is called with the bytes written and
    the total bytes. `objective` is that of the training, by default a causal language model's.

    Raises `ShardsError` for files that are damaged or missing, and `ConsolidationError` if the
    checkpoint and the architecture do not match; in both cases no files are left behind. Raises
    `RejectedError` if the result failed its verification: it is then kept beside `output` with the
    suffix `.rejected` and contains the report. `output` is published complete or not at all.
    """
    if output.exists():
        raise ConsolidationError(f"{str(output)!r} already exists; it was not changed")
    objective = objective or open_default_objective()
    probe = read_probe(checkpoint)
    with build_in_scratch(output.parent, f".{output.name}.building-") as building:
        hashes, values = write_model(
            open_weights(find_shards(checkpoint), in_fp32=dtype == torch.float32),
            base_model,
            building,
            probe,
            objective,
            dtype=dtype,
            template_arguments=template_arguments,
            shard_bytes=shard_bytes,
            on_progress=on_progress,
        )
        if add_files:
            add_files(building)
        model_class = objective.task.model_class
        loaded = check_model(building, probe, trained_in or dtype, model_class)
        checks = (check_settings(building), *loaded)
        verification = Verification(checks=(values, *checks))
        verification.write(building)
        if not verification.passed:
            raise reject_model(building, output, verification)
        durable.publish_directory(building, output, known=hashes)
    return verification


def write_model(
    weights: StoredWeights,
    base_model: str,
    directory: Path,
    probe: Probe | None,
    objective: Objective,
    *,
    dtype: torch.dtype,
    template_arguments: Mapping[str, TemplateValue] | None = None,
    shard_bytes: int,
    on_progress: OnBytes | None = None,
) -> tuple[dict[str, dict[str, Any]], Check]:
    """Write weights, configuration and tokenizer into a directory, and check every value.

    Returns the manifest entries (size and hash) of the weight files, and the check of the values
    against those of `probe` in training. Raises `ConsolidationError` as `consolidate_checkpoint`
    does.
    """
    config = open_config(base_model, dtype, objective)
    model = build_meta_model(config, dtype, objective.task.model_class)
    written = write_weights(weights, model, directory, dtype, shard_bytes, on_progress)
    config.architectures = [type(model).__name__]
    config.save_pretrained(directory)
    save_inputs(base_model, config, directory, objective, template_arguments or {})
    return written.hashes, _check_values(written, probe)


def _check_values(written: WrittenWeights, probe: Probe | None) -> Check:
    """Check the values: a parameter may be all zero only if it was all zero in training."""
    expected = probe.zero_parameters if probe else written.vectors
    unexpected = sorted(written.zero_parameters - expected)
    return check_values(written.non_finite, unexpected, len(written.weight_map))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m training.export.consolidate", description=__doc__
    )
    parser.add_argument("checkpoint", type=Path, help="folder with the file 'latest' in it")
    parser.add_argument("output", type=Path, help="new folder for the model")
    parser.add_argument("--base-model", help="default: that of the run which the checkpoint is of")
    parser.add_argument("--dtype", choices=DTYPES, help="default: as the run's spec says")
    parser.add_argument(
        "--shard-mb", type=_parse_size, default=DEFAULT_SHARD_BYTES // 10**6, help="size of files"
    )
    options = parser.parse_args(arguments)
    settings = _find_settings(options.checkpoint)
    base_model = options.base_model or settings.get("base_model")
    if base_model is None:
        parser.error(f"{options.checkpoint} is no checkpoint of a run; say --base-model")
    trained_in = settings.get("precision")
    if trained_in not in DTYPES:  # unknown, or still 'auto'
        trained_in = options.dtype or "bf16"
    console = Console(stderr=True)
    try:
        _check_damage(options.checkpoint)
        if settings.get("adapter"):
            parser.error(
                f"{options.checkpoint} is of an adapter, which is no model of its own: start its "
                "run again to write it"
            )
        with show_bytes(console, "Writing the model") as on_progress:
            verification = consolidate_checkpoint(
                options.checkpoint,
                base_model,
                options.output.resolve(),
                dtype=DTYPES[options.dtype or _choose_dtype(settings, trained_in)],
                trained_in=DTYPES[trained_in],
                template_arguments=settings.get("template_arguments"),
                shard_bytes=options.shard_mb * 10**6,
                on_progress=on_progress,
                objective=_find_objective(options.checkpoint, settings),
            )
    except (RuntimeError, ValueError, OSError) as exc:
        console.print(f"failed: {exc}", style="red", markup=False, highlight=False)
        return 1
    for check in verification.checks:
        console.print(f"{check.name}: {check.detail}", markup=False, highlight=False)
    print(options.output)  # noqa: T201 - the result, for a shell to take
    return 0


def _parse_size(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of megabytes above zero")
    return int(text)


def _find_settings(checkpoint: Path) -> dict[str, Any]:
    """Read the spec of the run that contains a checkpoint; empty if there is no such run."""
    for folder in checkpoint.resolve().parents[:4]:
        if (folder / "spec.json").is_file():
            settings: dict[str, Any] = durable.read_json(folder / "spec.json")
            return settings
    return {}


def _find_objective(checkpoint: Path, settings: Mapping[str, Any]) -> Objective | None:
    """Open the objective of the run that contains a checkpoint; None for a plain checkpoint."""
    for folder in checkpoint.resolve().parents[:4]:
        if settings and (folder / "spec.json").is_file():
            run = RunFolder(folder)
            spec = run.read_spec()
            return find_task(spec.task).open_objective(spec, run.read_data_summary())
    return None


def _choose_dtype(settings: Mapping[str, Any], trained_in: str) -> str:
    """Choose the dtype of the weights from the spec of a run."""
    chosen = settings.get("export_dtype", "auto")
    return chosen if chosen in DTYPES else trained_in


def _check_damage(checkpoint: Path) -> None:
    """Compare a checkpoint with its manifests; a plain DeepSpeed checkpoint has none."""
    found = read_checkpoint(checkpoint)
    if found and (damage := find_damage(found, rank=0, world_size=1)):
        raise ShardsError(f"{checkpoint.name!r} is damaged: {damage}")


if __name__ == "__main__":
    sys.exit(main())
