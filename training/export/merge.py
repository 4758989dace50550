"""Merging of an adapter in PEFT's layout into its base model: a complete, verified model.

    python -m training.export.merge my-adapter base-model my-model

The product of the factors is added to each weight in fp32, and the sums are written in the dtype of
the base model.
"""

import argparse
import gc
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from model_files.tokenizer_settings import TOKENIZER_NAME
from model_files.weight_headers import read_weight_headers
from storage import durable, versioned_json
from storage.lineage_file import LINEAGE_NAME, read_lineage_file
from storage.scratch import build_in_scratch
from system.machine_faults import is_out_of_space
from system.priority import lower_process_priority
from system.process_limits import end_with_parent, limit_memory, offer_for_killing
from training.base_model import find_revision, load_config
from training.checkpoint.reference_logits import Probe
from training.export.companions import open_config
from training.export.consolidate import DEFAULT_SHARD_BYTES, write_model
from training.export.merge_check import MergeComparison, map_names
from training.export.merged import list_weights
from training.export.model_settings import check_settings
from training.export.plan import ConsolidationError, build_meta_model, plan_exports
from training.export.verification import (
    REPORT_NAME,
    RejectedError,
    Verification,
    check_model,
    move_aside,
)
from training.preflight.merge_needs import (
    NO_DISK_STATUS,
    NO_MEMORY_STATUS,
    estimate_merge_memory,
)
from training.task import Objective, open_default_objective

