"""Base weights of 4 or 8 bits under an adapter, by bitsandbytes on GPUs.

Dettmers et al. 2023, arXiv 2305.14314 (nf4), and Dettmers et al. 2022, arXiv 2208.07339 (int8).
"""

from typing import Any

import torch


def build_quantization(kind: str, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Return what `from_pretrained` of transformers takes to quantise weights: 'nf4' or 'int8'.

    They are quantised while they are loaded onto `device`; products are computed in `dtype`.
    """
    from transformers import BitsAndBytesConfig

    if kind == "int8":
        config = BitsAndBytesConfig(load_in_8bit=True)
    else:
        config = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type=kind,
            bnb_4bit_compute_dtype=dtype,
            bnb_4bit_use_double_quant=True,
        )
    return {"quantization_config": config, "device_map": {"": device}}
