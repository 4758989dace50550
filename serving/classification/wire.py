"""What the API and a classifier send each other through a Serve handle; needs no torch."""

from typing import NamedTuple

from serving.classification.embedding_request import EmbeddingRequest
from serving.classification.request import ClassifyRequest
from serving.wire import AnswerOrigin, RequestKind


class ClassifyCall(NamedTuple):
    """A request for classifications; `id` is the id of its response in the log."""

    id: str
    content: ClassifyRequest
    logged_body: str | None = None
    """The client's body for the request log; None if texts are not logged."""

    @property
    def kind(self) -> RequestKind:
        """The kind of the request, for metrics and logs."""
        return "classification"


class EmbedCall(NamedTuple):
    """A request for embeddings; `id` is the id of its response in the log."""

    id: str
    content: EmbeddingRequest
    logged_body: str | None = None
    """The client's body for the request log; None if texts are not logged."""

    @property
    def kind(self) -> RequestKind:
        """The kind of the request, for metrics and logs."""
        return "embedding"


class LabelScore(NamedTuple):
    """A label, and its score from 0 to 1."""

    label: str
    score: float


class Classification(NamedTuple):
    """The labels of one input, highest score first; or the value, if the model predicts one."""

    labels: tuple[LabelScore, ...] = ()
    value: float | None = None


class ClassifyAnswer(NamedTuple):
    """The classifications of all inputs of a request, and the number of their tokens."""

    origin: AnswerOrigin
    results: tuple[Classification, ...]
    num_prompt_tokens: int


class EmbedAnswer(NamedTuple):
    """The vectors of all inputs of a request, each in fp32 as bytes, and the number of tokens.

    The bytes are little-endian, as `encoding_format: base64` of OpenAI's API has them.
    """

    origin: AnswerOrigin
    vectors: tuple[bytes, ...]
    num_prompt_tokens: int