_TOKENIZER_FILES = (
    *(TOKENIZER_NAME, "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
)
_GENERATION_NAME = "generation_config.json"
_NO_MEMORY = re.compile("can't allocate memory|not enough memory|[Cc]annot allocate memory")
_MAPPED_COPIES = 4  # the base twice, the result twice
_MORE_ADDRESSES = 4 << 30  # libraries that are loaded later, threads
_DTYPES = {"F64": torch.float32, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def merge_adapter(
    adapter: Path,
    base: Path,
    output: Path,
    add_files: Callable[[Path], None] | None = None,
    *,
    keeps_rejected: bool = True,
) -> Verification:
    """Write the language model in `base` with an adapter merged into its weights.

    Tokenizer and settings of generation are the adapter's, where it has its own. Every tensor of
    the result is compared with the files of base and adapter, and the logits with those of the base
    model with the adapter beside its weights. `add_files` adds more files before the manifest is
    written. Needs the memory of the base model in fp32.

    Raises `ConsolidationError` if the adapter does not fit or `output` exists, and `RejectedError`
    if the result failed its verification; it is kept beside `output` with `keeps_rejected`.
    `output` is published complete or not at all.
    """
    if output.exists():
        raise ConsolidationError(f"{str(output)!r} already exists; it was not changed")
    objective = open_default_objective()
    dtype = _find_dtype(base)
    adapted = _load(adapter, base)
    inputs = objective.make_probe_inputs(load_config(str(base)))
    with torch.no_grad():
        logits = adapted(**inputs).logits[0].float()
    model = adapted.merge_and_unload()
    comparison = _plan_comparison(adapter, base, model, objective, dtype)
    zeros = frozenset(name for name, one in model.state_dict().items() if not one.any())
    probe = Probe(inputs, logits, zeros)
    with build_in_scratch(output.parent, f".{output.name}.building-") as building:
        hashes, values = write_model(
            list_weights(model),
            str(base),
            building,
            probe,
            objective,
            dtype=dtype,
            shard_bytes=DEFAULT_SHARD_BYTES,
        )
        del model, adapted
        gc.collect()  # its modules refer to each other
        _copy_inputs(adapter, building)
        if add_files:
            add_files(building)
        trained_in = torch.float32 if dtype == torch.float32 else None
        reference = "those of the base model with the adapter"
        loaded = check_model(building, probe, trained_in, reference=reference)
        checks = (values, comparison.check(building), check_settings(building), *loaded)
        verification = Verification(checks=checks)
        verification.write(building)
        if not verification.passed:
            message = f"the merged model is not correct: {verification.describe_faults()}"
            if keeps_rejected:
                aside = move_aside(building, output)
                message += f". It was moved to {aside.name!r}, with {REPORT_NAME}"
            raise RejectedError(message)
        durable.publish_directory(building, output, known=hashes)
    return verification


def _plan_comparison(
    adapter: Path, base: Path, model: Any, objective: Objective, dtype: torch.dtype
) -> MergeComparison:
    """Plan the comparison of a merged model's files; raises `ConsolidationError`."""
    from transformers.pytorch_utils import Conv1D

    transposed = {
        f"{name}.weight" for name, module in model.named_modules() if isinstance(module, Conv1D)
    }
    meta = build_meta_model(open_config(str(base), dtype, objective), dtype)
    exports = plan_exports(list_weights(model), meta, dtype)
    return MergeComparison(adapter, base, map_names(meta, exports, transposed))


def _find_dtype(base: Path) -> torch.dtype:
    """Return the dtype that a model's configuration names, or else that of most of its weights."""
    dtype = load_config(str(base)).dtype
    if isinstance(dtype, torch.dtype):
        return dtype
    sizes: Counter[str] = Counter()
    for header in read_weight_headers(base).values():
        if header.dtype in _DTYPES:
            sizes[header.dtype] += header.num_elements
    return _DTYPES[sizes.most_common(1)[0][0]] if sizes else torch.float32


def _load(adapter: Path, base: Path) -> Any:
    """Load the base model in fp32 with an adapter.

    Raises `ConsolidationError` if they do not fit.
    """
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            base,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
        return PeftModel.from_pretrained(model, str(adapter)).eval()
    except (OSError, ValueError, RuntimeError, KeyError) as exc:
        reason = str(exc).replace(str(adapter), adapter.name).replace(str(base), base.name)
        raise ConsolidationError(
            f"adapter {adapter.name!r} cannot be merged into {base.name!r}: {reason}"
        ) from exc


def _copy_inputs(source: Path, target: Path) -> None:
    """Replace the files of a tokenizer, all of them, and the settings of generation, if it has any.

    Each of both is taken from the source only where it has one of its own.
    """
    if (source / TOKENIZER_NAME).is_file():
        for name in _TOKENIZER_FILES:
            (target / name).unlink(missing_ok=True)
            if (source / name).is_file():
                shutil.copyfile(source / name, target / name)
    if (source / _GENERATION_NAME).is_file():
        shutil.copyfile(source / _GENERATION_NAME, target / _GENERATION_NAME)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status. The last line of stderr names a failure."""
    parser = argparse.ArgumentParser(prog="python -m training.export.merge", description=__doc__)
    parser.add_argument("adapter", type=Path, help="folder of an adapter in PEFT's layout")
    parser.add_argument("base", type=Path, help="folder of its base model")
    parser.add_argument("output", type=Path, help="new folder for the model")
    parser.add_argument("--parent", type=int, help="end when this process, the parent, does")
    parser.add_argument("--discard-rejected", action="store_true", help="keep no rejected model")
    options = parser.parse_args(arguments)
    if options.parent is not None:
        end_with_parent(options.parent)
    lower_process_priority()  # a server that merges keeps serving
    offer_for_killing()
    try:
        _limit_memory(options.adapter, options.base)
        verification = merge_adapter(
            options.adapter,
            options.base,
            options.output.resolve(),
            partial(_write_origin, options.adapter),
            keeps_rejected=not options.discard_rejected,
        )
    except (RuntimeError, ValueError, OSError, MemoryError) as exc:
        print(f"failed: {_describe(exc, options)}", file=sys.stderr)  # noqa: T201 - see above
        return _find_status(exc)
    for check in verification.checks:
        print(f"{check.name}: {check.detail}", file=sys.stderr)  # noqa: T201
    print(options.output)  # noqa: T201 - the result, for a shell to take
    return 0


def _limit_memory(adapter: Path, base: Path) -> None:
    """Limit this process to what a merge may need, and to the files that it maps."""
    size_bytes = sum(header.size_bytes for header in read_weight_headers(base).values())
    needed = estimate_merge_memory(adapter, base)
    limit_memory(_MAPPED_COPIES * size_bytes, needed + _MORE_ADDRESSES)


def _describe(exc: BaseException, options: argparse.Namespace) -> str:
    """Describe a failure in one line, without the paths of the folders."""
    text = " ".join(str(exc).split()) or type(exc).__name__
    if isinstance(exc, OSError) and exc.strerror:
        where = f": {Path(str(exc.filename)).name!r}" if exc.filename else ""
        text = f"{exc.strerror}{where}"
    for path in (options.output.resolve(), options.adapter, options.base):
        if path.is_absolute():
            text = text.replace(f"{path.parent}/", "")
    return text


def _find_status(exc: BaseException) -> int:
    """Return the exit status for a failure, which says what ran out."""
    if isinstance(exc, MemoryError) or _NO_MEMORY.search(str(exc)):
        return NO_MEMORY_STATUS
    causes: list[BaseException] = [exc]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) and cause not in causes:
        causes.append(cause)
    return NO_DISK_STATUS if any(map(is_out_of_space, causes)) else 1


def _write_origin(adapter: Path, directory: Path) -> None:
    """Write the lineage of an adapter, with the adapter itself, and copy its model card."""
    merged = {"id": adapter.name, "revision": find_revision(str(adapter))}
    lineage = {**read_lineage_file(adapter), "merged_adapter": merged}
    versioned_json.write_object(directory / LINEAGE_NAME, lineage)
    if (adapter / "README.md").is_file():
        shutil.copyfile(adapter / "README.md", directory / "README.md")


if __name__ == "__main__":
    sys.exit(main())
