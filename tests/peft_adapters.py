"""Adapters written by PEFT, and what PEFT generates with them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

LAYERS = ["q_proj", "v_proj", "down_proj"]


def write_adapter(base: Path, directory: Path, *, seed: int = 0, **settings: Any) -> Path:
    """Write an adapter of a model with random weights in PEFT's layout; return `directory`.

    By default one of rank 4 of some layers. Its values are large enough to change most answers.
    """
    chosen = {"r": 4, "lora_alpha": 8, "target_modules": LAYERS, "task_type": "CAUSAL_LM"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = get_peft_model(
            AutoModelForCausalLM.from_pretrained(base), LoraConfig(**(chosen | settings))
        )
        for name, parameter in model.named_parameters():
            if "lora_A" in name or "lora_B" in name:
                parameter.data.normal_(0, 0.3)
            elif "magnitude" in name:
                parameter.data.mul_(torch.rand_like(parameter) + 0.5)
    model.save_pretrained(directory, save_embedding_layers=False)
    return directory


def load_with_peft(base: Path, adapter: Path | None) -> Any:
    """Load a model by transformers, with an adapter by PEFT if there is one."""
    model = AutoModelForCausalLM.from_pretrained(base).eval()
    return model if adapter is None else PeftModel.from_pretrained(model, str(adapter)).eval()


def generate_with_peft(
    base: Path, adapter: Path | None, prompt_ids: Sequence[int], num_tokens: int
) -> list[int]:
    """Return the tokens of a greedy answer, at most `num_tokens`."""
    model = load_with_peft(base, adapter)
    ids = torch.tensor([list(prompt_ids)])
    with torch.no_grad():
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
        )
    return list(map(int, out[0, len(prompt_ids) :]))
