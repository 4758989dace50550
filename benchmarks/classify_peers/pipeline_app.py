"""The pattern of Ray's tutorials: a `pipeline` in a deployment with `serve.batch`."""

from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import HTTPOptions
from starlette.requests import Request

from benchmarks.classify_peers.model_process import MAX_TOKENS

BATCH_SIZE = 64
BATCH_WAIT_S = 0.01


@serve.deployment(num_replicas=1, max_ongoing_requests=128)
class TextPipeline:
    """A `pipeline` behind HTTP, which classifies the texts of concurrent requests together."""

    def __init__(self, model: str, threads: int) -> None:
        import torch
        from transformers import pipeline

        torch.set_num_threads(threads)
        self._classify: Any = pipeline("text-classification", model=model, top_k=2)

    @serve.batch(max_batch_size=BATCH_SIZE, batch_wait_timeout_s=BATCH_WAIT_S)
    async def classify(self, texts: list[str]) -> list[Any]:
        """Classify texts."""
        found: list[Any] = self._classify(
            texts, batch_size=len(texts), truncation=True, max_length=MAX_TOKENS
        )
        return found

    async def __call__(self, request: Request) -> Any:
        """Answer one request."""
        (text,) = (await request.json())["input"]
        classify: Any = self.classify
        return await classify(text)


def build_app(arguments: dict[str, str]) -> Application:
    """Build the application for `serve run`, on the port in `arguments`."""
    serve.start(http_options=HTTPOptions(host="127.0.0.1", port=int(arguments["port"])))
    deployment: Any = TextPipeline
    application: Application = deployment.bind(arguments["model"], int(arguments["threads"]))
    return application
