"""Encoding of prompts for one model, and the checks that they fit its context."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from model_files.tokenizer_faults import TokenizerFaultError, translate_faults
from serving.engine.chat_encoder import ChatEncoder
from serving.engine.messages import ModelFacts
from serving.errors import InvalidRequestError
from templating.renderer import TemplateValue

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MAX_CHARACTERS_PER_TOKEN = 128


class PromptEncoder:
    """Encodes conversations and texts with a model's tokenizer, and decodes them again."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", chats: ChatEncoder, facts: ModelFacts
    ) -> None:
        self._tokenizer = tokenizer
        self._chats = chats
        self._facts = facts

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, str]],
        template_arguments: Mapping[str, TemplateValue] | None = None,
        *,
        continues: bool = False,
    ) -> list[int]:
        """Encode a conversation with the model's chat template, including the generation prompt.

        With `continues`, the last message is the beginning of the answer. Raises the errors of
        `ChatEncoder.encode`.
        """
        return await self._chats.encode(messages, template_arguments, continues=continues)

    def encode_text(self, text: str) -> list[int]:
        """Encode a text with the tokenizer's defaults, including special tokens.

        Raises `InvalidRequestError` if the tokenizer fails on the text.
        """
        try:
            with translate_faults():
                ids: list[int] = self._tokenizer(text)["input_ids"]
        except TokenizerFaultError as exc:
            raise InvalidRequestError(
                f"the text cannot be encoded for this model: {exc}; change the text, or use "
                "another model",
                code="tokenizer_failed",
            ) from exc
        if not ids and self._tokenizer.bos_token_id is not None:  # an empty prompt
            return [self._tokenizer.bos_token_id]
        return ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode tokens to text without special tokens."""
        text = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    def check_length(self, num_characters: int) -> None:
        """Raise `InvalidRequestError` for a text that is too long to be worth encoding.

        Encoding takes about 1 kB of memory per character, and no vocabulary in use has an average
        of `_MAX_CHARACTERS_PER_TOKEN` characters per token.
        """
        context_length = self._facts.context_length
        limit = context_length * _MAX_CHARACTERS_PER_TOKEN
        if num_characters > limit:
            raise InvalidRequestError(
                f"the prompt has {num_characters} characters, but the model's context of "
                f"{context_length} tokens holds at most {limit}; shorten it",
                code="context_length_exceeded",
            )

    def check_tokens(self, token_ids: Sequence[int], *, num_free: int = 1) -> None:
        """Raise `InvalidRequestError` for a prompt that the model does not accept.

        It must not be empty, leave at least `num_free` tokens of the context, and have no token id
        outside the vocabulary.
        """
        if len(token_ids) + num_free > self._facts.context_length:
            free = f", of which at least {num_free} is for the answer" if num_free else ""
            raise InvalidRequestError(
                f"the prompt has {len(token_ids)} tokens, but the model's context holds "
                f"{self._facts.context_length}{free}; shorten it",
                code="context_length_exceeded",
            )
        if not token_ids:
            raise InvalidRequestError("the prompt has no tokens; expected at least one")
        if max(token_ids) >= self._facts.vocab_size:
            raise InvalidRequestError(
                f"the prompt has the token id {max(token_ids)}, but the model's vocabulary has "
                f"{self._facts.vocab_size} tokens"
            )
