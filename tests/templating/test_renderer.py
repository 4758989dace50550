import asyncio
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from templating.errors import (
    RenderProcessError,
    TemplateBrokenError,
    TemplateLimitError,
    TemplateRefusedError,
    TemplatingError,
)
from templating.render_fork_server import fork_renderer
from templating.render_process import count_shared
from templating.renderer import AsyncRenderer, BatchRenderer, ChatTemplates, RenderJob, RenderLimits
from tests.process_tree import find_forked

LIMITS = RenderLimits(cpu_s=0.3, memory_bytes=64 << 20)
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
FINE = "{{ messages[0].content }}!"
# Endless for one conversation only.
CONDITIONALLY_ENDLESS = "{% if messages[0].content == 'hang' %}" + ENDLESS + "{% endif %}" + FINE
ENDED = "^the process that renders the chat template has ended$"
DEADLINE_S = 20.0


def job(content: str = "fox", **fields: Any) -> RenderJob:
    plain: RenderJob = {
        "messages": [{"role": "user", "content": content}],
        "tools": None,
        "template": 0,
        "add_generation_prompt": True,
        "with_blocks": False,
    }
    return {**plain, **fields}  # type: ignore[typeddict-item]


@pytest.fixture
def opened() -> Iterator[list[Any]]:
    renderers: list[Any] = []
    yield renderers
    for renderer in renderers:
        renderer.close()


def open_one(opened: list[Any], template: str, limits: RenderLimits = LIMITS) -> AsyncRenderer:
    renderer = AsyncRenderer(ChatTemplates((template,), {"bos_token": "<s>"}), limits)
    opened.append(renderer)
    return renderer


def find_renderers() -> list[psutil.Process]:
    """Return the render processes, which are children of the fork server."""
    return find_forked("templating.render_process")


@pytest.mark.parametrize(
    ("template", "error", "message"),
    [
        (ENDLESS, TemplateLimitError, "took more than 0.3 s of processor time"),
        ("{{ 2 ** (10 ** 9) }}", TemplateLimitError, "took more than 0.3 s"),
        ("{{ 'a' * 2000000000 }}", TemplateLimitError, "needed more than 64 MiB of memory"),
        (
            "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}"
            "{% set ns.x = ns.x + ns.x %}{% endfor %}",
            TemplateLimitError,
            "needed more than 64 MiB of memory",
        ),
        ("{{ 'a' * 5000000 }}", TemplateLimitError, "wrote 5,000,000 characters, more than 1,"),
        ("{{ raise_exception('no jokes') }}", TemplateRefusedError, "no jokes"),
        ("{{ messages[0].content.x.y }}", TemplateRefusedError, "'str object' has no attribute"),
        ("{{ 1 / 0 }}", TemplateRefusedError, "division by zero"),
        (
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            TemplateRefusedError,
            "maximum recursion",
        ),
        ("{% if %}", TemplateBrokenError, "Expected an expression"),
        ("{{ ''.__class__.__mro__ }}", TemplateBrokenError, "access to .* is unsafe"),
    ],
)
def test_forbidden_operation_of_template_raises_error(
    template: str, error: type[TemplatingError], message: str, opened: list[Any]
) -> None:
    renderer = open_one(opened, template)
    with pytest.raises(error, match=f"^{message}"):
        asyncio.run(renderer.render(job()))


def test_killed_render_process_is_replaced(opened: list[Any]) -> None:
    renderer = open_one(opened, CONDITIONALLY_ENDLESS)

    async def scenario() -> None:
        for _ in range(2):
            with pytest.raises(TemplateLimitError):
                await renderer.render(job("hang"))
            assert (await renderer.render(job())).text == "fox!"

    asyncio.run(scenario())


def test_template_does_not_delay_other_models(opened: list[Any]) -> None:
    endless = open_one(opened, ENDLESS, RenderLimits(cpu_s=30))
    fine = open_one(opened, FINE)

    async def scenario() -> None:
        hanging = [asyncio.create_task(endless.render(job())) for _ in range(6)]
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(20):
                assert (await fine.render(job())).text == "fox!"
            # The thread pool that the rest of the process uses beside the event loop.
            await asyncio.gather(*(asyncio.to_thread(int) for _ in range(50)))
        assert not any(task.done() for task in hanging)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)

    asyncio.run(scenario())


def test_cancellation_kills_render_process(opened: list[Any]) -> None:
    renderer = open_one(opened, CONDITIONALLY_ENDLESS, RenderLimits(cpu_s=30))

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await renderer.render(job("hang"))
        async with asyncio.timeout(DEADLINE_S):
            assert (await renderer.render(job())).text == "fox!"
        assert len([one for one in find_renderers() if one.status() != "zombie"]) <= 1 + num_before

    renderer.start()
    num_before = len(find_renderers()) - 1
    asyncio.run(scenario())


