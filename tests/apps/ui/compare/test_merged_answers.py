"""Answers of several models, merged into one stream."""

import asyncio
import threading

import pytest

from apps.client.client import ApiClient
from apps.client.text import Sampling
from apps.ui.chat.conversation import Conversation, Question, Turn
from apps.ui.chat.sampling_settings import AnswerSettings
from apps.ui.compare.merged_answers import ColumnStep, MergedAnswers
from tests.apps.stub_api import StubApi, ask
from tests.waiting import wait_until

SETTINGS = AnswerSettings("", Sampling(max_tokens=16), sends_earlier=True)


def make_questions(*names: str, text: str = "hello") -> dict[str, Question]:
    questions = {}
    for name in names:
        before = Conversation(asked_model=name, pointed_id=name)
        questions[name] = Question(before.add(Turn("user", text)), SETTINGS, before)
    return questions


async def collect(client: ApiClient, questions: dict[str, Question]) -> dict[str, list[ColumnStep]]:
    found: dict[str, list[ColumnStep]] = {name: [] for name in questions}
    async for steps in MergedAnswers(client, questions).follow():
        for name, step in steps.items():
            found[name].append(step)
    return found


def test_each_model_answers_its_own_conversation(api: StubApi) -> None:
    found = ask(api, lambda client: collect(client, make_questions("base", "base-tuned")))
    for name, steps in found.items():
        last = steps[-1].conversation
        assert last.turns[-1].text.startswith("Hello there")
        assert last.turns[-1].facts is not None
        assert last.turns[-1].facts.model == last.model_id == name
        assert len(last.turns) == 2


def test_failing_model_does_not_stop_others(api: StubApi) -> None:
    api.busy_models = ["base"]
    found = ask(api, lambda client: collect(client, make_questions("base", "base-tuned")))
    assert "all places are taken" in found["base"][-1].error.lower()
    assert found["base-tuned"][-1].conversation.turns[-1].facts is not None


def test_fast_model_ends_while_slow_one_waits(api: StubApi) -> None:
    held = api.stream_holds["base"] = threading.Event()

    async def follow(client: ApiClient) -> list[str]:
        ended = []
        async for steps in MergedAnswers(client, make_questions("base", "base-tuned")).follow():
            for name, step in steps.items():
                if step.conversation.turns[-1].facts:
                    ended.append(name)
                    held.set()
        return ended

    assert ask(api, follow) == ["base-tuned", "base"]


def test_note_of_first_step_is_not_lost_when_steps_are_merged(api: StubApi) -> None:
    api.answering_models = ["newer"]
    found = ask(api, lambda client: collect(client, make_questions("base-tuned")))
    notes = [step.note for step in found["base-tuned"] if step.note]
    assert notes == ["You asked base-tuned, but newer answered."]


@pytest.mark.parametrize("by_closing", [True, False])
def test_stop_ends_all_streams_at_once(api: StubApi, by_closing: bool) -> None:
    """Also of a model that sends nothing."""
    names = ("base", "base-tuned")
    for name in names:
        api.stream_holds[name] = threading.Event()

    async def follow(client: ApiClient) -> None:
        merged = MergedAnswers(client, make_questions(*names))
        steps, begun = merged.follow(), set[str]()
        while begun != set(names):
            begun |= set(await anext(steps))
        if by_closing:
            await steps.aclose()
        else:
            asyncio.get_running_loop().call_soon(merged.stop)  # while the next step is awaited
            assert [found async for found in steps] == []
        while api.closed_streams < len(names):
            await asyncio.sleep(0.01)

    ask(api, lambda client: asyncio.wait_for(follow(client), 30))
    wait_until(lambda: api.closed_streams == len(names), 20, "the streams are closed")
