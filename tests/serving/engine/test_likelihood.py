"""Reported token probabilities, compared with a plain forward pass."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config

from serving.engine import prompt_logprobs
from serving.engine.continuous_batching import UNLIKELY, find_likelihoods
from serving.engine.detokenize import AnswerReader, TokenDecoder
from serving.engine.engine import Engine
from serving.engine.logits_processors import make_gumbel_noise
from serving.engine.messages import Likelihood
from serving.engine.sampling import Sampling
from serving.errors import DeadlineExceededError, InvalidRequestError
from serving.loading.loading import load_model
from serving.wire import Piece, TokenLogprob
from tests.serving.conftest import Load


async def collect(
    engine: Engine, ids: Sequence[int], sampling: Sampling, *, in_pieces: bool = True
) -> list[Piece]:
    return [piece async for piece in engine.generate(ids, sampling, in_pieces=in_pieces)]


def find_logprobs(path: Path, ids: Sequence[int]) -> torch.Tensor:
    """Return the log-probabilities of a plain forward pass at every position, `[T, V]`."""
    model, _ = load_model(path)
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([list(ids)])).logits[0].float(), dim=-1)


def list_tokens(pieces: Sequence[Piece]) -> list[TokenLogprob]:
    return [found for piece in pieces for found in piece.tokens]


@pytest.mark.parametrize("in_pieces", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_token_logprobs_match_forward_pass(
    load_engine: Load, tiny_model: Path, in_pieces: bool, temperature: float
) -> None:
    """Log-probabilities are those of the model's own distribution, at any temperature."""
    engine = load_engine()
    prompts = [engine.prompts.encode_text(f"number {number} of the fox") for number in range(5)]
    sampling = Sampling(12, temperature=temperature, num_top_logprobs=3)

    async def answer_all() -> list[list[Piece]]:
        quiet = collect(engine, prompts[0], Sampling(12))  # in the batch, without log-probabilities
        answers = [collect(engine, ids, sampling, in_pieces=in_pieces) for ids in prompts]
        return (await asyncio.gather(quiet, *answers))[1:]

    _, tokenizer = load_model(tiny_model)
    for ids, pieces in zip(prompts, asyncio.run(answer_all()), strict=True):
        found = list_tokens(pieces)
        text = "".join(piece.text for piece in pieces)
        assert len(found) == pieces[-1].num_completion_tokens, (
            "the end token has no log-probability"
        )
        found = [one for one in found if not one.is_end]
        # Recover the ids: of the tokens with this text, the one with the closest log-probability.
        so_far = list(ids)
        for one in found:
            expected = find_logprobs(tiny_model, so_far)[-1]
            written = [tokenizer.decode([token]) for token in range(len(expected))]
            fits = [token for token, spelt in enumerate(written) if spelt == one.token.text]
            best = min(fits, key=lambda token: abs(float(expected[token]) - (one.logprob or 0)))
            assert one.logprob == pytest.approx(float(expected[best]), abs=1e-4)
            values, places = expected.topk(3)
            assert [logprob for _, logprob in one.top] == pytest.approx(values.tolist(), abs=1e-4)
            assert [token.text for token, _ in one.top] == [written[place] for place in places]
            so_far.append(best)
        assert tokenizer.decode(so_far[len(ids) :], skip_special_tokens=True) == text


