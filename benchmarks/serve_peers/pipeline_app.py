"""The pattern of Ray's tutorials: a `pipeline` in a deployment, one request at a time."""

from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import HTTPOptions
from starlette.requests import Request


@serve.deployment(num_replicas=1, max_ongoing_requests=100)
class TextGenerator:
    """A `pipeline` behind HTTP."""

    def __init__(self, model: str, threads: int, output_tokens: int) -> None:
        import torch
        from transformers import pipeline

        torch.set_num_threads(threads)
        self._output_tokens = output_tokens
        self._generate: Any = pipeline("text-generation", model=model, dtype="auto")

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Answer one chat request."""
        messages = (await request.json())["messages"]
        answers = self._generate(messages, max_new_tokens=self._output_tokens, do_sample=False)
        text = answers[0]["generated_text"][-1]["content"]
        # The pipeline does not report the number of tokens; the model has no end-of-sequence token.
        return {"text": text, "usage": {"completion_tokens": self._output_tokens if text else 0}}


def build_app(arguments: dict[str, str]) -> Application:
    """Build the application for `serve run`, on the port in `arguments`."""
    serve.start(http_options=HTTPOptions(host="127.0.0.1", port=int(arguments["port"])))
    deployment: Any = TextGenerator
    application: Application = deployment.bind(
        arguments["model"], int(arguments["threads"]), int(arguments["output_tokens"])
    )
    return application