def test_close_ends_pending_renderings(opened: list[Any]) -> None:
    renderer = open_one(opened, ENDLESS, RenderLimits(cpu_s=30))
    renderer.start()

    async def scenario() -> None:
        rendering = asyncio.create_task(renderer.render(job()))
        waiting = asyncio.create_task(renderer.render(job()))
        await asyncio.sleep(0)
        renderer.close()
        async with asyncio.timeout(DEADLINE_S):
            for task in (rendering, waiting):
                with pytest.raises(RenderProcessError):
                    await task

    asyncio.run(scenario())


def test_externally_killed_process_raises_process_error(opened: list[Any]) -> None:
    renderer = open_one(opened, FINE)
    before = {one.pid for one in find_renderers()}
    renderer.start()
    (pid,) = {one.pid for one in find_renderers()} - before
    os.kill(pid, signal.SIGKILL)

    async def scenario() -> None:
        with pytest.raises(RenderProcessError, match=ENDED):
            await renderer.render(job())
        assert (await renderer.render(job())).text == "fox!"

    asyncio.run(scenario())


def test_long_messages_and_unusual_characters_are_preserved(opened: list[Any]) -> None:
    renderer = open_one(opened, FINE)
    content = "Grüße 你好 🙂 \ud800 \x00" + "x" * 3_000_000
    assert asyncio.run(renderer.render(job(content))).text == f"{content}!"


def test_batch_results_keep_order_with_rejections(opened: list[Any]) -> None:
    rejecting = "{% if messages[0].content == '3' %}{{ raise_exception('odd') }}{% endif %}" + FINE
    renderer = BatchRenderer(ChatTemplates((rejecting,), {}), LIMITS)
    opened.append(renderer)
    renderer.send([job(str(number)) for number in range(6)])
    found = list(renderer.receive(6))
    assert isinstance(found[3], TemplateRefusedError)
    texts = [getattr(one, "text", None) for one in found]
    assert texts == ["0!", "1!", "2!", None, "4!", "5!"]


TURNS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def render_conversation(num_answers: int, template: str, opened: list[Any], **fields: Any) -> Any:
    """Render a conversation with the prompts of all its answers."""
    messages = [
        {"role": role, "content": f"{role} {number}"}
        for number in range(num_answers)
        for role in ("user", "assistant")
    ]
    renderer = BatchRenderer(ChatTemplates((template,), {}), RenderLimits())
    opened.append(renderer)
    fields = {"add_generation_prompt": False, "turns": list(range(1, 2 * num_answers, 2)), **fields}
    renderer.send([job(messages=messages, **fields)])
    (found,) = renderer.receive(1)
    return found


def cut_answer(found: Any, number: int) -> str:
    """Return the text between the prompt of an answer and the end of the conversation up to it."""
    turn = found.turns[number]
    whole = found.text[: turn.whole.num_shared] + turn.whole.rest
    return str(whole[turn.start :])


def test_answers_are_found_by_text_after_prompt(opened: list[Any]) -> None:
    found = render_conversation(3, TURNS, opened)
    assert [cut_answer(found, number) for number in range(3)] == [
        f"assistant {number}\n" for number in range(3)
    ]
    for turn in found.turns:
        assert turn.prompt.rest == turn.whole.rest == ""
        assert found.text[: turn.prompt.num_shared].endswith("<assistant>")


def test_rewritten_prompt_is_returned_as_rendered(opened: list[Any]) -> None:
    rewriting = "{% if messages | length > 2 %}long{% endif %}" + TURNS
    found = render_conversation(2, rewriting, opened)
    assert found.turns[0].prompt == (0, "<user>user 0\n<assistant>")
    assert cut_answer(found, 0) == "assistant 0\n"
    assert found.turns[1].prompt.rest == ""


def test_answer_is_found_after_text_that_only_prompt_has(opened: list[Any]) -> None:
    opened_reasoning = TURNS.replace("<assistant>{% endif %}", "<assistant><think>{% endif %}")
    found = render_conversation(2, opened_reasoning, opened)
    assert [turn.prompt.rest for turn in found.turns] == ["<think>", "<think>"]
    assert [cut_answer(found, number) for number in range(2)] == ["assistant 0\n", "assistant 1\n"]


def test_answer_in_rewritten_conversation_is_found_by_content(
    opened: list[Any],
) -> None:
    rewriting = "{% for m in messages %}{{ loop.revindex }}{{ m.content }}{% endfor %}"
    found = render_conversation(2, rewriting, opened)
    assert [cut_answer(found, number) for number in range(2)] == ["assistant 0", "assistant 1"]


def test_unrendered_answer_is_not_found(opened: list[Any]) -> None:
    rewriting = "{{ messages | length }}{% for m in messages if m.role == 'user' %}x{% endfor %}"
    assert [turn.start for turn in render_conversation(2, rewriting, opened).turns] == [None, None]


