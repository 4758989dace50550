"""A validated request with its encoded prompts, and the generation of its answers."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from serving.engine.answer import Piece
from serving.engine.choices import Pieces, gather
from serving.engine.encoding_threads import run_encoding
from serving.engine.engine import Engine
from serving.engine.sampling import Sampling
from serving.errors import DeadlineExceededError, InvalidRequestError
from serving.openai.chat import ChatCompletionRequest
from serving.openai.completion import CompletionRequest
from serving.store.model_store import StoredModel


@dataclass(frozen=True)
class EncodedPrompt:
    """The tokens of a prompt, and its text where `echo` may return it."""

    token_ids: Sequence[int]
    text: str | None = None


@dataclass(frozen=True)
class Asked:
    """A validated request and its engine; `deadline` is a time of the event loop in seconds."""

    request: ChatCompletionRequest | CompletionRequest
    model: StoredModel
    engine: Engine
    deadline: float
    prompts: Sequence[EncodedPrompt]
    sampling: Sampling

    @classmethod
    async def prepare(
        cls,
        request: ChatCompletionRequest | CompletionRequest,
        model: StoredModel,
        engine: Engine,
        deadline: float,
    ) -> "Asked":
        """Encode the prompts.

        Raises `InvalidRequestError` for prompts that the model does not accept, `OverloadedError`
        if the engine has no capacity left, `DeadlineExceededError`, and `EngineDeadError` if a
        conversation cannot be rendered.
        """
        is_chat = isinstance(request, ChatCompletionRequest)
        with _blaming("messages" if is_chat else "prompt"):
            for num_characters in _count_characters(request):
                engine.check_length(num_characters)
            engine.check_room(_count_answers(request))
            try:
                async with asyncio.timeout_at(deadline):
                    prompts = await _encode(request, engine)
            except TimeoutError:
                raise DeadlineExceededError(
                    f"the prompt for model {model.id!r} was not encoded within the time of a "
                    "request; try again later"
                ) from None
            num_free = 0 if request.max_new_tokens == 0 else 1
            for prompt in prompts:
                engine.check_prompt(prompt.token_ids, num_free=num_free)
        engine.check_room(_count_answers(request))  # other requests may have arrived meanwhile
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

    def start(self, *, in_pieces: bool) -> list[Pieces]:
        """Start `n` answers to each prompt, in the order of the prompts."""
        timeout_s = self._find_timeout_s()
        return [
            self.engine.generate(
                prompt.token_ids, self._vary(number), timeout_s=timeout_s, in_pieces=in_pieces
            )
            for prompt in self.prompts
            for number in range(self.request.n)
        ]

    async def answer(self) -> list[Piece]:
        """Return all answers, each as one piece, after its prompt if the request has `echo`."""
        request = self.request
        if request.max_new_tokens == 0:
            num_answers = len(self.prompts) * request.n
            answers = [Piece("", "length") for _ in range(num_answers)]
        else:
            answers = await gather(self.start(in_pieces=False))
        if not isinstance(request, CompletionRequest) or not request.echo:
            return answers
        echoes = [await self._echo(prompt) for prompt in self.prompts]
        return [
            replace(
                answer,
                text=echoes[index // request.n].text + answer.text,
                tokens=echoes[index // request.n].tokens + answer.tokens,
            )
            for index, answer in enumerate(answers)
        ]

    async def _echo(self, prompt: EncodedPrompt) -> Piece:
        text = self.engine.decode(prompt.token_ids) if prompt.text is None else prompt.text
        if self.sampling.num_top_logprobs is None:
            return Piece(text)
        tokens = await self.engine.score(
            prompt.token_ids, self.sampling.num_top_logprobs, timeout_s=self._find_timeout_s()
        )
        return Piece(text, tokens=tuple(tokens))

    def _vary(self, number: int) -> Sampling:
        """Return sampling settings with a different seed for each answer to one prompt."""
        if self.sampling.seed is None:
            return self.sampling
        return replace(self.sampling, seed=self.sampling.seed + number)

    def _find_timeout_s(self) -> float:
        return max(0.0, self.deadline - asyncio.get_running_loop().time())


def _count_characters(request: ChatCompletionRequest | CompletionRequest) -> list[int]:
    """Return the number of characters of each prompt that is text."""
    if isinstance(request, ChatCompletionRequest):
        return [sum(len(message.content) for message in request.messages)]
    return [len(prompt) for prompt in request.prompt if isinstance(prompt, str)]


def _count_answers(request: ChatCompletionRequest | CompletionRequest) -> int:
    num_prompts = 1 if isinstance(request, ChatCompletionRequest) else len(request.prompt)
    return num_prompts * request.n


async def _encode(
    request: ChatCompletionRequest | CompletionRequest, engine: Engine
) -> list[EncodedPrompt]:
    if isinstance(request, ChatCompletionRequest):
        return [
            EncodedPrompt(
                await engine.encode_chat(
                    request.to_template_messages(), request.chat_template_kwargs
                )
            )
        ]
    num_characters = sum(len(prompt) for prompt in request.prompt if isinstance(prompt, str))
    return await run_encoding(num_characters, _encode_prompts, request, engine)


def _encode_prompts(request: CompletionRequest, engine: Engine) -> list[EncodedPrompt]:
    return [
        EncodedPrompt(engine.encode_text(prompt), prompt)
        if isinstance(prompt, str)
        else EncodedPrompt(prompt)
        for prompt in request.prompt
    ]


@contextmanager
def _blaming(param: str) -> Iterator[None]:
    """Set `param` on every `InvalidRequestError` that does not name a field."""
    try:
        yield
    except InvalidRequestError as exc:
        exc.param = exc.param or param
        raise
