"""Encoding of conversations to the prompt tokens of one model."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_files.tokenizer_faults import TokenizerFaultError
from serving.engine.encoding_threads import run_encoding
from serving.errors import EngineDeadError, EngineLostError, InvalidRequestError
from templating.errors import RenderProcessError, TemplateLimitError, TemplateRefusedError
from templating.reasoning import arrange_reasoning
from templating.renderer import (
    AsyncRenderer,
    ChatTemplates,
    RenderJob,
    RenderLimits,
    TemplateValue,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from templating.literal_text import ProtectedChat


class ChatEncoder:
    """Renders conversations with one model's chat template in a separate process.

    Use from one event loop only; only `start` blocks it.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", limits: RenderLimits) -> None:
        from templating.literal_text import LiteralText  # its library takes time to import

        self._tokenizer = tokenizer
        self._name = Path(tokenizer.name_or_path).name
        self._templates = ChatTemplates.of(tokenizer)
        self._literal_text = LiteralText(tokenizer)
        self._renderer = AsyncRenderer(self._templates, limits)

    def start(self) -> None:
        """Find the control tokens and start the process, if the model has a template.

        Raises `EngineLostError` if the process does not start, and `EngineDeadError` if the
        tokenizer fails.
        """
        if not self._templates.texts:
            return
        try:
            self._literal_text.prepare(self._templates.texts)
        except TokenizerFaultError as exc:
            raise EngineDeadError(f"model {self._name!r} cannot be loaded: {exc}") from exc
        try:
            self._renderer.start()
        except RenderProcessError as exc:
            raise EngineLostError(str(exc)) from exc

    def close(self) -> None:
        """End the process."""
        self._renderer.close()

    async def encode(
        self,
        messages: Sequence[Mapping[str, Any]],
        template_arguments: Mapping[str, TemplateValue] | None = None,
        *,
        continues: bool = False,
    ) -> list[int]:
        """Return the tokens of a conversation, including the generation prompt.

        With `continues`, the last message is the beginning of an answer: its text follows the
        generation prompt, as when the model generated it.

        Reasoning of earlier turns is put where the template reads it, as in training. Control
        tokens in the messages are encoded as plain text. Raises `InvalidRequestError` if the model
        has no template, the template rejects the messages or exceeds its limits, or the tokenizer
        fails on them; `EngineLostError` if the process ended for another reason. Cancelling this
        call ends the process if it is rendering these messages.
        """
        template = self._choose_template()
        try:
            chat = await asyncio.to_thread(self._protect, messages, template, continues=continues)
            job = RenderJob(
                messages=chat.messages[:-1] if continues else chat.messages,
                tools=None,
                template=self._templates.texts.index(template),
                add_generation_prompt=True,
                with_blocks=False,
                variables=template_arguments or {},
            )
            begun = chat.messages[-1]["content"] if continues else ""
            text = (await self._renderer.render(job)).text + begun
            _check_text(text)
            (encoded,) = await run_encoding(
                len(text), self._literal_text.encode, [text], [chat.literals], template
            )
        except TemplateRefusedError as exc:
            raise InvalidRequestError(
                f"the chat template of model {self._name!r} refuses these messages: {exc}",
                param="messages",
            ) from None
        except TemplateLimitError as exc:
            raise InvalidRequestError(
                f"the chat template of model {self._name!r} was stopped: it {exc}; shorten the "
                "messages, or use another model",
                param="messages",
                code="chat_template_limit",
            ) from None
        except TokenizerFaultError as exc:
            raise InvalidRequestError(
                f"the messages cannot be encoded for model {self._name!r}: {exc}; change the "
                "messages, or use another model",
                param="messages",
                code="tokenizer_failed",
            ) from exc
        except RenderProcessError as exc:
            raise EngineLostError(
                f"the messages for model {self._name!r} were not rendered: {exc}; try again"
            ) from exc
        return encoded.ids

    def _protect(
        self, messages: Sequence[Mapping[str, Any]], template: str, *, continues: bool
    ) -> "ProtectedChat":
        arranged = [arrange_reasoning(message, template) for message in messages]
        if continues:
            arranged[-1] = dict(messages[-1])
        return self._literal_text.protect_chat(arranged, None, template)

    def _choose_template(self) -> str:
        if not self._templates.texts:
            raise InvalidRequestError(
                "this model has no chat template, so it cannot take messages", param="model"
            )
        try:
            return str(self._tokenizer.get_chat_template())
        except ValueError:
            raise InvalidRequestError(
                f"model {self._name!r} has several chat templates and none is called 'default', so "
                "it cannot take messages",
                param="model",
            ) from None


def _check_text(text: str) -> None:
    """Raise `TemplateRefusedError` for a rendered text that is not valid Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise TemplateRefusedError("it writes half of a surrogate pair") from exc
