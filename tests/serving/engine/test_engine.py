import asyncio
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from serving.engine.core import EngineCore, read_model
from serving.engine.engine import Engine
from serving.engine.messages import ReportHandler
from serving.engine.sampling import Sampling
from serving.errors import (
    DeadlineExceededError,
    EngineDeadError,
    InvalidRequestError,
    OverloadedError,
)
from serving.loading.loading import load_model, load_tokenizer
from serving.settings import EngineSettings
from serving.transformers_internals import FIFOScheduler
from serving.wire import Piece
from tests.serving.conftest import Load, wait_until
from tests.tiny_model import CONTEXT_LENGTH


@contextmanager
def run_with_scheduler(path: Path, **settings: int) -> Iterator[tuple[Engine, FIFOScheduler]]:
    """Run an engine in this process, and yield its scheduler too."""
    checked = EngineSettings.model_validate(settings)
    cores: list[EngineCore] = []

    def start_core(handle_report: ReportHandler) -> EngineCore:
        cores.append(EngineCore(read_model(path, checked), checked, handle_report))
        return cores[0]

    engine = Engine(load_tokenizer(path), checked, start_core)
    processor = cores[0].manager.batch_processor
    assert processor is not None
    yield engine, processor.scheduler
    engine.close()


_QUESTIONS = [f"{word} number {i}?" for i in range(4) for word in ("fox", "what 你好", "how many")]


def _encode(engine: Engine, text: str) -> list[int]:
    return asyncio.run(engine.prompts.encode_chat([{"role": "user", "content": text}]))


async def _collect(engine: Engine, ids: Sequence[int], sampling: Sampling) -> list[Piece]:
    return [piece async for piece in engine.generate(ids, sampling)]


def _join(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _answer(engine: Engine, text: str, **sampling: Any) -> tuple[str, Piece]:
    pieces = asyncio.run(_collect(engine, _encode(engine, text), Sampling(**sampling)))
    return _join(pieces), pieces[-1]


def test_concurrent_greedy_answers_equal_generate(load_engine: Load, tiny_model: Path) -> None:
    engine = load_engine(max_running_requests=5)
    model, tokenizer = load_model(tiny_model)
    prompts = [_encode(engine, question) for question in _QUESTIONS]

    async def answer_all() -> list[list[Piece]]:
        sampling = Sampling(max_new_tokens=30)
        return await asyncio.gather(*(_collect(engine, ids, sampling) for ids in prompts))

    for ids, pieces in zip(prompts, asyncio.run(answer_all()), strict=True):
        generated = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=30,
        )[0, len(ids) :]
        assert _join(pieces) == tokenizer.decode(generated, skip_special_tokens=True)
        assert pieces[-1].num_completion_tokens == len(generated)
        assert pieces[-1].num_prompt_tokens == len(ids)
        assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)


def test_answer_ends_at_any_of_several_end_tokens(
    load_engine: Load, tiny_model: Path, tmp_path: Path
) -> None:
    engine = load_engine()
    ids = _encode(engine, "fox")
    tokens = _generate_ids(tiny_model, ids, 12)
    ending = next(token for token in tokens[2:] if token not in tokens[:2])
    changed = Path(shutil.copytree(tiny_model, tmp_path / "two-ends"))
    content = json.loads((changed / "generation_config.json").read_text())
    content["eos_token_id"] = [content["eos_token_id"], ending]
    (changed / "generation_config.json").write_text(json.dumps(content))

    text, last = _answer(load_engine(changed), "fox", max_new_tokens=12)
    assert last.finish_reason == "stop"
    assert last.num_completion_tokens == tokens.index(ending) + 1
    assert _answer(engine, "fox", max_new_tokens=12)[0].startswith(text)


def _generate_ids(path: Path, ids: Sequence[int], num_tokens: int) -> list[int]:
    model, _ = load_model(path)
    prompt = torch.tensor([list(ids)])
    generated: list[int] = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=num_tokens
    )[0, len(ids) :].tolist()
    return generated


