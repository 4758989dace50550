"""A minimal training loop over DeepSpeed's engine.

    torchrun --nproc-per-node=2 -m benchmarks.train_peers.raw WORKBENCH

It has batches of rows of similar length, padded within the same limit of tokens as ours, which it
collates before the clock starts, and the same DeepSpeed configuration. A step is a forward pass,
the mean loss, `backward` and `step`, without a journal or Ray. It computes the logits of all
positions; our loop computes those of the learned positions only.
"""

import argparse
import json
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the conventional name
from transformers import AutoModelForCausalLM
from transformers.integrations import HfDeepSpeedConfig

from benchmarks.train_peers.report import StepClock
from benchmarks.workbench import LEARNING_RATE, Workbench
from training.losses.next_token import IGNORED_LABEL, collate_tokens
from training.task import MicroBatch


def main() -> None:
    """Train for one epoch as one of the workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workbench", type=Path, help="folder that benchmarks.train has built")
    bench = Workbench(parser.parse_args().workbench)
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    config = bench.read_deepspeed_config()
    shards_on_load = HfDeepSpeedConfig(config)  # must live across from_pretrained
    model = AutoModelForCausalLM.from_pretrained(bench.model)
    del shards_on_load
    model.config.use_cache = False
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    batches, num_tokens = _make_batches(bench)

    clock = StepClock()
    for batch in batches:
        logits = engine(**batch.inputs).logits
        loss = F.cross_entropy(
            logits.float().flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED_LABEL
        )
        engine.backward(loss)
        engine.step()
        clock.end_step()

    report = clock.describe(num_tokens, float(loss), engine)
    if dist.get_rank() == 0:
        print(json.dumps(report), flush=True)
    dist.destroy_process_group()


def _make_batches(bench: Workbench) -> tuple[list[MicroBatch], list[int]]:
    """Make this worker's batches of padded rows; returns the batches and their token counts."""
    rows, plan = bench.open_tokens(), bench.plan_epoch("padded")
    mine = [
        indices
        for step in plan
        for indices in step.select_micro_batches(dist.get_rank(), dist.get_world_size())
    ]
    assert len(mine) == len(plan), "one micro batch a step"
    batches = [collate_tokens(rows.read(indices), "padded") for indices in mine]
    return batches, [int(rows.lengths[list(indices)].sum()) for indices in mine]


if __name__ == "__main__":
    main()
