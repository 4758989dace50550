"""Reading the weights of single layers from the files of a base model."""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from model_files.architecture import load_on_meta, make_meta_tensors
from model_files.weight_headers import INDEX_NAME, WEIGHTS_NAME, read_weight_headers
from storage import durable
from training.base_model import load_config
from training.model import DTYPES, WEIGHT_FILES, WeightsError, describe_faults, find_weight_faults
from training.spec import TrainingSpec


class BaseWeights:
    """The weights of a base model; each is read when a layer needs it.

    `model` is the whole model on the device `meta`, without values.
    """

    def __init__(self, spec: TrainingSpec) -> None:
        """Open the files; raises `WeightsError` unless they match the architecture."""
        self._folder = _find_folder(spec.base_model)
        self._dtype = DTYPES[spec.precision]
        tensors = make_meta_tensors(read_weight_headers(self._folder))
        self._files = _find_files(self._folder, list(tensors))
        self.model: Any
        self.model, report = load_on_meta(load_config(spec.base_model), tensors)
        if faults := find_weight_faults(report):
            raise WeightsError(describe_faults(spec, faults))

    def read(self, name: str) -> torch.Tensor:
        """Read a weight by its name in the model, in the precision of training."""
        prefix = f"{self.model.base_model_prefix}."
        known_as = name if name in self._files else name.removeprefix(prefix)
        with safe_open(self._folder / self._files[known_as], framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(known_as)
        return tensor.to(self._dtype)


def _find_folder(base_model: str) -> Path:
    from huggingface_hub import snapshot_download

    folder = Path(base_model)
    if folder.is_dir():
        return folder
    return Path(snapshot_download(base_model, allow_patterns=WEIGHT_FILES))


def _find_files(folder: Path, names: list[str]) -> dict[str, str]:
    """Return the file of each tensor."""
    if (folder / WEIGHTS_NAME).is_file():
        return dict.fromkeys(names, WEIGHTS_NAME)
    files: dict[str, str] = durable.read_json(folder / INDEX_NAME)["weight_map"]
    return files
