"""A validated request with its encoded prompts, and the generation of its answers."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace

from serving.engine.encoding_threads import run_encoding
from serving.engine.engine import Engine
from serving.engine.prompt_encoder import PromptEncoder
from serving.engine.sampling import Sampling
from serving.errors import DeadlineExceededError, InvalidRequestError
from serving.openai.chat import ChatCompletionRequest
from serving.openai.completion import CompletionRequest
from serving.store.stored_model import StoredModel
from serving.wire import Piece, TokenLogprob, ValidRequest

Pieces = AsyncGenerator[Piece, None]
"""The pieces of one answer."""


@dataclass(frozen=True)
class EncodedPrompt:
    """The tokens of a prompt, and its text where `echo` may return it."""

    token_ids: Sequence[int]
    text: str | None = None


@dataclass(frozen=True)
class RequestExecution:
    """A validated request and its engine; `deadline` is a time of the event loop in seconds."""

    request: ValidRequest
    model: StoredModel
    engine: Engine
    deadline: float
    prompts: Sequence[EncodedPrompt]
    sampling: Sampling

    @classmethod
    async def prepare(
        cls, request: ValidRequest, model: StoredModel, engine: Engine, deadline: float
    ) -> "RequestExecution":
        """Encode the prompts.

        Raises `InvalidRequestError` for prompts that the model does not accept, `OverloadedError`
        if the engine has no capacity left, `DeadlineExceededError`, and `EngineDeadError` if a
        conversation cannot be rendered.
        """
        is_chat = isinstance(request, ChatCompletionRequest)
        with _set_param("messages" if is_chat else "prompt"):
            for num_characters in _count_characters(request):
                engine.prompts.check_length(num_characters)
            engine.requests.check_capacity(_count_answers(request))
            try:
                async with asyncio.timeout_at(deadline):
                    prompts = await _encode(request, engine.prompts)
            except TimeoutError:
                raise DeadlineExceededError(
                    f"the prompt for model {model.id!r} was not encoded within the time of a "
                    "request; try again later"
                ) from None
            num_free = 0 if request.max_new_tokens == 0 else 1
            for prompt in prompts:
                engine.prompts.check_tokens(prompt.token_ids, num_free=num_free)
        # Other requests may have arrived meanwhile.
        engine.requests.check_capacity(_count_answers(request))
        sampling = engine.fill_sampling(
            max_new_tokens=request.max_new_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            stop=request.stop,
            seed=request.seed,
            num_top_logprobs=request.num_top_logprobs,
        )
        return cls(request, model, engine, deadline, prompts, sampling)

    @property
    def num_prompt_tokens(self) -> int:
        """Total number of tokens of all prompts."""
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    @property
    def num_answers(self) -> int:
        """Number of answers to all prompts."""
        return _count_answers(self.request)

    def start(self, *, in_pieces: bool) -> list[Pieces]:
        """Start `n` answers to each prompt, in the order of the prompts."""
        timeout_s = self._find_timeout_s()
        num_choices = self.request.n
        return [
            self.engine.generate(
                prompt.token_ids,
                self._find_sampling(number),
                choice_index=position * num_choices + number,
                timeout_s=timeout_s,
                in_pieces=in_pieces,
            )
            for position, prompt in enumerate(self.prompts)
            for number in range(num_choices)
        ]

    async def answer(self) -> list[Piece]:
        """Return all answers, each as one piece, after its prompt if the request has `echo`."""
        request = self.request
        if request.max_new_tokens == 0:
            answers = [Piece(index, "", "length") for index in range(self.num_answers)]
        else:
            answers = await gather_answers(self.start(in_pieces=False))
        if not isinstance(request, CompletionRequest) or not request.echo:
            return answers
        echoes = [await self._echo(prompt) for prompt in self.prompts]
        echoed = []
        for answer in answers:
            text, tokens = echoes[answer.choice_index // request.n]
            echoed.append(answer._replace(text=text + answer.text, tokens=tokens + answer.tokens))
        return echoed

    async def _echo(self, prompt: EncodedPrompt) -> tuple[str, tuple[TokenLogprob, ...]]:
        """Return the text of a prompt, and its tokens if the request asks for them."""
        text = self.engine.prompts.decode(prompt.token_ids) if prompt.text is None else prompt.text
        if self.sampling.num_top_logprobs is None:
            return text, ()
        tokens = await self.engine.score(
            prompt.token_ids, self.sampling.num_top_logprobs, timeout_s=self._find_timeout_s()
        )
        return text, tuple(tokens)

    def _find_sampling(self, number: int) -> Sampling:
        """Return sampling settings with a different seed for each answer to one prompt."""
        if self.sampling.seed is None:
            return self.sampling
        return replace(self.sampling, seed=self.sampling.seed + number)

    def _find_timeout_s(self) -> float:
        return max(0.0, self.deadline - asyncio.get_running_loop().time())


async def merge_answers(answers: Sequence[Pieces]) -> AsyncGenerator[tuple[Piece, ...], None]:
    """Yield the pieces of several answers as they arrive; those available at once form one batch.

    Closing the iterator, or an error of one answer, closes all answers.
    """
    arrived: asyncio.Queue[Piece | BaseException | None] = asyncio.Queue()
    tasks = [asyncio.create_task(_forward(one, arrived)) for one in answers]
    num_running = len(tasks)
    try:
        while num_running:
            batch: list[Piece] = []
            items = [await arrived.get()]
            while not arrived.empty():
                items.append(arrived.get_nowait())
            for item in items:
                if isinstance(item, BaseException):
                    raise item
                if item is None:
                    num_running -= 1
                else:
                    batch.append(item)
            if batch:
                yield tuple(batch)
    finally:
        await _cancel_all(tasks)


async def gather_answers(answers: Sequence[Pieces]) -> list[Piece]:
    """Return all answers, each as one piece; an error of one, or cancellation, closes all."""
    tasks = [asyncio.create_task(_join(one)) for one in answers]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _cancel_all(tasks)


async def _forward(pieces: Pieces, arrived: "asyncio.Queue[Piece | BaseException | None]") -> None:
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                arrived.put_nowait(piece)
        arrived.put_nowait(None)
    except Exception as exc:  # noqa: BLE001 - raised again where the pieces are taken
        arrived.put_nowait(exc)


async def _join(pieces: Pieces) -> Piece:
    async with aclosing(pieces):
        parts = [piece async for piece in pieces]
    tokens = tuple(token for piece in parts for token in piece.tokens)
    return parts[-1]._replace(text="".join(piece.text for piece in parts), tokens=tokens)


async def _cancel_all(tasks: "Sequence[asyncio.Task[object]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _count_characters(request: ValidRequest) -> list[int]:
    """Return the number of characters of each prompt that is text."""
    if isinstance(request, ChatCompletionRequest):
        return [sum(len(message.content) for message in request.messages)]
    return [len(prompt) for prompt in request.prompt if isinstance(prompt, str)]


def _count_answers(request: ValidRequest) -> int:
    num_prompts = 1 if isinstance(request, ChatCompletionRequest) else len(request.prompt)
    return num_prompts * request.n


async def _encode(request: ValidRequest, encoder: PromptEncoder) -> list[EncodedPrompt]:
    if isinstance(request, ChatCompletionRequest):
        messages = request.to_template_messages()
        ids = await encoder.encode_chat(
            messages, request.chat_template_kwargs, continues=request.continue_final_message
        )
        return [EncodedPrompt(ids)]
    num_characters = sum(len(prompt) for prompt in request.prompt if isinstance(prompt, str))
    return await run_encoding(num_characters, _encode_prompts, request, encoder)


def _encode_prompts(request: CompletionRequest, encoder: PromptEncoder) -> list[EncodedPrompt]:
    return [
        EncodedPrompt(encoder.encode_text(prompt), prompt)
        if isinstance(prompt, str)
        else EncodedPrompt(prompt)
        for prompt in request.prompt
    ]


@contextmanager
def _set_param(param: str) -> Iterator[None]:
    """Set `param` on every `InvalidRequestError` that does not name a field."""
    try:
        yield
    except InvalidRequestError as exc:
        exc.param = exc.param or param
        raise
