"""Chat templates of all families: the learned tokens, and that training agrees with serving."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from serving.engine.chat_encoder import ChatEncoder
from templating.arguments import set_arguments
from templating.reasoning import arrange_reasoning
from templating.renderer import RenderLimits
from tests.chat_templates import FAMILIES, Family
from training.data.chat.rendering import ChatSettings
from training.data.faults import RowFault
from training.data.text.encoding import RowEncoder, TokenSample
from training.data.text.formats import Row, choose_parser

TOOL = {
    "type": "function",
    "function": {"name": "count_loaves", "description": "Count.", "parameters": {}},
}
CALL = {"function": {"name": "count_loaves", "arguments": {"day": "Monday"}}}


def make_question(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"Question {number}?"}


def make_answer(number: int, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": f"Answer {number}.", **more}


CHATS: dict[str, list[dict[str, Any]]] = {
    "single": [make_question(1), make_answer(1)],
    "three turns": [
        make_question(1),
        make_answer(1),
        make_question(2),
        make_answer(2),
        make_question(3),
        make_answer(3),
    ],
    "system": [{"role": "system", "content": "Be brief."}, make_question(1), make_answer(1)],
    "tools": [
        make_question(1),
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "12"},
        make_answer(1),
    ],
    "reasoning": [
        make_question(1),
        make_answer(1, reasoning_content="Because of one."),
        make_question(2),
        make_answer(2, reasoning_content="Because of two."),
    ],
}
NO_TOOLS = {
    *("llama 2", "llama 3", "gemma 2", "gemma 3", "phi 3", "phi 4", "deepseek r1", "command"),
    *("seed", "olmo", "vicuna", "falcon", "llava"),
}
REFUSED = {
    ("gemma 2", "system"): "the model's chat template refuses it: System role not supported",
    **{
        (name, "tools"): "it has 'tools', which the model's chat template does not render"
        for name in NO_TOOLS
    },
}
ARGUMENTS = {("deepseek v3.1", "reasoning"): {"thinking": True}}


def make_tokenizer(family: Family) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=["<s>", *family.ends],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    text = f"Question 1? Answer 1. Be brief. assistant user system count_loaves\n\n {CHATS}"
    backend.train_from_iterator([text] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token=family.ends[0]
    )
    tokenizer.add_tokens([AddedToken(token, special=False) for token in family.tokens])
    tokenizer.chat_template = family.template
    return tokenizer


def find_end_ids(tokenizer: Any, family: Family) -> tuple[int, ...]:
    return tuple(tokenizer.convert_tokens_to_ids(list(family.ends)))


def parse(chat: str) -> Row:
    record = {"messages": CHATS[chat], **({"tools": [TOOL]} if chat == "tools" else {})}
    return choose_parser(record, "chat", {}).parse(1, record)


def encode(tokenizer: Any, row: Row, settings: ChatSettings) -> list[TokenSample]:
    with RowEncoder(tokenizer, settings) as encoder:
        found = [one for _, one in encoder.encode([[row]])]
    for one in found:
        if isinstance(one, RowFault):
            raise one
    return [one for one in found if isinstance(one, TokenSample)]


def serve_prompt(tokenizer: Any, row: Row, index: int) -> list[int]:
    """Return the prompt tokens before a message from serving, or with tools from transformers."""
    history = [dict(message) for message in row.messages[:index]]
    if row.tools:
        template = tokenizer.chat_template
        history = [dict(arrange_reasoning(message, template)) for message in history]
        for number, message in enumerate(history):
            for call in message.get("tool_calls", ()):
                call["id"] = "call00001"
                if "+ c.function.arguments" in template:  # which accepts only text
                    function = call["function"]
                    function["arguments"] = json.dumps(function["arguments"])
            if message["role"] == "tool":
                history[number] = {**message, "tool_call_id": "call00001"}
        text = tokenizer.apply_chat_template(
            history, tools=list(row.tools), add_generation_prompt=True, tokenize=False
        )
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    chats = ChatEncoder(tokenizer, RenderLimits())
    try:
        return asyncio.run(chats.encode(history))
    finally:
        chats.close()


def split_learned(rows: Sequence[TokenSample]) -> list[tuple[list[int], list[int]]]:
    """Return each stretch of learned tokens, preceded by all tokens before it."""
    stretches = []
    for row in rows:
        ids, learned = row.input_ids.tolist(), row.learned.tolist()
        starts = [i for i, is_on in enumerate(learned) if is_on and not (i and learned[i - 1])]
        for start in starts:
            end = next((i for i in range(start, len(ids)) if not learned[i]), len(ids))
            stretches.append((ids[:start], ids[start:end]))
    return stretches


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", FAMILIES)
def test_each_answer_is_learned_after_served_prompt(name: str, chat: str) -> None:
    family, row = FAMILIES[name], parse(chat)
    tokenizer = make_tokenizer(family)
    set_arguments(tokenizer, ARGUMENTS.get((name, chat), {}))
    end_ids = find_end_ids(tokenizer, family)
    if reason := REFUSED.get((name, chat)):
        with pytest.raises(RowFault, match=f"^{reason}"):
            encode(tokenizer, row, ChatSettings(end_ids=end_ids))
        return
    stretches = split_learned(encode(tokenizer, row, ChatSettings(end_ids=end_ids)))
    indices = [index for index, is_learned in enumerate(row.learned) if is_learned]
    assert len(stretches) == len(indices)
    for index in indices:
        prompt = serve_prompt(tokenizer, row, index)
        (learned,) = [ids for before, ids in stretches if before == prompt]
        assert learned[-1] in end_ids
        assert not set(end_ids).intersection(learned[:-1])
        text, message = tokenizer.decode(learned), row.messages[index]
        assert (message["content"] or "count_loaves") in text
        assert message.get("reasoning_content", "") in text
        assert "Question" not in text


@pytest.mark.parametrize("name", FAMILIES)
def test_trained_model_reproduces_answers_and_stops(name: str) -> None:
    family, row = FAMILIES[name], parse("three turns")
    tokenizer = make_tokenizer(family)
    end_ids = find_end_ids(tokenizer, family)
    rows = encode(tokenizer, row, ChatSettings(end_ids=end_ids))
    model = train(rows, len(tokenizer))
    for before, learned in split_learned(rows):
        prompt = torch.tensor([before])
        with torch.inference_mode():
            for _ in range(len(learned) + 5):
                token = model(prompt).logits[0, -1].argmax()
                prompt = torch.cat((prompt, token.view(1, 1)), dim=1)
                if int(token) in end_ids:
                    break
        assert prompt[0, len(before) :].tolist() == learned


def train(rows: Sequence[TokenSample], vocabulary_size: int) -> LlamaForCausalLM:
    """Train a tiny model until it reproduces the rows exactly."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    longest = max(len(row.input_ids) for row in rows)
    ids = torch.zeros((len(rows), longest), dtype=torch.long)
    labels = torch.full((len(rows), longest), -100)
    for number, row in enumerate(rows):
        tokens = torch.from_numpy(row.input_ids.astype("int64"))
        ids[number, : len(tokens)] = tokens
        labels[number, : len(tokens)] = torch.where(torch.from_numpy(row.learned), tokens, -100)
    for _ in range(200):
        loss = model(input_ids=ids, labels=labels).loss
        if loss.item() < 0.01:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model