def test_marked_blocks_are_returned_for_each_answer(opened: list[Any]) -> None:
    marked = TURNS.replace(
        "{{ m.content }}", "{% generation %}{{ m.content }}{% endgeneration %}", 1
    )
    found = render_conversation(2, marked, opened, with_blocks=True)
    first, second = (found.turns[number].blocks[-1] for number in range(2))
    assert found.text[slice(*first)] == "assistant 0"
    assert found.text[slice(*second)] == "assistant 1"


def test_prompts_over_total_length_limit_are_rejected(opened: list[Any]) -> None:
    growing = "{{ 'x' * 400000 }}{{ messages | length }}" + TURNS
    assert "set learned_turns to 'last'" in str(
        render_conversation(4, "{{ messages | length }}" + growing, opened)
    )


def test_call_arguments_are_text_if_template_expects_text(opened: list[Any]) -> None:
    call = {"function": {"name": "count", "arguments": {"day": "Monday"}}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    template = "{% for m in messages %}{{ 'a' + m.tool_calls[0].function.arguments }}{% endfor %}"
    renderer = open_one(opened, template)
    assert asyncio.run(renderer.render(job(messages=messages))).text == 'a{"day": "Monday"}'


def test_content_is_parts_if_template_expects_parts(opened: list[Any]) -> None:
    parts = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    assert asyncio.run(open_one(opened, parts).render(job("fox"))).text == "fox"


def test_variables_of_conversation_are_passed_to_template(opened: list[Any]) -> None:
    renderer = open_one(opened, "{{ enable_thinking }}")
    found = asyncio.run(renderer.render(job(variables={"enable_thinking": False})))
    assert found.text == "False"


def test_prefix_rejected_by_template_is_rejected(opened: list[Any]) -> None:
    strict = "{% if messages | length == 3 %}{{ raise_exception('odd') }}{% endif %}" + TURNS
    assert str(render_conversation(3, strict, opened)) == "odd"


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [("", "", 0), ("a", "", 0), ("a", "b", 0), ("ab", "ab", 2), ("abc", "abd", 2), ("a", "abc", 1)],
)
def test_shared_characters_are_counted(first: str, second: str, shared: int) -> None:
    assert count_shared(first, second) == count_shared(second, first) == shared


def test_too_large_conversation_exceeds_memory_limit(opened: list[Any]) -> None:
    """It is not mistaken for an ended process, and later conversations are rendered."""
    renderer = open_one(opened, FINE, RenderLimits(memory_bytes=16 << 20))
    for content in ("x" * 40_000_000, "\U0001d518" * 3_000_000):
        with pytest.raises(TemplateLimitError, match="^needed more than 16 MiB of memory$"):
            asyncio.run(renderer.render(job(content)))
    assert asyncio.run(renderer.render(job())).text == "fox!"


def test_process_that_ends_during_send_raises_process_error(
    opened: list[Any],
) -> None:
    before = {one.pid for one in find_renderers()}
    renderer = BatchRenderer(ChatTemplates((FINE,), {}), RenderLimits(cpu_s=0.1))
    opened.append(renderer)
    (process,) = [one for one in find_renderers() if one.pid not in before]
    process.suspend()
    killing = threading.Timer(0.2, process.kill)  # longer than one conversation may take
    killing.start()
    with pytest.raises(RenderProcessError, match=ENDED):
        renderer.send([job("x" * 5_000_000)])
    killing.join()


def test_marked_blocks_are_returned(opened: list[Any]) -> None:
    marked = "a{% generation %}bc{% endgeneration %}d"
    renderer = open_one(opened, marked)
    rendering = asyncio.run(renderer.render(job(with_blocks=True)))
    assert (rendering.text, rendering.blocks) == ("abcd", [(1, 3)])


def test_template_over_mean_time_limit_is_stopped(opened: list[Any]) -> None:
    slow = "{% for i in range(99999) %}{% endfor %}" * 3
    limits = RenderLimits(cpu_s=0.3, mean_cpu_s=0.0001)
    renderer = BatchRenderer(ChatTemplates((slow,), {}), limits)
    opened.append(renderer)
    renderer.send([job()] * 1000)
    with pytest.raises(
        TemplateLimitError, match="^took .* for .* conversations, more than 0.0001 s each$"
    ):
        list(renderer.receive(1000))


def test_render_process_ends_with_its_client() -> None:
    before = {one.pid for one in find_renderers()}
    connection, pidfd = fork_renderer()
    (renderer,) = [one for one in find_renderers() if one.pid not in before]
    connection.close()
    deadline = time.monotonic() + DEADLINE_S
    while renderer.is_running() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not renderer.is_running()
    os.close(pidfd)


def test_process_that_ends_before_first_conversation_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fork() -> tuple[socket.socket, int]:
        connection, peer = socket.socketpair()
        peer.close()
        return connection, os.pidfd_open(child.pid)

    with subprocess.Popen(["sleep", "60"]) as child:
        monkeypatch.setattr("templating.renderer.fork_renderer", fork)
        with pytest.raises(RenderProcessError, match=ENDED):
            BatchRenderer(ChatTemplates((FINE,), {}), LIMITS)
