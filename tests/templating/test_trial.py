import json
from pathlib import Path

import pytest

from templating.trial import try_chat_template
from tests.templating.test_renderer import ENDLESS, LIMITS


def write(directory: Path, template: object) -> Path:
    config = {"chat_template": template, "bos_token": {"content": "<s>"}, "eos_token": None}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (ENDLESS, "the chat template was stopped: it took more than 0.3 s"),
        ("{{ 'a' * 2000000000 }}", "the chat template was stopped: it needed more than 64 MiB"),
        ("{% if %}", "the chat template cannot be used: Expected an expression"),
        (
            [{"name": "default", "template": "x"}, {"name": "tool_use", "template": ENDLESS}],
            "the chat template was stopped: it took",
        ),
        ("x" * 1_000_001, "a chat template has 1,000,001 characters, expected at most 1,000,000"),
    ],
)
def test_unusable_template_is_rejected_with_reason(
    template: object, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"^{reason}"):
        try_chat_template(write(tmp_path, template), LIMITS)
    own = tmp_path / "own"
    own.mkdir()
    if isinstance(template, str):
        (own / "chat_template.jinja").write_text(template)
        with pytest.raises(ValueError, match=f"^{reason}"):
            try_chat_template(own, LIMITS)


@pytest.mark.parametrize(
    "template",
    ["{{ bos_token + messages[0].content }}", "{{ raise_exception('tools only') }}", None],
)
def test_usable_templates_are_accepted(template: str | None, tmp_path: Path) -> None:
    try_chat_template(write(tmp_path, template), LIMITS)


def test_invalid_tokenizer_config_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(ValueError, match="^tokenizer_config.json holds a list"):
        try_chat_template(tmp_path)


def test_number_of_templates_is_limited(tmp_path: Path) -> None:
    folder = tmp_path / "additional_chat_templates"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(ValueError, match="^the model has 20 chat templates, expected at most 16$"):
        try_chat_template(tmp_path)


def test_too_large_special_tokens_map_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "special_tokens_map.json").write_text('{"a": [' + "[]," * 1_000_000 + "[]]}")
    with pytest.raises(
        ValueError,
        match="^special_tokens_map.json has 3,000,011 bytes; expected at most 1,048,576 in such "
        "a file$",
    ):
        try_chat_template(tmp_path)
