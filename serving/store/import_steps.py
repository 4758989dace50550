"""The steps of the check of a model from elsewhere, in their order."""

from collections.abc import Mapping
from typing import Literal

CheckStep = Literal["files", "model", "tokenizer", "chat template"]

CAUSES: Mapping[CheckStep, str] = {
    "files": "its JSON files may be too large",
    "model": "its config.json may claim more than its weights hold",
    "tokenizer": "its tokenizer cannot be loaded within the limits",
    "chat template": "its tokenizer_config.json may be too large",
}
"""What is likely wrong with a model whose check ended in a step."""
