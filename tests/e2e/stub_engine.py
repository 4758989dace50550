"""A stub engine for Ray's LLM support that needs no GPU and answers with the path of its model."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from ray.llm._internal.serve.core.engine.protocol import LLMEngine
from ray.serve.llm import LLMConfig
from ray.serve.llm.openai_api_models import ChatCompletionResponse

LOADING_S = 5.0


class StubEngine(LLMEngine):
    """An engine that answers chats with its model's path; 'slow' takes `LOADING_S` to load."""

    def __init__(self, llm_config: LLMConfig) -> None:
        self._loading: Any = llm_config.model_loading_config

    async def start(self) -> None:
        await asyncio.sleep(LOADING_S if self._loading.model_id == "slow" else 0)

    async def chat(  # type: ignore[override] # Ray's declaration has no `yield` that says so
        self, request: Any, raw_request_info: Any = None
    ) -> AsyncGenerator[Any, None]:
        words = [f"{self._loading.model_source} ", "said."]
        common = {"id": "chatcmpl-stub", "created": 1, "model": self._loading.model_id}
        if not request.stream:
            message = {"role": "assistant", "content": "".join(words)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
            yield ChatCompletionResponse(**common, choices=[choice], usage=usage)
            return
        for word in words:
            choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
            chunk = {**common, "object": "chat.completion.chunk", "choices": [choice]}
            yield f"data: {json.dumps(chunk)}\n\n"
        yield "data: [DONE]\n\n"

    async def check_health(self) -> None:
        return None

    def routing_stats(self) -> dict[str, Any]:
        return {}

    async def resolve_lora(self, lora_model: Any) -> None:
        raise NotImplementedError

    async def completions(self, request: Any, raw_request_info: Any = None) -> Any:
        raise NotImplementedError

    async def embeddings(self, request: Any, raw_request_info: Any = None) -> Any:
        raise NotImplementedError

    async def transcriptions(self, request: Any, raw_request_info: Any = None) -> Any:
        raise NotImplementedError

    async def reset_prefix_cache(self) -> None:
        raise NotImplementedError
