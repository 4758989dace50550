"""The headers of a model directory's safetensors files: tensor names, dtypes and shapes.

Needs no torch, and reads a few kilobytes per file, regardless of its size.
"""

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from model_files.json_files import read_object

WEIGHTS_NAME, INDEX_NAME = "model.safetensors", "model.safetensors.index.json"
ADAPTER_CONFIG_NAME, ADAPTER_WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"
ADAPTER_TENSOR = re.compile(
    r"base_model\.model\.(?P<module>.+)\."
    r"(?P<part>lora_A\.weight|lora_B\.weight|lora_magnitude_vector(?:\.weight)?)"
)
"""The name of a tensor in PEFT's file: A, B, or the lengths of DoRA, of one layer."""
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_OTHER_FORMATS = ("*.gguf", "*.h5", "*.msgpack", "*.onnx")
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
_BITS = re.compile(r"\d+")
_MAX_SHOWN = 5


class TensorHeader(NamedTuple):
    """The header entry of one tensor."""

    dtype: str
    """In the notation of safetensors, such as 'BF16'."""
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Size of the tensor's values in the file, in bytes."""
        return self.num_elements * self.item_bits // 8

    @property
    def item_bits(self) -> int:
        """Bits of one value in the file."""
        return 8 if self.dtype == "BOOL" else int(_BITS.findall(self.dtype)[0])


def read_weight_headers(directory: Path) -> dict[str, TensorHeader]:
    """Read the headers of the files that transformers would load, and check the file sizes.

    Raises `ValueError` that names the file, for weights in another format, a file that is missing,
    truncated or not a safetensors file, and an index that does not match its files.
    """
    if (directory / WEIGHTS_NAME).is_file():
        return read_file_header(directory / WEIGHTS_NAME)
    if not (directory / INDEX_NAME).is_file():
        raise ValueError(_explain_no_weights(directory))
    index = read_object(directory / INDEX_NAME, _MAX_HEADER_BYTES)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{INDEX_NAME} has no 'weight_map' with the file of each tensor")
    headers: dict[str, TensorHeader] = {}
    for file in sorted(set(map(str, weight_map.values()))):
        path = directory / file
        if not path.is_file():
            raise ValueError(f"{INDEX_NAME} names {file!r}, which is not there; copy it again")
        headers |= read_file_header(path)
    if absent := weight_map.keys() - headers.keys():
        raise ValueError(f"{INDEX_NAME} names tensors that no file has: {name_some(absent)}")
    return headers


def name_some(names: Iterable[str]) -> str:
    """Format the first few of many names, sorted, and the number of the remaining ones."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _MAX_SHOWN} more" if len(ordered) > _MAX_SHOWN else ""
    return ", ".join(map(repr, ordered[:_MAX_SHOWN])) + more


def read_file_header(path: Path) -> dict[str, TensorHeader]:
    """Read the header of one safetensors file; raises as `read_weight_headers` does."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size_bytes < _LENGTH_BYTES or length > min(_MAX_HEADER_BYTES, size_bytes):
            raise ValueError(
                f"{path.name} is no whole safetensors file: it has {size_bytes:,} bytes, too few "
                "for its header; copy or download it again"
            )
        content = file.read(length)
    try:
        described = json.loads(content)
        described.pop("__metadata__", None)
        headers = {name: _parse_tensor(tensor) for name, tensor in described.items()}
        end = max((int(tensor["data_offsets"][1]) for tensor in described.values()), default=0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as exc:
        raise ValueError(
            f"{path.name} is no safetensors file: its header cannot be read ({exc}); copy or "
            "download it again"
        ) from exc
    expected = _LENGTH_BYTES + length + end
    if size_bytes != expected:
        difference = f"{abs(expected - size_bytes):,} {'less' if size_bytes < expected else 'more'}"
        raise ValueError(
            f"{path.name} has {size_bytes:,} bytes, {difference} than its header describes; copy "
            "or download it again"
        )
    return headers


def _parse_tensor(tensor: Any) -> TensorHeader:
    header = TensorHeader(str(tensor["dtype"]), tuple(int(size) for size in tensor["shape"]))
    begin, end = tensor["data_offsets"]
    if min((*header.shape, begin), default=0) < 0 or end - begin != header.size_bytes:
        raise ValueError(f"{end - begin} bytes for {header.dtype} of shape {list(header.shape)}")
    return header


def _explain_no_weights(directory: Path) -> str:
    """Return a message with the files found instead of weights, and what to do."""
    expected = f"expected {WEIGHTS_NAME}, or {INDEX_NAME} and its files"
    if (directory / ADAPTER_CONFIG_NAME).is_file():
        return (
            f"{directory.name!r} is an adapter ({ADAPTER_CONFIG_NAME}) without the weights of its "
            f"model; {expected}: merge it into its model with PEFT's merge_and_unload and save that"
        )
    for patterns, advice in (
        (
            _PICKLED,
            "Such files may run code when they are loaded and are never opened: where you trust "
            "them, load the model with transformers and save it with save_pretrained",
        ),
        (_OTHER_FORMATS, "Convert it to a Hugging Face model, or use its original"),
    ):
        found = sorted(path.name for pattern in patterns for path in directory.glob(pattern))
        if found:
            return (
                f"{directory.name!r} has no safetensors weights, only {name_some(found)}; "
                f"{expected}. {advice}"
            )
    others = sorted(path.name for path in directory.glob("*.safetensors"))
    there = f"only {name_some(others)}" if others else "no weights at all"
    return f"{directory.name!r} has {there}; {expected}"
