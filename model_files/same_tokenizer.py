"""Whether two directories have the same tokenizer, whichever versions have written their files.

transformers 5 saves other settings than the published models have: it drops those that it ignores,
writes defaults, and lists added tokens in tokenizer.json only. What counts here is what
`model_files.loading` makes of them.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from model_files.tokenizer_checks import check_file_size
from model_files.tokenizer_faults import translate_faults
from model_files.tokenizer_settings import TOKENIZER_NAME, name_token, read_tokenizer_settings

_SWITCHES = ("add_prefix_space", "fix_mistral_regex", "split_special_tokens")  # off by default
_TOKEN_FIELDS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
_Version = tuple[int, int, int]
_AddedTokens = frozenset[tuple[object, ...]]


class _File(NamedTuple):
    """A version of a tokenizer.json, with the special tokens that the settings beside it list."""

    path: Path
    version: _Version
    special_tokens: tuple[str, ...]


def find_tokenizer_difference(first: Path, second: Path) -> str | None:
    """Return which part of two tokenizers differs: 'tokenizer' or 'chat template'; None if none.

    Padding is ignored, and settings that change neither tokens nor what protects control tokens in
    messages. Raises `OSError` for a file that cannot be read, `ValueError` for an invalid one.
    """
    settings = [read_tokenizer_settings(directory) for directory in (first, second)]
    if not _encode_equally(first, second, settings) or not _select_equally(first, second, settings):
        return "tokenizer"
    templates = [one.get("chat_template") for one in settings]
    return None if templates[0] == templates[1] else "chat template"


def _encode_equally(first: Path, second: Path, settings: list[dict[str, Any]]) -> bool:
    files = tuple(
        _File(directory / TOKENIZER_NAME, _find_version(directory / TOKENIZER_NAME), names)
        for directory, names in zip((first, second), map(_list_special, settings), strict=True)
    )
    return _compare(*files)


def _find_version(path: Path) -> _Version:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=256)  # large files take a second
def _compare(first: _File, second: _File) -> bool:
    for file in (first, second):
        check_file_size(file.path)
    contents = [file.path.read_bytes() for file in (first, second)]
    if contents[0] == contents[1] and first.special_tokens == second.special_tokens:
        return True
    return _normalise(contents[0], first.special_tokens) == _normalise(
        contents[1], second.special_tokens
    )


def _normalise(content: bytes, special_tokens: tuple[str, ...]) -> str:
    """Return a tokenizer.json in the form of the installed version, without padding and cutting.

    As when transformers loads it, special tokens become added tokens, and a missing post-processor
    one that adds nothing.
    """
    tokenizer = _read_tokenizer(content)
    with translate_faults():
        tokenizer.no_padding()
        tokenizer.no_truncation()
        if tokenizer.post_processor is None:
            tokenizer.post_processor = TemplateProcessing(single="$A:0", pair="$A:0 $B:1")
        added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        missing = [text for text in special_tokens if text not in added]
        tokenizer.add_special_tokens([AddedToken(text, special=True) for text in missing])
        return str(tokenizer.to_str())


def _read_tokenizer(content: bytes) -> Tokenizer:
    try:
        with translate_faults():
            return Tokenizer.from_buffer(content)
    except ValueError as exc:
        raise ValueError(f"{TOKENIZER_NAME} cannot be read: {exc}") from exc


def _select_equally(first: Path, second: Path, settings: list[dict[str, Any]]) -> bool:
    """Compare the settings of two directories whose tokenizer.json is the same."""
    selected = [_select(one) for one in settings]
    if selected[0] != selected[1]:
        for directory, own, found in zip((first, second), settings, selected, strict=True):
            _add_class_defaults(directory, own, found)
    texts = [_list_texts(found, own) for found, own in zip(selected, settings, strict=True)]
    if (selected[0], texts[0]) != (selected[1], texts[1]):
        return False
    added = [_list_configured(one) for one in settings]
    if added[0] == added[1]:
        return True
    file = first / TOKENIZER_NAME
    in_file = _list_added(file, _find_version(file))
    return added[0] - in_file == added[1] - in_file


def _select(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that change how text is encoded, and the named tokens except padding."""
    selected: dict[str, Any] = {key: bool(settings.get(key)) for key in _SWITCHES}
    selected["chat_control_tokens"] = sorted(settings.get("chat_control_tokens") or ())
    named = _list_named(settings)
    named.pop("pad_token", None)
    return selected | named


def _list_named(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of the tokens that have a name, by their names."""
    named = dict(settings.get("model_specific_special_tokens", {}))
    if isinstance(extra := settings.get("extra_special_tokens"), dict):
        named |= extra
    named |= {key: value for key, value in settings.items() if key.endswith("_token")}
    return {key: name_token(one) for key, one in named.items() if isinstance(one, str | dict)}


def _list_special(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the texts of all special tokens, without repetition."""
    extra = settings.get("extra_special_tokens")
    listed = map(name_token, extra) if isinstance(extra, list) else ()
    return tuple(dict.fromkeys([*_list_named(settings).values(), *listed]))


def _add_class_defaults(
    directory: Path, settings: Mapping[str, Any], selected: dict[str, Any]
) -> None:
    """Add the tokens that the tokenizer's class has by default, as the loaded tokenizer does."""
    from model_files.loading import find_class_defaults  # imports transformers

    tokenizer = _read_tokenizer((directory / TOKENIZER_NAME).read_bytes())
    selected |= find_class_defaults(directory, settings, selected, tokenizer)


def _list_texts(selected: Mapping[str, Any], settings: Mapping[str, Any]) -> set[str]:
    """Return the texts of all special tokens, whichever setting lists them."""
    extra = settings.get("extra_special_tokens")
    listed = {name_token(one) for one in extra} if isinstance(extra, list) else set()
    return listed | {value for key, value in selected.items() if key.endswith("_token")}


def _list_configured(settings: Mapping[str, Any]) -> _AddedTokens:
    """Return the added tokens of the settings with their ids and flags."""
    configured = settings.get("added_tokens_decoder", {})
    return _describe({int(number): AddedToken(**token) for number, token in configured.items()})


@lru_cache(maxsize=256)
def _list_added(path: Path, version: _Version) -> _AddedTokens:  # noqa: ARG001 - a key
    """Return the added tokens of a tokenizer.json with their ids and flags."""
    return _describe(_read_tokenizer(path.read_bytes()).get_added_tokens_decoder())


def _describe(tokens: Mapping[int, AddedToken]) -> _AddedTokens:
    return frozenset(
        (number, *(getattr(token, field) for field in _TOKEN_FIELDS))
        for number, token in tokens.items()
    )
