"""The generation endpoints of the running application, as OpenAI's own client uses them."""

import json
import math
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.conftest import ROOT, Application
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

MODEL = "tuneserve-demo"
FOLDER = ROOT / "examples" / MODEL
HANDBOOK = ROOT / "examples" / "handbook" / "train.jsonl"
WORDS = HANDBOOK.read_text().replace('"', " ").split()


def chat(content: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "messages": messages, "temperature": 0, **fields}


@pytest.fixture(scope="module")
def plain() -> tuple[Any, Any]:
    """The model and tokenizer in plain transformers."""
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype="auto").eval()
    return model, AutoTokenizer.from_pretrained(FOLDER)


def test_chat_returns_several_choices(application: Application) -> None:
    request = chat("Hello!", n=3, temperature=1.5, seed=4, max_tokens=12)
    first = application.client.chat.completions.create(**request)
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    texts = [choice.message.content for choice in first.choices]
    assert len(set(texts)) > 1
    again = application.client.chat.completions.create(**request)
    assert [choice.message.content for choice in again.choices] == texts
    assert first.usage is not None
    assert first.usage.completion_tokens <= 36

    pieces = ["", "", ""]
    for chunk in application.client.chat.completions.create(**request, stream=True):
        for choice in chunk.choices:
            pieces[choice.index] += choice.delta.content or ""
    assert pieces == texts