def test_stop_string_split_across_tokens_ends_answer(load_engine: Load) -> None:
    engine = load_engine()
    whole, last = _answer(engine, "fox", max_new_tokens=40)
    assert last.finish_reason == "length"
    for start in range(2, 30, 3):
        stop = whole[start : start + 4]
        text, last = _answer(engine, "fox", max_new_tokens=40, stop=(stop,))
        assert text == whole[: whole.index(stop)]
        assert last.finish_reason == "stop"
        assert last.num_completion_tokens < 40


def test_each_request_uses_its_own_sampling_settings(load_engine: Load) -> None:
    engine = load_engine()
    ids = _encode(engine, "fox")
    greedy = [
        Sampling(30),
        Sampling(30, temperature=1e-300),
        Sampling(30, temperature=2.0, top_k=1),
    ]
    free = [
        Sampling(30, temperature=1.5),
        Sampling(30, temperature=2.0, top_p=0.9, top_k=2**31 - 1),
    ]

    async def answer_all() -> list[str]:
        wanted = [*greedy, *free] * 2
        return [
            _join(pieces)
            for pieces in await asyncio.gather(*(_collect(engine, ids, one) for one in wanted))
        ]

    texts = asyncio.run(answer_all())
    assert len({texts[i] for i in (0, 1, 2, 5, 6, 7)}) == 1
    assert len({texts[i] for i in (0, 3, 4, 8, 9)}) == 5
    assert engine.is_healthy()


def test_top_k_and_top_p_restrict_sampling_to_likely_tokens(
    load_engine: Load, tiny_model: Path
) -> None:
    engine = load_engine()
    ids = _encode(engine, "fox")
    model, tokenizer = load_model(tiny_model)
    with torch.no_grad():
        scores = model(torch.tensor([ids])).logits[0, -1]
    likely = {tokenizer.decode([token]).rstrip("\ufffd") for token in scores.topk(2).indices}

    async def draw(**settings: Any) -> set[str]:
        sampling = Sampling(1, temperature=2.0, **settings)
        drawn = await asyncio.gather(*(_collect(engine, ids, sampling) for _ in range(40)))
        return {_join(pieces).rstrip("\ufffd") for pieces in drawn}

    assert asyncio.run(draw(top_k=2)) == likely
    assert len(asyncio.run(draw(top_p=1e-6))) == 1
    assert len(asyncio.run(draw())) > 2


def test_unset_sampling_settings_default_to_those_of_model(
    load_engine: Load, tiny_model: Path
) -> None:
    engine = load_engine()
    assert engine.fill_sampling().temperature == 0
    assert engine.fill_sampling(temperature=0.7, top_k=5) == Sampling(temperature=0.7, top_k=5)


def test_prompt_beyond_context_error_has_both_lengths(load_engine: Load) -> None:
    engine = load_engine()
    assert engine.context_length == CONTEXT_LENGTH
    with pytest.raises(
        InvalidRequestError, match=f"^the prompt has 200 tokens, .*holds {CONTEXT_LENGTH}, "
    ) as caught:
        asyncio.run(_collect(engine, [5] * 200, Sampling()))
    assert caught.value.code == "context_length_exceeded"


def test_completion_length_is_limited_by_context(load_engine: Load) -> None:
    engine = load_engine()
    pieces = asyncio.run(_collect(engine, [5] * (CONTEXT_LENGTH - 3), Sampling(1000)))
    assert pieces[-1].finish_reason == "length"
    assert pieces[-1].num_completion_tokens == 3


def test_context_length_is_limited_by_cache(load_engine: Load) -> None:
    engine = load_engine(page_size=16, num_cache_blocks=4)
    assert engine.context_length == 64
    pieces = asyncio.run(_collect(engine, [5] * 60, Sampling(1000)))
    assert pieces[-1].num_completion_tokens == 4


def test_closed_iterator_frees_its_slot(tiny_model: Path) -> None:
    async def scenario(engine: Engine, scheduler: FIFOScheduler) -> None:
        ids = await engine.prompts.encode_chat([{"role": "user", "content": "fox"}])
        for _ in range(3):
            async with aclosing(engine.generate(ids, Sampling(60))) as pieces:
                await anext(pieces)
                assert engine.num_active == 1
            assert engine.num_active == 0
        await wait_until(lambda: not scheduler.has_pending_requests())

    limits = {"max_running_requests": 1, "max_queued_requests": 0}
    with run_with_scheduler(tiny_model, **limits) as (engine, scheduler):
        asyncio.run(scenario(engine, scheduler))


