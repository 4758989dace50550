"""Requests for different adapters of one model, in one batch, have the answers of PEFT."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from serving.adapters.adapted_linear import AdaptedLinear
from serving.adapters.adapter_bank import AdapterBank
from serving.adapters.adapter_file import LayerFactors
from serving.adapters.arena import Arena
from serving.engine.engine import Engine
from serving.engine.messages import find_adapter, name_request
from serving.engine.sampling import Sampling
from serving.errors import EngineDeadError
from serving.loading.loading import load_model, load_tokenizer
from tests.peft_adapters import generate_with_peft, load_with_peft, write_adapter
from tests.serving.conftest import Load
from tests.tiny_model import build_tiny_model

pytestmark = pytest.mark.anyio

PROMPT = [5, 9, 13, 7, 22, 31, 5, 6, 9, 9, 12, 4, 6, 7, 8, 9, 10, 11, 3]
SETTINGS: Sequence[dict[str, Any]] = (
    {},
    {"r": 3, "lora_alpha": 12, "use_rslora": True, "target_modules": "all-linear"},
    {"use_dora": True, "target_modules": ["o_proj", "gate_proj"]},
    {"r": 6, "alpha_pattern": {"layers.1.self_attn.v_proj": 30}, "rank_pattern": {"q_proj": 2}},
)


@pytest.fixture(scope="module")
def adapters(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [
        write_adapter(tiny_model, folder / f"a{seed}", seed=seed, **settings)
        for seed, settings in enumerate(SETTINGS)
    ]


def open_bank(directory: Path) -> tuple[Any, AdapterBank, torch.Tensor]:
    """Load a model without an engine; returns it, its bank, and the ids of `PROMPT`."""
    model, _ = load_model(directory)
    bank = AdapterBank(model, page_size=4, max_rows=64)
    return model, bank, torch.tensor([PROMPT], device=model.device)


async def answer(engine: Engine, prompt: Sequence[int], num_tokens: int = 10) -> str:
    sampling = Sampling(max_new_tokens=num_tokens, temperature=0.0)
    pieces = engine.generate(prompt, sampling, in_pieces=False)
    return "".join([piece.text async for piece in pieces])


async def test_answers_of_a_mixed_batch_equal_those_of_peft(
    load_engine: Load, tiny_model: Path, adapters: list[Path]
) -> None:
    engine = load_engine(page_size=4)
    engines = [engine, *[await engine.open_adapter(path, tiny_model) for path in adapters]]
    # The second half has pages of its prompts in the cache, by then of every adapter.
    for prompts in ((PROMPT, PROMPT[:7]), (PROMPT, PROMPT[2:])):
        asked = [(number, prompt) for prompt in prompts for number in range(len(engines))]
        answers = await asyncio.gather(*(answer(engines[n], prompt) for n, prompt in asked))
        for (number, prompt), text in zip(asked, answers, strict=True):
            path = adapters[number - 1] if number else None
            expected = generate_with_peft(tiny_model, path, prompt, 10)
            assert text == engine.prompts.decode(expected), (number, prompt)
    assert len(set(answers)) > len(engines)


async def test_bf16_model_computes_adapters_as_peft_does(load_engine: Load, tmp_path: Path) -> None:
    model = build_tiny_model(tmp_path / "model", dtype=torch.bfloat16)
    path = write_adapter(model, tmp_path / "a", use_dora=True)
    engine = load_engine(model)
    adapted = await engine.open_adapter(path, model)
    scored = await adapted.score(PROMPT, 0)
    with torch.no_grad():
        logits = load_with_peft(model, path)(torch.tensor([PROMPT])).logits[0].float()
    expected = logits.log_softmax(-1)[:-1].gather(-1, torch.tensor(PROMPT[1:])[:, None])
    found = torch.tensor([one.logprob for one in scored[1:]])
    torch.testing.assert_close(found, expected[:, 0], atol=0.3, rtol=0.0)
    assert (await engine.score(PROMPT, 0)) != scored


async def test_scores_are_those_of_the_adapter(
    load_engine: Load, tiny_model: Path, adapters: list[Path]
) -> None:
    engine = load_engine()
    for path in adapters:
        adapted = await engine.open_adapter(path, tiny_model)
        scored = await adapted.score(PROMPT, 0)
        with torch.no_grad():
            logits = load_with_peft(tiny_model, path)(torch.tensor([PROMPT])).logits[0]
        expected = logits.log_softmax(-1)[:-1].gather(-1, torch.tensor(PROMPT[1:])[:, None])
        found = torch.tensor([one.logprob for one in scored[1:]])
        torch.testing.assert_close(found, expected[:, 0], atol=1e-4, rtol=0.0)


async def test_closed_adapter_leaves_the_model_and_other_adapters_as_they_were(
    load_engine: Load, tiny_model: Path, adapters: list[Path]
) -> None:
    engine = load_engine(page_size=4)
    before = await answer(engine, PROMPT)
    first, second = [await engine.open_adapter(path, tiny_model) for path in adapters[:2]]
    of_second = await answer(second, PROMPT)
    first.close()
    assert engine.is_healthy()
    assert await answer(second, PROMPT) == of_second
    third = await engine.open_adapter(adapters[0], tiny_model)
    both = list(await asyncio.gather(answer(third, PROMPT), answer(second, PROMPT)))
    expected = generate_with_peft(tiny_model, adapters[0], PROMPT, 10)
    assert both == [engine.prompts.decode(expected), of_second]
    second.close()
    third.close()
    assert await answer(engine, PROMPT) == before


async def test_adapter_has_its_own_chat_template_and_end_tokens(
    load_engine: Load, tiny_model: Path, tmp_path: Path
) -> None:
    path = write_adapter(tiny_model, tmp_path / "a")
    plain = load_engine()
    same = await plain.open_adapter(path, tiny_model)
    messages = [{"role": "user", "content": "fox"}]
    ids = await plain.prompts.encode_chat(messages)
    assert await same.prompts.encode_chat(messages) == ids
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(tiny_model / name, path)
    template = (tiny_model / "chat_template.jinja").read_text()
    (path / "chat_template.jinja").write_text(template.replace("assistant", "system"))
    other = await plain.open_adapter(path, tiny_model)
    assert await other.prompts.encode_chat(messages) != ids
    assert await plain.prompts.encode_chat(messages) == ids
    other.close()
    assert await plain.prompts.encode_chat(messages) == ids


async def test_adapters_that_do_not_fit_are_refused_and_change_nothing(
    load_engine: Load, tiny_model: Path, tmp_path: Path
) -> None:
    engine = load_engine()
    before = await answer(engine, PROMPT)
    embedding = write_adapter(
        tiny_model,
        tmp_path / "embedding",
        target_modules=["embed_tokens"],
        ensure_weight_tying=True,
    )
    with pytest.raises(EngineDeadError, match="^adapter 'embedding' cannot be loaded: "):
        await engine.open_adapter(embedding, tiny_model)
    saved = write_adapter(tiny_model, tmp_path / "saved", modules_to_save=["norm"])
    with pytest.raises(EngineDeadError, match="norm.weight' is not a factor of a linear layer"):
        await engine.open_adapter(saved, tiny_model)
    with pytest.raises(EngineDeadError, match="^adapter 'absent' cannot be loaded: "):
        await engine.open_adapter(tmp_path / "absent", tiny_model)
    assert await answer(engine, PROMPT) == before


async def test_faulty_adapter_does_not_change_answers_of_its_base(
    load_engine: Load, tiny_model: Path, tmp_path: Path
) -> None:
    engine = load_engine(page_size=4)
    before = await answer(engine, PROMPT)
    path = write_adapter(tiny_model, tmp_path / "a")
    weights = load_file(path / "adapter_model.safetensors")
    next(one for name, one in weights.items() if "lora_A" in name)[0, 0] = float("nan")
    save_file(weights, path / "adapter_model.safetensors")
    with pytest.raises(EngineDeadError, match="^adapter 'a' cannot be loaded: .* is not finite in"):
        await engine.open_adapter(path, tiny_model)
    assert await answer(engine, PROMPT) == before


async def test_adapter_stops_at_the_end_token_of_its_own_tokenizer(
    load_engine: Load, tiny_model: Path, tmp_path: Path
) -> None:
    """PEFT writes no generation_config.json."""
    engine = load_engine()
    path = write_adapter(tiny_model, tmp_path / "a")
    shutil.copy(tiny_model / "tokenizer.json", path)
    settings = json.loads((tiny_model / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "e"}))
    adapted = await engine.open_adapter(path, tiny_model)
    end_id = load_tokenizer(path).convert_tokens_to_ids("e")
    assert set(adapted._facts.eos_ids) == {*engine._facts.eos_ids, end_id}


def test_failure_of_any_kind_leaves_no_factors(
    tiny_model: Path, adapters: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, bank, ids = open_bank(tiny_model)
    before = model(ids).logits
    add = AdaptedLinear.add
    added: list[AdaptedLinear] = []

    def fail_late(layer: AdaptedLinear, number: int, factors: LayerFactors, arena: Arena) -> None:
        if len(added) == 3:
            raise RuntimeError("out of memory")
        added.append(layer)
        add(layer, number, factors, arena)

    monkeypatch.setattr(AdaptedLinear, "add", fail_late)
    with pytest.raises(RuntimeError, match="^out of memory"):
        bank.load(1, adapters[0])
    with bank.use(1):
        assert torch.equal(model(ids).logits, before)


def test_adapter_unloaded_before_it_was_loaded_is_not_kept(
    tiny_model: Path, adapters: list[Path]
) -> None:
    model, bank, ids = open_bank(tiny_model)
    before = model(ids).logits
    bank.unload(1)
    bank.load(1, adapters[0])
    with bank.use(1):
        assert torch.equal(model(ids).logits, before)
    bank.load(2, adapters[0])
    with bank.use(2):
        assert not torch.equal(model(ids).logits, before)


def test_pages_are_found_by_different_ids_for_each_adapter(tiny_model: Path) -> None:
    bank = AdapterBank(load_model(tiny_model)[0], page_size=4, max_rows=64)
    salted = [bank.salt(name_request(9, adapter), PROMPT) for adapter in range(3)]
    assert salted[0] == PROMPT
    for start in range(0, len(PROMPT), 4):
        assert len({tuple(ids[start : start + 4]) for ids in salted}) == 3
    assert bank.salt(name_request(10, 2), PROMPT[:8]) == salted[2][:8]
    assert all(0 <= token_id < 2**31 for ids in salted for token_id in ids)


def test_id_of_a_request_has_the_number_of_its_adapter() -> None:
    assert [find_adapter(name_request(7, adapter)) for adapter in (0, 1, 12)] == [0, 1, 12]


def test_adapter_of_an_expert_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    model, _ = load_model(tiny_model)
    model.model.layers[0].mlp.experts = torch.nn.ModuleList([model.model.layers[0].mlp.up_proj])
    path = write_adapter(tiny_model, tmp_path / "a", target_modules=["layers.0.mlp.up_proj"])
    file = path / "adapter_model.safetensors"
    weights = {name.replace("up_proj", "experts.0"): one for name, one in load_file(file).items()}
    save_file(weights, file)
    told = "^adapter 'a' cannot be loaded: it changes the expert 'model.layers.0.mlp.experts.0'"
    with pytest.raises(EngineDeadError, match=told):
        AdapterBank(model, page_size=4, max_rows=64).load(1, path)


def test_factors_and_stacks_of_all_layers_are_in_one_block_each(
    tiny_model: Path, adapters: list[Path]
) -> None:
    model, bank, ids = open_bank(tiny_model)
    for number, path in enumerate(adapters, 1):
        bank.load(number, path)
    layers = [module for module in model.modules() if isinstance(module, AdaptedLinear)]

    def find_blocks(numbers: Sequence[int]) -> set[int]:
        requests = [(name_request(number, number), 1) for number in numbers]
        bank.set_batch([(name_request(9, 0), len(PROMPT) - len(requests)), *requests])
        model(ids)
        stacks = [layer.stack for layer in layers if layer.stack is not None]
        return {part.untyped_storage().data_ptr() for one in stacks for part in (one.a, one.b)}

    assert len(find_blocks([1, 2, 3])) == 1
    bank.unload(2)
    blocks = find_blocks([1, 3])
    bank.unload(4)  # in no stack
    with bank.use(0):
        model(ids)
    with bank.use(3):
        model(ids)
    assert find_blocks([1, 3]) == blocks
    with bank.use(4):
        model(ids)
    assert len(find_blocks([1, 3])) == 1
    factors = [one for layer in layers if (one := layer._factors.get(1)) is not None]
    assert len({part.untyped_storage().data_ptr() for one in factors for part in one[:2]}) == 1
