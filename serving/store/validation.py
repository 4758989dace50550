"""Checks of a model directory before it is published: complete, and without executable content."""

from pathlib import Path

from safetensors import SafetensorError, safe_open

from model_files.json_files import read_object
from model_files.refused_keys import check_keys, check_weight_files
from model_files.tokenizer_settings import TOKENIZER_NAME
from model_files.weight_headers import ADAPTER_CONFIG_NAME
from serving.served_task import Companion, find_model_task, find_served_task
from serving.store.lineage import check_lineage

VERIFICATION_NAME = "verification.json"
_WEIGHTS_NAME = "model.safetensors"
_INDEX_NAME = "model.safetensors.index.json"
_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
_MAX_INDEX_BYTES = 64 << 20
_OLDER_TOKENIZER_NAMES = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def check_model_directory(
    directory: Path, *, links_stay_in: Path | None = None, converts_tokenizer: bool = False
) -> None:
    """Check that a directory is a complete model that runs no code and opens no other files.

    Links must be relative and stay inside `links_stay_in`, by default the directory itself. With
    `converts_tokenizer`, files of an older tokenizer are accepted instead of tokenizer.json. Raises
    `ValueError` that names the first fault found.
    """
    check_files(directory, links_stay_in=links_stay_in)
    if not (directory / "config.json").is_file():
        raise ValueError(
            f"{directory.name!r} is an adapter ({ADAPTER_CONFIG_NAME} without config.json); "
            "expected a complete model"
        )
    check_weight_files(directory)
    _check_weights(directory)
    _check_companion(directory, converts_tokenizer=converts_tokenizer)
    check_settings(directory)


def check_settings(directory: Path) -> None:
    """Check keys, lineage and verification of a model or an adapter; raise `ValueError`."""
    check_keys(directory)
    check_lineage(directory)
    if (directory / VERIFICATION_NAME).exists():
        report = read_object(directory / VERIFICATION_NAME)
        if report.get("passed") is not True:
            raise ValueError(
                f"{directory.name!r} failed its verification, as its {VERIFICATION_NAME} says; "
                "consolidate the checkpoint again"
            )


def find_companion(directory: Path) -> Companion:
    """Return the name of the file that the model of a directory needs beside its weights."""
    return find_served_task(find_model_task(read_object(directory / "config.json"))).companion


def _check_companion(directory: Path, *, converts_tokenizer: bool) -> None:
    name = find_companion(directory)
    if name != TOKENIZER_NAME:
        if not (directory / name).is_file():
            raise ValueError(
                f"{directory.name!r} has no image processor: expected {name}, as transformers' "
                "AutoImageProcessor and save_pretrained write it"
            )
        return
    names = (name, *(_OLDER_TOKENIZER_NAMES if converts_tokenizer else ()))
    if not any((directory / one).is_file() for one in names):
        raise ValueError(
            f"{directory.name!r} has no tokenizer: expected {' or '.join(names)}; convert one of "
            "another kind with transformers' AutoTokenizer and save_pretrained"
        )


def check_files(directory: Path, *, links_stay_in: Path | None = None) -> None:
    """Check the names and types of a directory's files without reading them; raise `ValueError`."""
    has_model = (directory / "config.json").is_file()
    if (directory / ADAPTER_CONFIG_NAME).exists():
        if has_model:  # transformers would load the adapter's base, whatever it names
            raise ValueError(
                f"{directory.name!r} has {ADAPTER_CONFIG_NAME} and config.json, so it is an "
                "adapter of PEFT in the folder of a complete model: add the model and the adapter "
                "from a folder each, or merge them (merge_and_unload) and save the result"
            )
    elif not has_model:
        raise ValueError(
            f"{directory.name!r} is neither the directory of a model nor of an adapter: it has no "
            f"config.json and no {ADAPTER_CONFIG_NAME}"
        )
    for path in sorted(directory.rglob("*")):
        _check_file(path, directory, links_stay_in or directory)


def _check_file(path: Path, directory: Path, root: Path) -> None:
    name = path.relative_to(directory)
    if path.suffix in (".json", ".safetensors") and not path.is_file():
        raise ValueError(f"{name} is a folder; expected a file")
    if path.suffix.lower() in _PICKLE_SUFFIXES:
        raise ValueError(
            f"{name} may hold pickled weights, which can run code when they are loaded; convert "
            "them to safetensors and remove the file"
        )
    if path.is_symlink() and (
        path.readlink().is_absolute() or not path.resolve().is_relative_to(root.resolve())
    ):
        raise ValueError(
            f"{name} is a link that leaves the directory; copy the file itself (cp -rL does)"
        )


def _check_weights(directory: Path) -> None:
    """Check that every weight file exists, is complete and has the tensors that the index lists."""
    if (directory / _INDEX_NAME).is_file():
        index = read_object(directory / _INDEX_NAME, _MAX_INDEX_BYTES)
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ValueError(f"{_INDEX_NAME} has no 'weight_map' of tensors to files")
    elif (directory / _WEIGHTS_NAME).is_file():
        weight_map = dict.fromkeys(_read_names(directory / _WEIGHTS_NAME), _WEIGHTS_NAME)
    else:
        raise ValueError(
            f"{directory.name!r} has no weights: expected {_WEIGHTS_NAME}, or {_INDEX_NAME} and "
            "the files that it names"
        )
    for file in sorted(set(map(str, weight_map.values()))):
        if Path(file).name != file or not (directory / file).is_file():
            raise ValueError(f"{_INDEX_NAME} names {file!r}, which is no file of the directory")
        held = _read_names(directory / file)
        if gone := {name for name, place in weight_map.items() if place == file} - held:
            raise ValueError(f"{file} lacks {min(gone)!r}, which {_INDEX_NAME} says it has")


def _read_names(file: Path) -> set[str]:
    try:
        with safe_open(file, framework="numpy") as weights:  # does not import torch
            return set(weights.keys())
    except SafetensorError as exc:
        raise ValueError(f"{file.name} is not a whole safetensors file: {exc}") from exc


def find_cache_repository(source: Path) -> Path | None:
    """Return the repository folder in the hub's cache if `source` is a snapshot of one, or None."""
    repository = source.parent.parent
    is_snapshot = source.parent.name == "snapshots" and (repository / "blobs").is_dir()
    return repository if is_snapshot else None
