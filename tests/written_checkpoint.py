"""Checkpoints in DeepSpeed's layout, written without DeepSpeed from a model with known weights."""

from pathlib import Path
from typing import Any

import torch

from training.checkpoint.reference_logits import PROBE_NAME, Probe, make_prompt

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ALIASES = {HEAD: EMBEDDING}


def write_whole(folder: Path, model: Any, **changes: torch.Tensor) -> Path:
    """Write a checkpoint of ZeRO stage 0, with a probe to compare logits with."""
    shards = start_checkpoint(folder, model)
    module = {**model.state_dict(), **changes}
    states = {"module": module, "buffer_names": [], "shared_params": ALIASES}
    torch.save(states, shards / "mp_rank_00_model_states.pt")
    return folder


def write_sharded(folder: Path, model: Any, world_size: int, frozen: str = "-") -> Path:
    """Write a checkpoint of ZeRO stage 3; parameters whose names start with `frozen` are frozen."""
    shards = start_checkpoint(folder, model)
    named = dict(model.named_parameters())
    shapes = {name: p.shape for name, p in named.items() if not name.startswith(frozen)}
    frozen_shapes = {name: p.shape for name, p in named.items() if name.startswith(frozen)}
    for rank in range(world_size):
        pieces = {name: cut(parameter, rank, world_size) for name, parameter in named.items()}
        flat = torch.cat([pieces[name] for name in shapes])
        torch.save(
            {
                "optimizer_state_dict": {
                    "partition_count": world_size,
                    # in two groups that end in the middle of a parameter
                    "fp32_flat_groups": [flat[:1000].clone(), flat[1000:].clone()],
                }
            },
            shards / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt",
        )
        torch.save(
            {
                "module": {},
                "buffer_names": [],
                "shared_params": ALIASES,
                "param_shapes": [shapes],
                "frozen_param_shapes": frozen_shapes or None,
                "frozen_param_fragments": {name: pieces[name] for name in frozen_shapes},
            },
            shards / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt",
        )
    return folder


def start_checkpoint(folder: Path, model: Any) -> Path:
    shards = folder / "state"
    shards.mkdir(parents=True)
    (folder / "latest").write_text("state")
    make_probe(model).write(folder / PROBE_NAME)
    return shards


def make_probe(model: Any, zeros: frozenset[str] = frozenset()) -> Probe:
    prompt = make_prompt(model.config)
    with torch.no_grad():
        return Probe(prompt, model(**prompt).logits[0].contiguous(), zeros)


def cut(parameter: torch.Tensor, rank: int, world_size: int) -> torch.Tensor:
    """Return a rank's flat slice of a parameter; the last slice is padded with NaN.

    NaN in a result reveals that padding was read.
    """
    length = -(-parameter.numel() // world_size)
    padded = torch.full((length * world_size,), float("nan"))
    padded[: parameter.numel()] = parameter.detach().flatten()
    return padded[rank * length : (rank + 1) * length].clone()
