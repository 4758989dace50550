import asyncio
import json
import os
import shutil
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from serving.engine.engine import Engine
from serving.engine.memory import estimate_memory
from serving.engine.remote_inspection import inspect_in_fork
from serving.errors import (
    EngineDeadError,
    EngineLostError,
    InvalidRequestError,
    ModelInUseError,
    ModelNotFoundError,
    OverloadedError,
)
from serving.generator import Generator, GeneratorReplica, GeneratorSettings
from serving.settings import EngineSettings
from serving.store.alias_events import HandoverLog
from serving.store.model_store import ModelStore
from storage import durable
from storage.layout import StorageLayout
from tests.damage import damage
from tests.serving.conftest import run_replica, wait_until


def _ask(model: str, content: str = "fox", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": model, "messages": messages, "max_tokens": 20, **fields}


async def _chat(
    replica: GeneratorReplica, model: str, **fields: Any
) -> tuple[dict[str, Any], str, dict[str, Any]]:
    items = [item async for item in replica.stream("chat", _ask(model, **fields), "id")]
    pieces = [piece for item in items for piece in item["pieces"]]
    assert all(item["origin"] is None for item in items[1:])
    return items[0]["origin"], "".join(piece["text"] for piece in pieces), pieces[-1]


async def _list_ids(replica: GeneratorReplica) -> list[str]:
    return [loaded["model_id"] for loaded in await replica.loaded_models()]


async def _loads(replica: GeneratorReplica, *model_ids: str) -> bool:
    return await _list_ids(replica) == sorted(model_ids)


def _add_broken(
    store: ModelStore, layout: StorageLayout, source: Path, model_id: str, **config: Any
) -> None:
    building = Path(shutil.copytree(source, layout.models / ".broken"))
    own = json.loads((building / "config.json").read_text())
    generation = config.pop("generation", None)
    if generation is not None:
        durable.write_json(building / "generation_config.json", generation)
    else:
        config = config or {"model_type": "unheard-of"}
    durable.write_json(building / "config.json", {**own, **config})
    store.publish(building, model_id)


def test_answer_names_what_made_it(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    building = Path(shutil.copytree(tiny_model, layout.models / ".building"))
    lineage = {"run_id": "ftjob-1", "checkpoint_step": 12, "data": {"sha256": "ab"}}
    durable.write_json(building / "lineage.json", lineage)
    model = store.publish(building, "tuned")
    store.add(tiny_model, "base")
    store.point_alias("latest", "tuned")

    async def scenario() -> None:
        async with run_replica(layout) as replica:
            assert await _list_ids(replica) == ["tuned"]
            opening, text, last = await _chat(replica, "latest")
            assert opening == {
                "model_id": "tuned",
                "run_id": "ftjob-1",
                "checkpoint": "step-12",
                "dataset_sha256": "ab",
                "system_fingerprint": model.fingerprint,
            }
            assert text
            assert set(last) == {
                "index",
                "tokens",
                "text",
                "finish_reason",
                "num_prompt_tokens",
                "num_completion_tokens",
            }
            assert (last["finish_reason"], last["num_completion_tokens"]) == ("length", 20)
            opening, same_text, _ = await _chat(replica, "base")
            assert opening["run_id"] is opening["checkpoint"] is opening["dataset_sha256"] is None
            assert opening["model_id"] == "base"
            assert same_text == text

    asyncio.run(scenario())


def test_refusals_come_before_the_first_item(store: ModelStore, layout: StorageLayout) -> None:
    async def scenario() -> None:
        async with run_replica(layout) as replica:
            with pytest.raises(ModelNotFoundError, match="'latest'"):
                await anext(replica.stream("chat", _ask("latest"), "id"))
            with pytest.raises(InvalidRequestError, match="'tools' is not supported"):
                await anext(replica.stream("chat", _ask("latest", tools=[1]), "id"))

    asyncio.run(scenario())


def test_prompt_too_long_is_refused_before_the_first_item(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "base")

    async def scenario() -> None:
        async with run_replica(layout) as replica:
            with pytest.raises(InvalidRequestError, match="the model's context holds 128"):
                await anext(replica.stream("chat", _ask("base", "fox " * 200), "id"))
            assert (await replica.loaded_models())[0]["num_active"] == 0

    asyncio.run(scenario())


def test_requests_at_once_share_one_load(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "base")

    async def scenario() -> None:
        async with run_replica(layout) as replica:
            asked = [_chat(replica, "base") for _ in range(6)]
            assert len({text for _, text, _ in await asyncio.gather(*asked)}) == 1
            assert await _list_ids(replica) == ["base"]

    asyncio.run(scenario())


def test_moving_latest_under_load_drops_nothing(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, other_model: Path
) -> None:
    store.add(tiny_model, "old")
    store.point_alias("latest", "old")
    seen: list[str] = []
    texts: dict[str, set[str]] = {"old": set(), "new": set()}

    async def scenario() -> None:
        async with run_replica(layout, max_loaded_models=1) as replica:
            is_over = False

            async def keep_asking() -> None:
                while not is_over:
                    opening, text, last = await _chat(replica, "latest")
                    assert last["finish_reason"] is not None
                    seen.append(opening["model_id"])
                    texts[opening["model_id"]].add(text)

            clients = [asyncio.create_task(keep_asking()) for _ in range(6)]
            try:
                await wait_until(lambda: len(seen) > 20)
                store.add(other_model, "new")
                store.point_alias("latest", "new")
                await wait_until(lambda: seen.count("new") > 20)
                # The old model is evicted as soon as no request uses it, even under load.
                await wait_until(lambda: _loads(replica, "new"))
            finally:
                is_over = True
                await asyncio.gather(*clients)
            assert (await replica.loaded_models())[0]["aliases"] == ["latest"]

    asyncio.run(scenario())
    # Every answer is entirely from one model, and none that starts after the hand-over is from old.
    assert len(texts["old"]) == len(texts["new"]) == 1
    assert texts["old"] != texts["new"]
    last_old = max(i for i, model_id in enumerate(seen) if model_id == "old")
    assert last_old - seen.index("new") < 6


def test_model_that_does_not_load_leaves_the_old_one(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, other_model: Path
) -> None:
    store.add(tiny_model, "old")
    store.add(other_model, "new")
    _add_broken(store, layout, tiny_model, "broken")
    store.point_alias("latest", "old")

    async def scenario() -> None:
        async with run_replica(layout) as replica:
            store.point_alias("latest", "broken")
            await wait_until(lambda: "latest" in replica._follower._failed)
            assert (await _chat(replica, "latest"))[0]["model_id"] == "old"
            await replica.check_health()
            with pytest.raises(EngineDeadError, match="'broken' cannot be loaded"):
                await _chat(replica, "broken")
            store.point_alias("latest", "new")

            async def is_moved() -> bool:
                return bool((await _chat(replica, "latest"))[0]["model_id"] == "new")

            await wait_until(is_moved)

    asyncio.run(scenario())


def test_least_recently_used_idle_model_goes_first(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    for model_id in ("a", "b", "c", "d"):
        store.add(tiny_model, model_id)
    store.point_alias("latest", "a")

    async def scenario() -> None:
        async with run_replica(layout, max_loaded_models=3) as replica:
            for model_id in ("b", "c", "b", "d"):
                await _chat(replica, model_id)
            # "a" is the least recently used model, but an alias serves it.
            assert await _list_ids(replica) == ["a", "b", "d"]

    asyncio.run(scenario())


def test_busy_models_stay_and_one_more_is_refused(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    for model_id in ("a", "b"):
        store.add(tiny_model, model_id)

    async def scenario() -> None:
        async with run_replica(layout, max_loaded_models=1) as replica:
            async with aclosing(replica.stream("chat", _ask("a", max_tokens=100), "id")) as answer:
                await anext(answer)
                with pytest.raises(OverloadedError, match="'b' is not loaded") as caught:
                    await _chat(replica, "b")
                assert caught.value.retry_after_s > 0
            assert (await _chat(replica, "b"))[0]["model_id"] == "b"
            assert await _list_ids(replica) == ["b"]

    asyncio.run(scenario())


def test_client_that_leaves_frees_its_place(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "a")

    async def scenario() -> None:
        async with run_replica(layout) as replica:
            async with aclosing(replica.stream("chat", _ask("a", max_tokens=100), "id")) as answer:
                await anext(answer)
                assert (await replica.loaded_models())[0]["num_active"] == 1
            assert (await replica.loaded_models())[0]["num_active"] == 0

    asyncio.run(scenario())


def test_dead_engine_is_put_out_and_loaded_again_by_whoever_asks(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    for model_id in ("a", "b"):
        store.add(tiny_model, model_id)

    async def scenario() -> None:
        async with run_replica(layout) as replica:
            for model_id in ("a", "b"):
                await _chat(replica, model_id)
            dead, other = replica._models.list_loaded()
            dead.engine.close()

            async def is_out() -> bool:
                return await _list_ids(replica) == ["b"]

            await wait_until(is_out)
            await replica.check_health()
            assert (await _chat(replica, "a"))[0]["model_id"] == "a"
            assert replica._models.list_loaded()[1] is other

    asyncio.run(scenario())


@pytest.mark.parametrize("num_lost", [2, 3])
def test_move_is_tried_again_when_the_process_ends_that_loads(
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_lost: int,
) -> None:
    monkeypatch.setattr("serving.alias_watcher._LOST_DELAY_S", 0.05)
    monkeypatch.setattr("serving.alias_watcher._MAX_LOST", 3)
    store.add(tiny_model, "old")
    store.add(tiny_model, "new")
    store.point_alias("latest", "old")
    start = Engine.start
    lost_at: list[float] = []

    def start_or_lose(path: Path, settings: EngineSettings) -> Engine:
        if path.name == "new" and len(lost_at) < num_lost:
            lost_at.append(time.monotonic())
            raise EngineLostError("the process has ended")
        return start(path, settings)

    def list_outcomes() -> list[str]:
        return [event.outcome for event in HandoverLog(layout.store.handovers).read("latest")]

    async def scenario() -> None:
        async with run_replica(layout) as replica:
            monkeypatch.setattr(Engine, "start", start_or_lose)
            store.point_alias("latest", "new")
            await wait_until(lambda: len(list_outcomes()) == 2)
            assert len(lost_at) == num_lost
            assert lost_at[1] - lost_at[0] > 0.05
            answering = (await _chat(replica, "latest"))[0]["model_id"]
            assert (list_outcomes(), answering) == (
                (["postponed", "moved"], "new")
                if num_lost == 2
                else (["postponed", "refused"], "old")
            )

    asyncio.run(scenario())


def test_settings_refuse_what_they_do_not_know() -> None:
    with pytest.raises(ValidationError, match="max_loaded_modles"):
        GeneratorSettings.model_validate({"storage": "x", "max_loaded_modles": 2})


@pytest.mark.parametrize("log_texts", [False, True])
def test_the_log_has_the_text_of_a_request_only_if_asked(
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    log_texts: bool,
) -> None:
    store.add(tiny_model, "a")
    caplog.set_level("INFO", logger="serving")

    async def scenario() -> str:
        async with run_replica(layout, log_texts=log_texts) as replica:
            ask = _ask("a", "badger", max_tokens=8)
            answer = await replica.answer("chat", ask, "chatcmpl-7")
            async for _ in replica.stream("chat", ask, "chatcmpl-8"):
                pass
            return str(answer["choices"][0]["text"])

    text = asyncio.run(scenario())
    for name in ("chatcmpl-7", "chatcmpl-8"):
        lines = [line for line in caplog.messages if name in line]
        assert any("chat for a: answered after" in line for line in lines)
        assert any("badger" in line and repr(text) in line for line in lines) is log_texts
        assert len(lines) == 1 + log_texts


def _estimate(path: Path) -> int:
    """Return the bytes that a model takes, plus 1 MB, as measurements of its tokenizer vary."""
    return estimate_memory(inspect_in_fork(path), EngineSettings()) + 1_000_000


def test_memory_holds_as_many_models_as_fit(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    for model_id in ("a", "b", "c"):
        store.add(tiny_model, model_id)
    two = 2 * _estimate(tiny_model) + 1

    async def scenario() -> None:
        async with run_replica(layout, max_loaded_bytes=two) as replica:
            for model_id in ("a", "b", "c"):
                await _chat(replica, model_id)
            assert await _list_ids(replica) == ["b", "c"]
        async with run_replica(layout, max_loaded_bytes=10) as replica:
            with pytest.raises(InvalidRequestError, match="models may take 0.00 GB") as caught:
                await _chat(replica, "a")
            assert caught.value.code == "model_too_large"

    asyncio.run(scenario())


def test_where_memory_holds_one_model_the_old_one_ends_its_answers_first(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, other_model: Path
) -> None:
    store.add(tiny_model, "old")
    store.add(other_model, "new")
    store.point_alias("latest", "old")
    log = HandoverLog(layout.store.handovers)

    async def scenario() -> None:
        one = _estimate(tiny_model) + 1
        async with run_replica(layout, max_loaded_bytes=one) as replica:
            answer = replica.stream("chat", _ask("latest", max_tokens=100), "id")
            origin = (await anext(answer))["origin"]
            store.point_alias("latest", "new")
            await wait_until(lambda: [one.outcome for one in log.read("latest")] == ["draining"])
            waiting = asyncio.create_task(_chat(replica, "latest"))
            rest = [piece async for item in answer for piece in item["pieces"]]
            assert origin["model_id"] == "old"
            assert rest[-1]["finish_reason"] is not None, "it was not cut off"
            assert (await waiting)[0]["model_id"] == "new", "who waited was not refused"
            assert (await _chat(replica, "old"))[0]["model_id"] == "old"
            assert await _list_ids(replica) == ["old"]

    asyncio.run(scenario())
    assert [event.outcome for event in log.read("latest")] == ["draining", "moved"]
    assert "there is no room for it" in log.read("latest")[0].message


def find_engines() -> list[psutil.Process]:
    """Return the processes of all engines, which are children of the fork server."""
    return [
        process
        for process in psutil.Process().children(recursive=True)
        if process.ppid() != os.getpid() and "serving.engine.worker" in process.cmdline()
    ]


def test_a_model_that_was_put_out_is_in_memory_no_more(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, other_model: Path
) -> None:
    store.add(tiny_model, "old")
    store.add(other_model, "new")
    store.point_alias("latest", "old")

    async def scenario() -> None:
        async with run_replica(layout, max_loaded_bytes=_estimate(tiny_model) + 1) as replica:
            (process,) = find_engines()
            store.point_alias("latest", "new")
            await wait_until(lambda: replica._follower.list_aliases("new") == ["latest"])
            assert not process.is_running()
            assert len(find_engines()) == 1

    asyncio.run(scenario())


def test_an_alias_waits_while_another_one_needs_the_only_place(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, other_model: Path
) -> None:
    store.add(tiny_model, "old")
    store.add(other_model, "new")
    store.point_alias("latest", "old")
    store.point_alias("stable", "old")
    log = HandoverLog(layout.store.handovers)

    async def scenario() -> None:
        async with run_replica(layout, max_loaded_bytes=_estimate(tiny_model) + 1) as replica:
            assert (await _chat(replica, "stable"))[0]["model_id"] == "old"
            store.point_alias("latest", "new")
            await wait_until(lambda: [one.outcome for one in log.read("latest")] == ["postponed"])
            assert "'stable' still answers with 'old'" in log.read("latest")[0].message
            assert (await _chat(replica, "latest"))[0]["model_id"] == "old"
            store.remove_alias("stable")
            await wait_until(lambda: replica._follower.list_aliases("new") == ["latest"])

    asyncio.run(scenario())
    assert [one.outcome for one in log.read("latest")] == ["postponed", "draining", "moved"]


@pytest.mark.parametrize(
    ("changes", "outcomes"),
    [
        ({"generation": {"early_stopping": 5}}, ["draining", "refused"]),
        ({"vocab_size": 7}, ["refused"]),
    ],
    ids=["fails to load", "fails its inspection"],
)
def test_the_old_model_is_back_when_the_new_one_fails_after_all(
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
    changes: dict[str, Any],
    outcomes: list[str],
) -> None:
    store.add(tiny_model, "old")
    _add_broken(store, layout, tiny_model, "broken", **changes)
    store.point_alias("latest", "old")
    log = HandoverLog(layout.store.handovers)

    async def scenario() -> None:
        async with run_replica(layout, max_loaded_bytes=_estimate(tiny_model) + 1) as replica:
            store.point_alias("latest", "broken")
            await wait_until(lambda: "refused" in [one.outcome for one in log.read("latest")])
            assert await _list_ids(replica) == ["old"]
            assert (await _chat(replica, "latest"))[0]["model_id"] == "old"

    asyncio.run(scenario())
    assert [one.outcome for one in log.read("latest")] == outcomes


@pytest.mark.parametrize("fault", ["flipped", "cut"])
def test_a_model_that_does_not_load_is_not_drained_for(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, other_model: Path, fault: str
) -> None:
    store.add(tiny_model, "old")
    damage(store.add(other_model, "damaged").path / "model.safetensors", fault)
    store.point_alias("latest", "old")
    log = HandoverLog(layout.store.handovers)

    async def scenario() -> None:
        one = _estimate(tiny_model) + 1
        async with run_replica(layout, max_loaded_bytes=one) as replica:
            store.point_alias("latest", "damaged")
            await wait_until(lambda: [one.outcome for one in log.read("latest")] == ["refused"])
            assert await _list_ids(replica) == ["old"]
            assert (await _chat(replica, "latest"))[0]["model_id"] == "old"

    asyncio.run(scenario())
    assert [event.outcome for event in log.read("latest")] == ["refused"]


def test_deployment_leaves_no_limit_to_chance() -> None:
    assert Generator.name == "Generator"
    assert Generator.max_ongoing_requests == 128
    assert Generator.max_queued_requests == 128


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("flipped", r"'model\.safetensors' differs from its man"),
        ("cut", r"'damaged' cannot be loaded: .*1 less than its header"),
        ("gone", r"'damaged' .*model\.safetensors"),
    ],
)
def test_a_damaged_model_is_never_loaded_and_the_old_one_answers(
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
    other_model: Path,
    fault: str,
    reason: str,
) -> None:
    store.add(tiny_model, "old")
    damaged = store.add(other_model, "damaged")
    # A damaged weight, which would load without an error.
    damage(damaged.path / "model.safetensors", fault)
    store.point_alias("latest", "old")

    async def scenario() -> None:
        async with run_replica(layout) as replica:
            store.point_alias("latest", "damaged")
            await wait_until(lambda: "latest" in replica._follower._failed)
            assert (await _chat(replica, "latest"))[0]["model_id"] == "old"
            with pytest.raises(EngineDeadError, match=reason):
                await _chat(replica, "damaged")

    asyncio.run(scenario())


def test_a_model_that_answers_is_not_deleted_and_a_deleted_one_is_put_out(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    for model_id in ("a", "b"):
        store.add(tiny_model, model_id)

    async def scenario() -> None:
        async with run_replica(layout) as replica:
            async with aclosing(replica.stream("chat", _ask("a", max_tokens=100), "id")) as answer:
                await anext(answer)
                with pytest.raises(ModelInUseError, match="'a' is loaded by a generator"):
                    store.delete("a")
            await _chat(replica, "b")
            assert await _list_ids(replica) == ["a", "b"]
            store.delete("a")

            async def is_put_out() -> bool:
                return await _list_ids(replica) == ["b"]

            await wait_until(is_put_out)
            with pytest.raises(ModelNotFoundError):
                await _chat(replica, "a")

    asyncio.run(scenario())


def test_what_an_alias_answers_with_is_not_deleted(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    """This holds even while the alias points to another model, which cannot be loaded."""
    store.add(tiny_model, "old")
    _add_broken(store, layout, tiny_model, "broken")
    store.point_alias("latest", "old")

    async def scenario() -> None:
        async with run_replica(layout) as replica:
            store.point_alias("latest", "broken")
            await wait_until(lambda: "latest" in replica._follower._failed)
            with pytest.raises(ModelInUseError, match="'old' is loaded by a generator"):
                store.delete("old")
            assert (await _chat(replica, "latest"))[0]["model_id"] == "old"
        store.delete("old")

    asyncio.run(scenario())


def test_an_alias_that_is_removed_answers_no_more(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "a")
    store.point_alias("stable", "a")

    async def scenario() -> None:
        async with run_replica(layout) as replica:
            assert (await _chat(replica, "stable"))[0]["model_id"] == "a"
            store.remove_alias("stable")

            async def is_gone() -> bool:
                (loaded,) = await replica.loaded_models()
                return not loaded["aliases"]

            await wait_until(is_gone)
            with pytest.raises(ModelNotFoundError, match="'stable'"):
                await _chat(replica, "stable")
            store.delete("a")

    asyncio.run(scenario())


def test_a_model_made_anew_under_an_old_id_answers_for_itself(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, other_model: Path
) -> None:
    store.add(tiny_model, "a")

    async def scenario() -> None:
        # It polls for deleted models so rarely that a request comes first.
        async with run_replica(layout, alias_poll_s=600.0) as replica:
            before, old_text, _ = await _chat(replica, "a")
            store.delete("a")
            store.add(other_model, "a")
            after, new_text, _ = await _chat(replica, "a")
            assert before["system_fingerprint"] != after["system_fingerprint"]
            assert after["system_fingerprint"] == store.get("a").fingerprint
            assert old_text != new_text

    asyncio.run(scenario())


def test_several_answers_come_under_their_numbers(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "a")
    prompts = {"model": "a", "prompt": ["one fox", "two"], "n": 2, "max_tokens": 5, "echo": True}

    async def scenario() -> None:
        async with run_replica(layout) as replica:
            answer = await replica.answer("completion", prompts, "id")
            choices = answer["choices"]
            assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
            assert all(choice["text"].startswith("one fox") for choice in choices[:2])
            assert all(choice["text"].startswith("two") for choice in choices[2:])
            ask = _ask("a", n=3, max_tokens=5)
            items = [item async for item in replica.stream("chat", ask, "id")]
            pieces = [piece for item in items for piece in item["pieces"]]
            ends = [piece for piece in pieces if piece["finish_reason"]]
            assert sorted(piece["index"] for piece in ends) == [0, 1, 2]
            with pytest.raises(InvalidRequestError, match="96 answers are wanted at once"):
                await replica.answer(
                    "completion", {**prompts, "prompt": ["a"] * 6, "n": 16}, "asked"
                )

    asyncio.run(scenario())


def test_a_refused_prompt_is_named(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "a")
    wrong: list[tuple[Any, str]] = [
        ([1] * 200, "has 200 tokens, but the model's context holds 128"),
        ([10**6], "the token id 1000000"),
        ("a" * 128 * 129, "has 16512 characters, but the model's context of 128 tokens"),
    ]

    async def scenario() -> None:
        async with run_replica(layout) as replica:
            for prompt, message in wrong:
                with pytest.raises(InvalidRequestError, match=message) as caught:
                    await replica.answer("completion", {"model": "a", "prompt": prompt}, "id")
                assert caught.value.param == "prompt"

    asyncio.run(scenario())


def test_a_client_that_leaves_ends_all_of_its_answers(
    store: ModelStore, layout: StorageLayout, tiny_model: Path
) -> None:
    store.add(tiny_model, "a")

    async def scenario() -> None:
        async with run_replica(layout) as replica:
            ask = _ask("a", n=4, max_tokens=100)
            task = asyncio.create_task(replica.answer("chat", ask, "id"))

            async def counts(num_active: int) -> bool:
                loaded = await replica.loaded_models()
                return bool(loaded) and loaded[0]["num_active"] == num_active

            await wait_until(lambda: counts(4))
            task.cancel()
            await asyncio.wait([task])
            assert await counts(0)

    asyncio.run(scenario())