def test_cancelling_last_request_in_full_cache_does_not_stall_others(
    tiny_model: Path,
) -> None:
    # When the cache is full, transformers preempts a request and admits no other until one has
    # finished. A cancelled request did not count as finished, so the engine stalled.
    async def scenario(engine: Engine, scheduler: FIFOScheduler) -> list[Piece]:
        staying = asyncio.create_task(_collect(engine, [50] * 50, Sampling(78)))
        await wait_until(lambda: bool(scheduler.active_requests))
        leaving = asyncio.create_task(_collect(engine, [60] * 50, Sampling(78)))
        # The older request is the first that needs another page, so it is preempted.
        await wait_until(lambda: scheduler.block_new_requests)
        leaving.cancel()
        async with asyncio.timeout(10):
            return await staying

    with run_with_scheduler(tiny_model, page_size=32, num_cache_blocks=4) as (engine, scheduler):
        pieces = asyncio.run(scenario(engine, scheduler))
    assert pieces[-1].num_completion_tokens == 78


def test_requests_beyond_capacity_are_refused(load_engine: Load) -> None:
    engine = load_engine(max_running_requests=2, max_queued_requests=1)
    ids = _encode(engine, "fox")

    async def scenario() -> list[Any]:
        return await asyncio.gather(
            *(_collect(engine, ids, Sampling(40)) for _ in range(5)), return_exceptions=True
        )

    results = asyncio.run(scenario())
    refused = [result for result in results if isinstance(result, OverloadedError)]
    assert len(refused) == 2
    assert 1 <= refused[0].retry_after_s <= 30
    assert len({_join(result) for result in results if isinstance(result, list)}) == 1
    assert engine.num_active == 0


def test_requests_are_cancelled_at_deadline(load_engine: Load) -> None:
    engine = load_engine(request_timeout_s=0.02, max_running_requests=1)

    ids = _encode(engine, "fox")

    async def scenario() -> list[Any]:
        return await asyncio.gather(
            *(_collect(engine, ids, Sampling(100)) for _ in range(8)), return_exceptions=True
        )

    results = asyncio.run(scenario())
    assert any(isinstance(result, DeadlineExceededError) for result in results)
    assert engine.num_active == 0
    assert engine.is_healthy()


def test_requests_to_dead_engine_raise(load_engine: Load) -> None:
    engine = load_engine()
    ids = _encode(engine, "fox")

    async def die_while_answering() -> None:
        async with aclosing(engine.generate(ids, Sampling(100))) as pieces:
            await anext(pieces)
            await asyncio.to_thread(engine.close)
            async for _ in pieces:
                pass

    with pytest.raises(EngineDeadError):
        asyncio.run(die_while_answering())
    assert not engine.is_healthy()
    with pytest.raises(EngineDeadError, match="^the model's engine has stopped$"):
        asyncio.run(_collect(engine, ids, Sampling()))


def test_chat_without_usable_template_is_refused(
    load_engine: Load, tiny_model: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    (model / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(
        InvalidRequestError,
        match="^the chat template of model 'model' refuses .*: roles must alternate$",
    ):
        _encode(load_engine(model), "fox")
    (model / "chat_template.jinja").unlink()
    with pytest.raises(InvalidRequestError, match="^this model has no chat template, "):
        _encode(load_engine(model), "fox")


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape", "garbage"])
def test_weights_that_do_not_match_config_are_refused(
    change: str, load_engine: Load, tiny_model: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(tiny_model, tmp_path / "model")) / "model.safetensors"
    weights = load_file(path)
    if change == "missing":
        del weights["model.layers.1.mlp.up_proj.weight"]
    elif change == "unexpected":
        weights["model.layers.7.mlp.up_proj.weight"] = torch.zeros(2, 2)
    elif change == "shape":
        weights["model.layers.1.mlp.up_proj.weight"] = torch.zeros(3, 3)
    save_file(weights, path, metadata={"format": "pt"})
    if change == "garbage":
        path.write_bytes(b"not weights")
    with pytest.raises(EngineDeadError, match="^model") as caught:
        load_engine(path.parent)
    assert str(tmp_path) not in caught.value.message
