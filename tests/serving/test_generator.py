"""Answers of a generator, streamed and whole, and its settings."""

import shutil
from pathlib import Path

import pytest
from pydantic import ValidationError

from serving.errors import InvalidRequestError, ModelNotFoundError
from serving.generator import Generator, GeneratorDeployment, GeneratorSettings
from serving.refusals import Refusal
from serving.store.model_store import ModelStore
from serving.wire import AnswerOrigin
from storage import durable
from storage.layout import StorageLayout
from tests.serving.conftest import list_ids, make_chat, run_replica, stream_chat

pytestmark = pytest.mark.anyio


async def test_answer_has_origin_of_its_model(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    building = Path(shutil.copytree(tiny_model, layout.models / ".building"))
    lineage = {"run_id": "ftjob-1", "checkpoint_step": 12, "data": {"sha256": "ab"}}
    durable.write_json(building / "lineage.json", lineage)
    model = store.publish(building, "tuned")
    store.add(tiny_model, "base")
    store.point_alias("latest", "tuned")
    async with run_replica(layout) as replica:
        assert await list_ids(replica) == ["tuned"]
        tuned = await stream_chat(replica, "latest")
        assert tuned.origin == AnswerOrigin(
            model_id="tuned",
            run_id="ftjob-1",
            checkpoint="step-12",
            dataset_sha256="ab",
            system_fingerprint=model.fingerprint,
        )
        assert tuned.text
        assert set(tuned.last._fields) == {
            "choice_index",
            "tokens",
            "text",
            "finish_reason",
            "num_prompt_tokens",
            "num_completion_tokens",
        }
        assert (tuned.last.finish_reason, tuned.last.num_completion_tokens) == ("length", 20)
        base = await stream_chat(replica, "base")
        assert base.origin.run_id is None
        assert base.origin.checkpoint is None
        assert base.origin.dataset_sha256 is None
        assert base.origin.model_id == "base"
        assert base.text == tuned.text


async def test_unknown_model_is_refused_before_first_item(
    store: ModelStore, layout: StorageLayout
) -> None:
    async with run_replica(layout) as replica:
        with pytest.raises(ModelNotFoundError, match="^no model or alias is called 'latest'; "):
            await anext(replica.stream(make_chat("latest")))


async def test_overlong_prompt_is_refused_before_first_item(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "base")
    async with run_replica(layout) as replica:
        with pytest.raises(
            InvalidRequestError,
            match="^the prompt has [0-9]+ tokens, but the model's context holds 128, ",
        ):
            await anext(replica.stream(make_chat("base", "fox " * 200)))
        assert (await replica.loaded_models())[0].num_active == 0


async def test_deployment_returns_refusals(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "base")
    deployment = GeneratorDeployment(
        GeneratorSettings(storage=str(layout.root), alias_poll_s=0.02, max_loaded_models=1)
    )
    try:
        await deployment.check_health()
        unknown = make_chat("nobody")
        (streamed,) = [item async for item in deployment.stream(unknown)]
        whole = await deployment.answer(unknown)
        for refusal in (streamed, whole):
            assert isinstance(refusal, Refusal)
            assert isinstance(refusal.error, ModelNotFoundError)
        answered = await deployment.answer(make_chat("base"))
        assert not isinstance(answered, Refusal)
        assert [choice.num_completion_tokens for choice in answered.choices] == [20]
        items = [item async for item in deployment.stream(make_chat("base"))]
        assert not any(isinstance(item, Refusal) for item in items)
        assert [loaded.model_id for loaded in await deployment.loaded_models()] == ["base"]
    finally:
        deployment.close()


def test_settings_reject_unknown_keys() -> None:
    with pytest.raises(
        ValidationError,
        match="^1 validation error for GeneratorSettings\nmax_loaded_modles\n +Extra inputs are "
        "not permitted",
    ):
        GeneratorSettings.model_validate({"storage": "x", "max_loaded_modles": 2})


def test_deployment_sets_request_limits() -> None:
    assert Generator.name == "Generator"
    assert Generator.max_ongoing_requests == 128
    assert Generator.max_queued_requests == 128


@pytest.mark.parametrize("log_texts", [False, True])
async def test_request_text_is_logged_only_with_log_texts(
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    log_texts: bool,
) -> None:
    store.add(tiny_model, "a")
    caplog.set_level("INFO", logger="serving")
    async with run_replica(layout, log_texts=log_texts) as replica:
        whole = make_chat("a", "badger", max_tokens=8, request_id="chatcmpl-7")
        answer = await replica.answer(whole)
        streamed = make_chat("a", "badger", max_tokens=8, request_id="chatcmpl-8")
        async for _ in replica.stream(streamed):
            pass
    text = answer.choices[0].text
    body = {
        "model": "a",
        "messages": [{"role": "user", "content": "badger"}],
        "max_tokens": 8,
    }
    for name in ("chatcmpl-7", "chatcmpl-8"):
        lines = [line for line in caplog.messages if name in line]
        assert any("chat for a: answered after" in line for line in lines)
        assert any("badger" in line and repr(text) in line for line in lines) is log_texts
        logged = f"{name}: asked {body}, answered { ({0: text}) }"
        assert (logged in lines) is log_texts
        assert len(lines) == 1 + log_texts
