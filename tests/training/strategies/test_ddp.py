"""Loading of a checkpoint of the ddp strategy."""

from pathlib import Path
from typing import Any

import pytest
import torch

from training.adapters.layers import add_adapter
from training.checkpoint.format import CheckpointError
from training.export.zero_shards import WHOLE_STATES
from training.settings.adapter_settings import AdapterSettings
from training.strategies.ddp import DdpEngine


class Model(torch.nn.Module):
    """One linear layer, a buffer that checkpoints have and one that they do not have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("statistics", torch.ones(4))
        self.register_buffer("positions", torch.ones(4), persistent=False)


def make_engine(model: torch.nn.Module) -> DdpEngine:
    """Return an engine that can only load: the rest needs Ray Train."""
    engine = DdpEngine.__new__(DdpEngine)
    engine.module = model
    engine.optimizer = torch.optim.AdamW(one for one in model.parameters() if one.requires_grad)
    return engine


def save(folder: Path, engine: DdpEngine, **changes: Any) -> None:
    module = {**engine.module.state_dict(), **changes}
    states = {
        "module": {name: one for name, one in module.items() if one is not None},
        "optimizer": engine.optimizer.state_dict(),
        "global_steps": 3,
    }
    (folder / "tag").mkdir(exist_ok=True)
    torch.save(states, folder / "tag" / WHOLE_STATES)


def test_checkpoint_must_have_every_weight_and_buffer(tmp_path: Path) -> None:
    engine = make_engine(Model())
    save(tmp_path, engine, statistics=torch.full((4,), 2.0))
    assert engine.load_checkpoint(str(tmp_path), "tag")[0]
    assert engine.module.statistics.tolist() == [2.0] * 4
    assert engine.global_steps == 3
    for name in ("statistics", "linear.bias"):
        save(tmp_path, engine, **{name: None})
        with pytest.raises(CheckpointError, match=name):
            engine.load_checkpoint(str(tmp_path), "tag")
    save(tmp_path, engine, other=torch.ones(1))
    with pytest.raises(CheckpointError, match="other"):
        engine.load_checkpoint(str(tmp_path), "tag")


def test_checkpoint_of_adapter_has_no_frozen_weight(tmp_path: Path) -> None:
    model = Model()
    settings = AdapterSettings(rank=2, target_modules=["linear"])
    model.get_output_embeddings = lambda: None  # type: ignore[assignment]
    add_adapter(model, settings, has_new_head=False, seed=0)
    engine = make_engine(model)
    save(tmp_path, engine)
    assert engine.load_checkpoint(str(tmp_path), "tag")[0]
    for name in ("statistics", "linear.lora_A.default.weight"):
        save(tmp_path, engine, **{name: None})
        with pytest.raises(CheckpointError, match=name):
            engine.load_checkpoint(str(tmp_path), "tag")
