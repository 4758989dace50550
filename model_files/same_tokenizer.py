"""Whether two directories have the same tokenizer, whichever versions have written their files."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from model_files.tokenizer_settings import TOKENIZER_NAME, name_token, read_tokenizer_settings

_ENCODING = ("add_bos_token", "add_eos_token", "add_prefix_space", "clean_up_tokenization_spaces")


def find_tokenizer_difference(first: Path, second: Path) -> str | None:
    """Return which part of two tokenizers differs: 'tokenizer' or 'chat template'; None if none.

    Raises `OSError` for a file that cannot be read, `ValueError` for an invalid one.
    """
    if not _encode_equally(first / TOKENIZER_NAME, second / TOKENIZER_NAME):
        return "tokenizer"
    settings = [read_tokenizer_settings(directory) for directory in (first, second)]
    if _select(settings[0]) != _select(settings[1]):
        return "tokenizer"
    templates = [one.get("chat_template") for one in settings]
    return None if templates[0] == templates[1] else "chat template"


def _encode_equally(first: Path, second: Path) -> bool:
    stats = [path.stat() for path in (first, second)]
    versions = tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in stats)
    return _compare(first, second, versions)


@lru_cache(maxsize=256)  # large files take a second
def _compare(
    first: Path,
    second: Path,
    versions: tuple[tuple[int, int, int], ...],  # noqa: ARG001 - a key
) -> bool:
    contents = [path.read_bytes() for path in (first, second)]
    return contents[0] == contents[1] or _normalise(contents[0]) == _normalise(contents[1])


def _normalise(content: bytes) -> str:
    """Return a tokenizer.json in the form of the installed version, without padding and cutting."""
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as exc:  # the library raises this class itself
        raise ValueError(f"{TOKENIZER_NAME} cannot be read: {exc}") from exc
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return str(tokenizer.to_str())


def _select(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the special tokens and the settings that change how text is encoded."""
    selected: dict[str, Any] = {key: settings.get(key) for key in _ENCODING}
    for key, value in settings.items():
        if key.endswith("_token") and isinstance(value, str | dict):
            selected[key] = name_token(value)
    return selected
