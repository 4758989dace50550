"""The processes of `benchmarks.consolidate`: one saves a checkpoint, two convert it to a model."""

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_NUM_TOKENS = 16
_WATCH_INTERVAL_S = 0.005


def main() -> int:
    """Run one part and print its report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("make", "ours", "peer"))
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--shard-mb", type=int, default=500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part == "make":
        report = _make_checkpoint(options.model, options.checkpoint)
    else:
        convert = _convert_ours if options.part == "ours" else _convert_peers
        with tempfile.TemporaryDirectory(dir=options.checkpoint.parent) as folder:
            report = convert(options, Path(folder) / "output")
    print(json.dumps(report))
    return 0


def _make_checkpoint(model: Path, checkpoint: Path) -> dict[str, Any]:
    import torch.multiprocessing

    rendezvous = checkpoint.parent / "rendezvous"
    torch.multiprocessing.spawn(  # type: ignore[attr-defined, no-untyped-call]
        _train, (model, checkpoint, rendezvous), nprocs=2
    )
    return {"bytes": sum(path.stat().st_size for path in checkpoint.rglob("*.pt"))}


def _train(rank: int, model: Path, checkpoint: Path, rendezvous: Path) -> None:
    """Train for one step as the product's workers do, and save a checkpoint."""
    import torch.distributed as dist

    from training.batching import BatchPlan
    from training.checkpoint.format import TAG
    from training.checkpoint.reference_logits import PROBE_NAME, compute_probe
    from training.place import Place
    from training.spec import TrainingSpec
    from training.strategies.zero import STRATEGY
    from training.task import open_default_objective

    torch.set_num_threads(1)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": 0}
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    place = Place(rank, 2, torch.device("cpu"))
    STRATEGY.prepare_process(place.device)
    spec = TrainingSpec(
        base_model=str(model), train_file="-", precision="bf16", num_workers=2, zero_stage=3
    )
    engine: Any = STRATEGY.start_engine(
        spec, place, BatchPlan.from_spec(spec, "padded", 2), open_default_objective()
    )
    ids = torch.arange(_NUM_TOKENS)[None] + rank
    engine.backward(engine(input_ids=ids, labels=ids).loss, scale_wrt_gas=True)
    engine.step()
    probe = compute_probe(engine, place, open_default_objective())
    engine.save_checkpoint(str(checkpoint), tag=TAG)
    if rank == 0:
        probe.write(checkpoint / PROBE_NAME)
    dist.barrier()
    dist.destroy_process_group()


def _import_architecture(model: Path) -> None:
    """Import the modules that transformers loads on first use of this architecture."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    with torch.device("meta"):
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    AutoTokenizer.from_pretrained(model)


def _convert_ours(options: argparse.Namespace, output: Path) -> dict[str, Any]:
    from storage import durable
    from training.checkpoint.format import find_shards
    from training.checkpoint.reference_logits import read_probe
    from training.export.consolidate import write_model
    from training.export.verification import check_model
    from training.export.zero_shards import open_weights
    from training.task import open_default_objective

    checkpoint: Path = options.checkpoint
    _import_architecture(options.model)
    probe = read_probe(checkpoint)
    building = output.with_name("building")

    def convert() -> None:
        building.mkdir(parents=True)
        hashes, values = write_model(
            open_weights(find_shards(checkpoint), in_fp32=False),
            str(options.model),
            building,
            probe,
            open_default_objective(),
            dtype=torch.bfloat16,
            shard_bytes=options.shard_mb * 10**6,
        )
        assert values.passed, values
        durable.publish_directory(building, output, known=hashes)

    report = _measure(convert)
    with _watch_memory() as watch:
        started = time.perf_counter()
        checks = check_model(output, probe, torch.bfloat16)
        verify_s = time.perf_counter() - started
    return {
        **report,
        "loads": all(check.passed for check in checks),
        "verify_s": round(verify_s, 2),
        "verify_anonymous_mb": round(watch.peak_mb, 1),
    }


def _convert_peers(options: argparse.Namespace, output: Path) -> dict[str, Any]:
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_state_dict

    def convert(*, as_safetensors: bool) -> None:
        convert_zero_checkpoint_to_state_dict(
            str(options.checkpoint),
            str(output),
            dtype=torch.bfloat16,
            max_shard_size=f"{options.shard_mb}MB",
            safe_serialization=as_safetensors,
        )

    failure = None
    try:
        report = _measure(lambda: convert(as_safetensors=True))
    except RuntimeError as exc:
        failure = str(exc).strip().splitlines()[0]
        shutil.rmtree(output, ignore_errors=True)
        report = _measure(lambda: convert(as_safetensors=False))
    return {**report, "safetensors": failure is None, "failure": failure}


def _measure(convert: Callable[[], None]) -> dict[str, Any]:
    with _watch_memory() as watch:
        started = time.perf_counter()
        convert()
        took_s = time.perf_counter() - started
    return {"took_s": round(took_s, 2), "anonymous_mb": round(watch.peak_mb, 1)}


@dataclass
class _Watch:
    peak_mb: float = 0.0


@contextmanager
def _watch_memory() -> Iterator[_Watch]:
    """Track the peak of this process's anonymous memory above its present amount, in MB."""
    before = _read_anonymous_bytes()
    watch, done = _Watch(), threading.Event()

    def look() -> None:
        while not done.wait(_WATCH_INTERVAL_S):
            watch.peak_mb = max(watch.peak_mb, (_read_anonymous_bytes() - before) / 1e6)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        done.set()
        thread.join()


def _read_anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not tell of anonymous memory")


if __name__ == "__main__":
    sys.exit(main())
