"""The steps of the check of an imported model, in order."""

from collections.abc import Mapping
from typing import Literal

CheckStep = Literal["files", "model", "tokenizer", "image processor", "chat template"]

CAUSES: Mapping[CheckStep, str] = {
    "files": "its JSON files may be too large",
    "model": "its config.json may claim more than its weights hold",
    "tokenizer": "its tokenizer cannot be loaded within the limits",
    "image processor": "its preprocessor_config.json may claim large images",
    "chat template": "its tokenizer_config.json may be too large",
}
"""The likely fault of a model whose check process ended in this step."""
