"""A trial of the chat templates of a model directory before the model is imported."""

from pathlib import Path

from model_files.tokenizer_settings import list_templates, name_token, read_tokenizer_settings
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


def try_chat_template(directory: Path, limits: RenderLimits | None = None) -> None:
    """Render short conversations with every chat template of a model directory, within limits.

    A model without a template passes, and so does a template that rejects these conversations, as
    it may accept others. Neither torch nor a tokenizer is loaded. Raises `ValueError` that names
    the fault of the model, and `OSError` if the render process does not work.
    """
    settings = read_tokenizer_settings(directory)
    variables = {
        name: name_token(value)
        for name, value in settings.items()
        if name.endswith("_token") and isinstance(value, str | dict)
    }
    templates = ChatTemplates(list_templates(settings), variables)
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
