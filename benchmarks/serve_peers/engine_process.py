"""transformers' continuous batching, the core of our engine, in a process that receives loads.

It has all our optimisations of the model, but none of the layers above: Serve, HTTP, our engine.
"""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.serve_peers.load import Ask, measure
from serving.cpu.packed_linear import pack_linear_layers
from serving.cpu.paged_attention import use_attention_by_request
from serving.engine.process_settings import prepare_process


@dataclass(frozen=True)
class Settings:
    """The model and the limits of the engine, the same for all contenders with an engine."""

    model: Path
    threads: int
    output_tokens: int
    page_size: int = 32
    num_pages: int = 640
    batch_tokens: int = 512
    running: int = 64


def main(connection: Any, settings: Settings) -> None:
    """Run each load received over the connection and send back its figures, until it is closed."""
    # Built on a thread that ends, like our engine; see `system.threads` for the reason.
    with ThreadPoolExecutor(max_workers=1) as thread:
        engine = thread.submit(Engine, settings).result()
    try:
        asyncio.run(engine.warm_up())
        connection.send("ready")
        while True:
            try:
                load = connection.recv()
            except EOFError:
                return
            asyncio.run(engine.warm_up())  # this process was paused, like the servers
            connection.send(measure(engine.connect, load))
    finally:
        engine.stop()


class Engine:
    """The model and the thread that runs it."""

    def __init__(self, settings: Settings) -> None:
        from transformers import (
            AutoModelForCausalLM,
            AutoTokenizer,
            ContinuousBatchingConfig,
            GenerationConfig,
        )

        prepare_process(settings.threads)
        use_attention_by_request()
        model: Any = AutoModelForCausalLM.from_pretrained(settings.model, dtype="auto").eval()
        pack_linear_layers(model)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(settings.model)
        self._manager = model.init_continuous_batching(
            generation_config=GenerationConfig(
                do_sample=False, eos_token_id=-1, max_new_tokens=settings.output_tokens
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=settings.page_size,
                num_blocks=settings.num_pages,
                max_batch_tokens=settings.batch_tokens,
                max_requests_per_batch=settings.running,
            ),
        )
        self._manager.warmup()
        self._manager.start()
        self._numbers = count()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Ask]:
        """Yield the function that sends one prompt."""
        yield self._ask

    async def warm_up(self) -> None:
        """Answer one prompt."""
        async for _ in self._ask("Hello", False):
            pass

    def stop(self) -> None:
        """End the thread."""
        self._manager.stop(block=True, hard_stop=True)
        self._manager.destroy()

    async def _ask(self, prompt: str, is_streamed: bool) -> AsyncIterator[int]:
        ids = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        outputs: asyncio.Queue[Any] = asyncio.Queue()
        name = f"asked-{next(self._numbers)}"
        self._manager.register_result_handler(name, outputs.put_nowait)
        self._manager.add_request(ids, request_id=name, streaming=is_streamed)
        num_seen = 0
        while True:
            output = await outputs.get()
            if output.error is not None:
                raise RuntimeError(output.error)
            yield len(output.generated_tokens) - num_seen
            num_seen = len(output.generated_tokens)
            if output.is_finished():
                return