def test_scores_of_text_match_forward_pass(
    load_engine: Load, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load_engine()
    texts = [f"the {word} fox says {i} times what?" for i in range(10) for word in ("", "quick")]

    async def score_all() -> list[list[TokenLogprob]]:
        scored = []
        for limit in (1 << 26, 5 * 600):  # in one pass, and in passes of a few tokens
            monkeypatch.setattr(prompt_logprobs, "MAX_LOGITS", limit)
            encode = engine.prompts.encode_text
            busy = asyncio.create_task(collect(engine, encode("fox"), Sampling(100)))
            encoded = map(encode, texts)
            scored += await asyncio.gather(*(engine.score(ids, 1) for ids in encoded))
            await busy
        return scored

    for text, tokens in zip([*texts, *texts], asyncio.run(score_all()), strict=True):
        ids = engine.prompts.encode_text(text)
        expected = find_logprobs(tiny_model, ids)
        assert tokens[0].logprob is None
        found = [one.logprob for one in tokens[1:]]
        likely = [float(expected[at, token]) for at, token in enumerate(ids[1:])]
        assert found == pytest.approx(likely, abs=1e-4)
        tops = [one.top[0][1] for one in tokens[1:]]
        assert tops == pytest.approx(expected.max(dim=-1).values[:-1].tolist(), abs=1e-4)
        assert "".join(one.token.text for one in tokens) == text


def test_scoring_applies_context_token_and_time_limits(load_engine: Load) -> None:
    engine = load_engine()
    for wrong in ([], [1] * 129, [10**6]):
        with pytest.raises(InvalidRequestError):
            asyncio.run(engine.score(wrong, 0))

    async def score_all() -> None:
        assert (await engine.score([1], 0))[0].logprob is None
        assert len(await engine.score([1] * 128, 0)) == 128
        with pytest.raises(DeadlineExceededError):
            await engine.score([1] * 100, 0, timeout_s=0)

    asyncio.run(score_all())
    assert engine.num_active == 0
    assert engine.is_healthy()


def test_model_without_fused_attention_scores_texts(
    load_engine: Load, tiny_model: Path, tmp_path: Path
) -> None:
    """Gemma 2 soft-caps its attention scores, for which transformers uses no fused kernel."""
    model, tokenizer = load_model(tiny_model)
    config = Gemma2Config(
        vocab_size=model.config.vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=128,
        query_pre_attn_scalar=16,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    engine = load_engine(tmp_path)
    ids = engine.prompts.encode_text("the quick fox")

    async def score_and_generate() -> tuple[list[TokenLogprob], list[Piece]]:
        found = await engine.score(ids, 0)
        return found, await collect(engine, ids, Sampling(4))

    found, pieces = asyncio.run(score_and_generate())
    expected = find_logprobs(tmp_path, ids)
    likely = [float(expected[at, token]) for at, token in enumerate(ids[1:])]
    assert [one.logprob for one in found[1:]] == pytest.approx(likely, abs=1e-4)
    assert pieces[-1].finish_reason is not None, "the model generates no answer after scoring"


def test_tokens_of_stop_string_are_not_returned(tiny_model: Path) -> None:
    _, tokenizer = load_model(tiny_model)
    ids = tokenizer("the quick fox")["input_ids"]
    likelihoods = [Likelihood(-float(at), ()) for at in range(len(ids))]
    for stop in ("quick", "ick f", " fox"):
        reader = AnswerReader(0, 1, [], tokenizer, TokenDecoder(tokenizer), [stop])
        pieces = []
        for end in range(1, len(ids) + 1):
            if reader.is_finished:
                break
            piece = reader.read(ids[:end], likelihoods[:end], is_finished=end == len(ids))
            if piece is not None:
                pieces.append(piece)
                found = "".join(one.token.text for one in list_tokens(pieces))
                shown = "".join(piece.text for piece in pieces)
                assert shown.startswith(found), "a token was returned before its text"
        assert shown == "the quick fox".partition(stop)[0]
        assert len(shown) - len(found) < 6, "text was returned without its tokens"


def test_seeded_sampling_does_not_depend_on_batch(load_engine: Load) -> None:
    engine = load_engine()
    ids = engine.prompts.encode_text("fox")

    def seeded(seed: int) -> Sampling:
        return Sampling(20, temperature=1.5, seed=seed)

    async def alone() -> str:
        return join(await collect(engine, ids, seeded(7)))

    async def among_others() -> list[str]:
        others = [Sampling(20), Sampling(20, temperature=2.0), seeded(8), seeded(7), seeded(-1)]
        answers = await asyncio.gather(*(collect(engine, ids, one) for one in others))
        return [join(pieces) for pieces in answers]

    first = asyncio.run(alone())
    together = asyncio.run(among_others())
    assert together[3] == first
    assert len(set(together)) == 5


def join(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def test_seeded_gumbel_noise_samples_from_softmax() -> None:
    scores = torch.tensor([2.0, 1.0, 0.0, -1.0, -torch.inf])
    num_draws = 40_000
    keys = torch.arange(num_draws, dtype=torch.int32).unsqueeze(-1) * 53_231 & 0x7FFFFFFF
    drawn = (scores + make_gumbel_noise(keys, len(scores))).argmax(dim=-1)
    counts = Counter(drawn.tolist())
    for token, probability in enumerate(scores.softmax(dim=-1).tolist()):
        spread = (probability * (1 - probability) / num_draws) ** 0.5
        assert counts[token] / num_draws == pytest.approx(probability, abs=5 * spread + 1e-9)
    for step in (1, 2, 1 << 12):  # neighbouring keys draw independently
        pairs = Counter(zip(drawn[:-step].tolist(), drawn[step:].tolist(), strict=True))
        both = pairs[0, 0] / (num_draws - step)
        assert both == pytest.approx(float(scores.softmax(dim=-1)[0]) ** 2, abs=0.02)


def test_non_finite_logprobs_are_replaced_by_finite_minimum() -> None:
    inf, nan = float("inf"), float("nan")
    logits = torch.tensor([[0.0, -inf], [nan, nan]])
    impossible, broken = find_likelihoods(logits, torch.tensor([1, 0]), 2)
    assert impossible.logprob == broken.logprob == UNLIKELY
    assert impossible.top == ((0, 0.0), (1, UNLIKELY))