def test_stop_string_ends_whole_and_streamed_answer(application: Application) -> None:
    create = application.client.chat.completions.create
    whole = create(**chat("Hello!", max_tokens=40)).choices[0].message.content
    assert len(whole) > 12
    for start in (3, 7):
        stop = whole[start : start + 4]
        answer = create(**chat("Hello!", max_tokens=40, stop=[stop])).choices[0]
        assert (answer.message.content, answer.finish_reason) == (whole.partition(stop)[0], "stop")
        chunks = create(**chat("Hello!", max_tokens=40, stop=[stop]), stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == whole.partition(stop)[0]


def test_chat_returns_log_probabilities(application: Application) -> None:
    request = chat("Hello!", max_tokens=10, logprobs=True, top_logprobs=3)
    choice = application.client.chat.completions.create(**request).choices[0]
    content = choice.logprobs.content
    assert "".join(token.token for token in content) == choice.message.content
    for token in content:
        best = token.top_logprobs[0]
        assert (token.token, token.logprob) == (best.token, best.logprob), (
            "greedy decoding chooses the most likely token"
        )
        assert sum(math.exp(top.logprob) for top in token.top_logprobs) <= 1 + 1e-6
    streamed = [
        token
        for chunk in application.client.chat.completions.create(**request, stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for token in choice.logprobs.content or ()
    ]
    assert [token.token for token in streamed] == [token.token for token in content]


def test_completions_accept_texts_and_tokens(
    application: Application, plain: tuple[Any, Any]
) -> None:
    _, tokenizer = plain
    create = application.client.completions.create
    text = "The handbook of the"
    ids = tokenizer(text)["input_ids"]
    request: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 8}
    answer = create(prompt=text, **request)
    assert answer.object == "text_completion"
    assert create(prompt=ids, **request).choices[0].text == answer.choices[0].text
    both = create(prompt=[text, "Another"], echo=True, n=2, **request)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert both.choices[1].text == text + answer.choices[0].text
    assert both.choices[3].text.startswith("Another")
    streamed = create(prompt=text, stream=True, **request)
    assert "".join(c.choices[0].text for c in streamed if c.choices) == answer.choices[0].text


def test_log_probabilities_equal_plain_forward_pass(
    application: Application, plain: tuple[Any, Any]
) -> None:
    """Like evaluation harnesses: the prompt as tokens, echoed, with one generated token."""
    model, tokenizer = plain
    texts = [" ".join(WORDS[at : at + 5 + at % 40]) for at in range(0, 50 * 37, 37)]
    assert len(texts) == 50
    for text in texts:
        ids = tokenizer(text)["input_ids"]
        answer = application.client.completions.create(
            model=MODEL, prompt=[ids], echo=True, logprobs=1, max_tokens=1, temperature=0, seed=1234
        )
        logprobs: Any = answer.choices[0].logprobs
        found = logprobs.token_logprobs
        assert found[0] is None
        assert len(found) == len(ids) + 1, (
            "prompt and one generated token, even if it is the end token"
        )
        with torch.no_grad():
            expected = torch.log_softmax(model(torch.tensor([ids])).logits[0].float(), dim=-1)
        likely = [float(expected[at, token]) for at, token in enumerate(ids[1:])]
        assert found[1 : len(ids)] == pytest.approx(likely, abs=1e-3)
        best = expected.max(dim=-1).values
        tops = [max(top.values()) for top in logprobs.top_logprobs[1 : len(ids)]]
        assert tops == pytest.approx(best[: len(ids) - 1].tolist(), abs=1e-3)


@pytest.fixture(scope="module")
def exact(application: Application, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The model in fp32, which the application has as `demo-fp32`.

    In bf16 the two most likely tokens tie within rounding every few hundred tokens, and the
    rounding of a matrix product depends on its number of rows.
    """
    folder = tmp_path_factory.mktemp("fp32")
    model: Any = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    model.save_pretrained(folder / "model")
    AutoTokenizer.from_pretrained(FOLDER).save_pretrained(folder / "model")
    archive = shutil.make_archive(str(folder / "archive"), "zip", folder / "model")
    url = f"{application.url}/v1/models/demo-fp32"
    httpx.put(url, content=Path(archive).read_bytes(), timeout=60).raise_for_status()
    return model


def test_concurrent_greedy_answers_equal_generate(
    application: Application, exact: Any, plain: tuple[Any, Any]
) -> None:
    """Compare the tokens of 200 prompts of mixed length, with 16 concurrent requests."""
    _, tokenizer = plain
    prompts = [
        tokenizer(f"{at}. {' '.join(WORDS[at : at + 1 + at % 60])}")["input_ids"]
        for at in range(200)
    ]

    def complete(ids: list[int]) -> list[str]:
        answer = application.client.completions.create(
            model="demo-fp32", prompt=ids, temperature=0, max_tokens=12, logprobs=0
        )
        logprobs: Any = answer.choices[0].logprobs
        return list(logprobs.tokens)

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(complete, prompts))
    for ids, tokens in zip(prompts, answers, strict=True):
        prompt = torch.tensor([ids])
        made = exact.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False
        )[0, len(ids) :].tolist()
        assert tokens == [tokenizer.decode([token]) for token in made]


def test_invalid_request_error_names_the_field(application: Application) -> None:
    client = application.client
    invalid_requests: list[tuple[dict[str, Any], type[openai.APIStatusError], str | None]] = [
        (chat("x", model="nobody"), openai.NotFoundError, "model"),
        (chat("x", temperature="warm"), openai.BadRequestError, "temperature"),
        (chat("x", n=99), openai.BadRequestError, "n"),
        (chat("x " * 20_000), openai.BadRequestError, "messages"),
        (chat("x", tools=[{"type": "function"}]), openai.BadRequestError, "tools"),
        (chat("x", messages=[]), openai.BadRequestError, "messages"),
    ]
    for request, kind, param in invalid_requests:
        with pytest.raises(kind) as caught:
            client.chat.completions.create(**request)
        assert caught.value.param == param
        assert isinstance(caught.value.body, dict)
        assert str(application.storage) not in str(caught.value.body)
    with pytest.raises(openai.BadRequestError, match="its context holds|context holds"):
        client.completions.create(model=MODEL, prompt=[5] * 5000)
    slow = chat("Hello!", n=4, temperature=1.5, max_tokens=200)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.01, max_retries=0).chat.completions.create(**slow)
    assert client.chat.completions.create(**chat("Hello!")).choices[0].message.content


@pytest.mark.usefixtures("exact")
def test_each_metric_of_dashboard_is_exported(application: Application) -> None:
    dashboard = json.loads((ROOT / "docs" / "grafana.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {name for query in queries for name in re.findall(r"ray_tuneserve_\w+", query)}
    assert len(names) == 11
    for model in (MODEL, "demo-fp32"):  # a replica follows the alias from its first request on
        httpx.put(f"{application.url}/v1/aliases/moving", json={"model": model}).raise_for_status()
        application.client.chat.completions.create(**chat("Hello!", model="moving"))
    for _ in application.client.chat.completions.create(**chat("Hello!"), stream=True):
        pass
    found = Path(os.environ["RAY_TMPDIR"]).rglob("prom_metrics_service_discovery.json")
    addresses = json.loads(next(found).read_text())[0]["targets"]

    def are_exported() -> bool:
        texts = [httpx.get(f"http://{address}/metrics").text for address in addresses]
        return all(any(f"\n{name}{{" in text for text in texts) for name in names)

    wait_until(are_exported, 60, f"{sorted(names)} are exported")
