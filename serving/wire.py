"""Everything that the API and a generator send each other through a Serve handle.

The values are pickled for every request and every step, so they are tuples where possible.
Importing this module needs neither torch nor transformers.
"""

from typing import Literal, NamedTuple

from serving.openai.chat import ChatCompletionRequest
from serving.openai.completion import CompletionRequest
from serving.openai.protocol import FinishReason
from serving.store.stored_model import StoredModel

RequestKind = Literal["chat", "completion", "classification", "embedding"]
ValidRequest = ChatCompletionRequest | CompletionRequest
"""The body of a request, validated by the API; a generator does not validate it again."""


class TextRequest(NamedTuple):
    """A request for text; `id` is the id of its response."""

    id: str
    content: ValidRequest
    logged_body: str | None = None
    """The client's body for the request log; None if texts are not logged."""

    @property
    def kind(self) -> RequestKind:
        """The kind of the request, for metrics and logs."""
        return "chat" if isinstance(self.content, ChatCompletionRequest) else "completion"


class AnswerOrigin(NamedTuple):
    """The model that made an answer, and where it comes from; None where that is unknown."""

    model_id: str
    run_id: str | None
    checkpoint: str | None
    dataset_sha256: str | None
    system_fingerprint: str


class TokenText(NamedTuple):
    """One token as text and as UTF-8 bytes; the bytes are None for a part of a character."""

    text: str
    utf8: tuple[int, ...] | None


class TokenLogprob(NamedTuple):
    """A token of an answer or prompt with its log-probability and the top tokens at its position.

    Log-probabilities are natural logarithms; the first token of a prompt has none. `is_end` marks
    the token that ended an answer; its text is not part of the answer.
    """

    token: TokenText
    logprob: float | None
    top: tuple[tuple[TokenText, float], ...] = ()
    is_end: bool = False


class Piece(NamedTuple):
    """Some text of the answer with number `choice_index` of a request.

    The last piece of an answer also has the finish reason and the token counts.
    `num_completion_tokens` counts every generated token, including the one that ended the answer.
    `tokens` are the tokens whose text is complete with this piece, if the request asked for them.
    """

    choice_index: int
    text: str
    finish_reason: FinishReason | None = None
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    tokens: tuple[TokenLogprob, ...] = ()


StreamItem = tuple[tuple[Piece, ...], AnswerOrigin | None]
"""Pieces that were available at once; only the first item of a stream has the origin.

A plain tuple, because the class of a named one takes as long to pickle as a piece.
"""


class WholeAnswer(NamedTuple):
    """All answers to a request, one piece each, and the number of tokens of all prompts."""

    origin: AnswerOrigin
    choices: tuple[Piece, ...]
    num_prompt_tokens: int


class LoadedModelStatus(NamedTuple):
    """A model that a generator has in memory, and the aliases that it serves."""

    model_id: str
    aliases: tuple[str, ...]
    num_active: int
    context_length: int


def describe_origin(model: StoredModel) -> AnswerOrigin:
    """Describe the model that an answer comes from; None where its lineage lacks the value."""
    lineage = model.lineage
    step = lineage.checkpoint_step
    return AnswerOrigin(
        model_id=model.id,
        run_id=lineage.run_id,
        checkpoint=None if step is None else f"step-{step}",
        dataset_sha256=lineage.data.sha256 if lineage.data else None,
        system_fingerprint=model.fingerprint,
    )
