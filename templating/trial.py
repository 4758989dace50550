"""Tries the chat template of a model directory before the model is imported."""

import json
from pathlib import Path
from typing import Any

from templating.errors import RenderProcessError, TemplateBrokenError, TemplateLimitError
from templating.renderer import BatchRenderer, ChatTemplates, RenderJob, RenderLimits

_CHATS: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "Hello"}],
    [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Bye"},
    ],
)
_MAX_FILE_BYTES = 16 << 20
_MAX_BYTES = {"special_tokens_map.json": 1 << 20}  # a dozen names
_MAX_TEMPLATES = 16
_MAX_TEMPLATE_CHARACTERS = 1_000_000


def try_chat_template(directory: Path, limits: RenderLimits | None = None) -> None:
    """Render short conversations with every chat template of a model directory, within limits.

    A model without a template passes, and so does a template that refuses these conversations: it
    may take others. Neither torch nor a tokenizer is loaded. Raises `ValueError` that names what
    is wrong with the model, `OSError` where nothing can be rendered at all.
    """
    templates = _read_templates(directory)
    if not templates.texts:
        return
    jobs = [
        RenderJob(
            messages=chat,
            tools=None,
            template=number,
            add_generation_prompt=True,
            with_blocks=False,
        )
        for number in range(len(templates.texts))
        for chat in _CHATS
    ]
    try:
        renderer = BatchRenderer(templates, limits or RenderLimits())
        try:
            renderer.send(jobs)
            for found in renderer.receive(len(jobs)):
                if isinstance(found, TemplateBrokenError):
                    raise ValueError(f"the chat template cannot be used: {found}")
        finally:
            renderer.close()
    except TemplateLimitError as exc:
        raise ValueError(
            f"the chat template was stopped: it {exc} for a conversation of a few words"
        ) from exc
    except RenderProcessError as exc:
        raise OSError(f"the chat template was not tried: {exc}") from exc


def _read_templates(directory: Path) -> ChatTemplates:
    """Read what transformers would take for the templates, and the names of special tokens."""
    config = _read_object(directory / "tokenizer_config.json")
    variables = {
        name: token
        for name, value in {**_read_object(directory / "special_tokens_map.json"), **config}.items()
        if name.endswith("_token") and isinstance(token := _name_token(value), str)
    }
    own = config.get("chat_template")
    if isinstance(own, list):  # of {"name", "template"}
        own = [named.get("template") for named in own if isinstance(named, dict)]
    texts = own if isinstance(own, list) else [own]
    files = [directory / "chat_template.jinja"]
    files += sorted((directory / "additional_chat_templates").glob("*.jinja"))
    files = [file for file in files if file.is_file()]
    texts += [_read_text(file) for file in files[:_MAX_TEMPLATES]]
    found = tuple(text for text in texts if isinstance(text, str) and text)
    if len(found) > _MAX_TEMPLATES or len(files) > _MAX_TEMPLATES:
        raise ValueError(
            f"the model has {max(len(found), len(files)):,} chat templates, expected at most "
            f"{_MAX_TEMPLATES}"
        )
    for text in found:
        if len(text) > _MAX_TEMPLATE_CHARACTERS:
            raise ValueError(
                f"a chat template has {len(text):,} characters, expected at most "
                f"{_MAX_TEMPLATE_CHARACTERS:,}"
            )
    return ChatTemplates(found, variables)


def _name_token(value: Any) -> Any:
    return value.get("content") if isinstance(value, dict) else value


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read_text(path))
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"{path.name} is not valid JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds a {type(value).__name__}, expected an object")
    return value


def _read_text(path: Path) -> str:
    size, limit = path.stat().st_size, _MAX_BYTES.get(path.name, _MAX_FILE_BYTES)
    if size > limit:
        raise ValueError(f"{path.name} has {size:,} bytes, expected at most {limit:,}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as exc:
        raise ValueError(f"{path.name} is not text in UTF-8: {exc}") from exc
