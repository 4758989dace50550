"""The functions of a session, and calls of those that were replaced."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import gradio as gr
import pytest
from gradio.state_holder import StateHolder

from apps.ui.gradio_internals import build_without_apps
from apps.ui.protection.route_allowlist import Fault, find_fault
from apps.ui.protection.session_functions import SessionFunctions

SESSION, OTHER = "session", "other"


@pytest.fixture(scope="module")
def blocks() -> gr.Blocks:
    """A page with two functions, of which one session has only the second, as after `gr.render`."""

    async def build() -> gr.Blocks:
        blocks: gr.Blocks
        with build_without_apps(), gr.Blocks() as blocks:
            button = gr.Button()
            for _ in range(2):
                button.click(lambda: None)
        return blocks

    with ThreadPoolExecutor(1) as pool:  # outside an event loop, Gradio leaves one open
        blocks = pool.submit(asyncio.run, build()).result()
    blocks.state_holder = StateHolder()  # type: ignore[no-untyped-call] # as an application sets it
    blocks.state_holder.set_blocks(blocks)
    functions = blocks.state_holder[SESSION].blocks_config.fns
    del functions[min(functions)]
    return blocks


def test_function_that_was_replaced_is_distinguished_from_unknown_ones(blocks: gr.Blocks) -> None:
    functions = SessionFunctions(blocks)
    first, second = sorted(blocks.default_config.fns)
    known = [functions.has(SESSION, one) for one in (first, second, second + 1, -1)]
    assert known == [False, True, False, False]
    replaced = [functions.is_replaced(SESSION, one) for one in (first, second, second + 1, -1)]
    assert replaced == [True, False, False, False]
    assert functions.has(OTHER, first)
    assert not functions.is_replaced(OTHER, first)


def test_call_of_a_replaced_function_is_dropped_without_a_message(blocks: gr.Blocks) -> None:
    functions = SessionFunctions(blocks)
    first, second = sorted(blocks.default_config.fns)

    def find(function: int) -> Fault | None:
        body = json.dumps({"fn_index": function, "session_hash": SESSION, "data": []})
        return find_fault(body.encode(), lambda path: False, functions)

    assert find(first) == Fault([], 422)
    assert find(second) is None
    unknown = find(second + 1)
    assert unknown is not None
    assert (unknown.status, "has no function" in unknown.detail) == (400, True)
