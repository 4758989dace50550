"""Metrics count the generator's work, and never affect it."""

from pathlib import Path
from typing import Any

import pytest
from ray.serve.metrics import Counter, Gauge

from serving.metrics import GeneratorMetrics
from serving.store.model_store import ModelStore
from storage.layout import StorageLayout
from tests.serving.conftest import make_request, run_replica, wait_until

ECHO = {"model": "a", "prompt": "one fox", "max_tokens": 0, "echo": True, "logprobs": 1}


@pytest.mark.anyio
async def test_metrics_do_not_change_answers(
    store: ModelStore,
    layout: StorageLayout,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no such tag")

    store.add(tiny_model, "a")
    async with run_replica(layout) as replica:
        # No new token: a counter cannot be increased by zero.
        (choice,) = (await replica.answer(make_request(ECHO))).choices
        assert (choice.text, choice.num_completion_tokens) == ("one fox", 0)
        assert choice.tokens
        # The name of the logger has the word too.
        assert not any("metric" in record.getMessage() for record in caplog.records)
        monkeypatch.setattr(Counter, "inc", fail)
        (choice,) = (await replica.answer(make_request(ECHO))).choices
        assert choice.text == "one fox"
        assert "a metric was not recorded" in caplog.text


@pytest.mark.anyio
async def test_failing_gauge_does_not_stop_alias_polling(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_failed = 0

    def fail(*_: Any, **__: Any) -> None:
        nonlocal num_failed
        num_failed += 1
        raise ValueError("no such tag")

    store.add(tiny_model, "a")
    async with run_replica(layout) as replica:
        await replica.check_health()
        monkeypatch.setattr(Gauge, "set", fail)
        await wait_until(lambda: num_failed >= 3)
        await replica.check_health()


def test_memory_of_evicted_model_becomes_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, float] = {}

    def note(gauge: Gauge, value: float, tags: dict[str, str]) -> None:
        found[tags["model"]] = value

    monkeypatch.setattr(Gauge, "set", note)
    metrics = GeneratorMetrics(log_texts=False)
    metrics.record_sizes({"a": 100, "b": 200})
    metrics.record_sizes({"b": 200})
    assert found == {"a": 0, "b": 200}


@pytest.mark.anyio
async def test_memory_of_loaded_model_is_recorded(
    store: ModelStore, layout: StorageLayout, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[dict[str, int]] = []
    monkeypatch.setattr(
        GeneratorMetrics, "record_sizes", lambda _, sizes: recorded.append(dict(sizes))
    )
    store.add(tiny_model, "a")
    async with run_replica(layout) as replica:
        await replica.answer(make_request(ECHO))
        await wait_until(lambda: any(sizes.get("a", 0) > 1_000_000 for sizes in recorded))
