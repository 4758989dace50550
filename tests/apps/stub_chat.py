"""The stub's models and text, as far as chats need them."""

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import anyio
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

if TYPE_CHECKING:
    from tests.apps.stub_api import StubApi

HOSTILE = "<img src=x onerror=alert(1)>"
MAX_CHARACTERS = 1000
HOLD_TIMEOUT_S = 20
WORDS = ("Hello ", "there ", HOSTILE)


def refuse(status: int, message: str, param: str | None = None) -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    return JSONResponse({"error": error}, status)


def add_chat(app: FastAPI, stub: "StubApi") -> None:
    _add_models(app, stub)

    @app.post("/v1/classify", response_model=None)
    async def classify(request: Request) -> Any:
        body = await request.json()
        stub.bodies.append(body)
        if body["model"] != "topics":
            return refuse(404, f"There is no classifier {body['model']!r}")
        labels = [{"label": HOSTILE, "score": 0.75}, {"label": "cold", "score": 0.25}]
        return {"object": "list", "data": [{"index": 0, "labels": labels}]}

    @app.post("/v1/chat/completions", response_model=None)
    async def chat(request: Request) -> Any:
        body = await request.json()
        stub.bodies.append(body)
        stub.keys.append(request.headers.get("authorization"))
        question = body["messages"][-1]["content"]
        if sum(len(message["content"]) for message in body["messages"]) > MAX_CHARACTERS:
            return refuse(400, "the messages have more tokens than the model's context")
        if question == "busy" or body["model"] in stub.busy_models:
            return refuse(429, "all places are taken")
        model = stub.latest if body["model"] == "latest" else body["model"]
        if stub.answering_models:
            model = stub.answering_models.pop(0)
        headers = {"x-model-id": model, **stub.origins.get(model, {})}
        if not body.get("stream"):
            return JSONResponse(_describe_answer(body, model), headers=headers)
        pieces = _stream(stub, body, model)
        return StreamingResponse(pieces, media_type="text/event-stream", headers=headers)


def _add_models(app: FastAPI, stub: "StubApi") -> None:
    @app.get("/v1/models")
    def list_models() -> dict[str, Any]:
        if stub.holds:
            assert stub.holds.pop(0).wait(HOLD_TIMEOUT_S), (
                "the list of models was not released in time"
            )
        tuned = {"id": "base-tuned", "object": "model", "base": False}
        base = {"id": "base", "object": "model", "base": True, "demonstration": True}
        models = [{**model, "aliases": []} for model in (*stub.models, tuned, base)]
        if all(model["id"] != stub.latest for model in models):
            models.insert(0, {"id": stub.latest, "object": "model", "aliases": []})
        for model in models:
            model["aliases"] = ["latest"] if model["id"] == stub.latest else []
        classifier = {"id": "topics", "task": "sequence_classification", "aliases": ["subject"]}
        own = [{"id": name, **model} for name, model in stub.runs.models.items()]
        return {"object": "list", "data": [*models, classifier, *own]}

    @app.get("/v1/files/{file_id}/content", response_model=None)
    def get_content(file_id: str) -> Any:
        if file_id not in stub.contents:
            return refuse(403, "this key may not read files")
        return PlainTextResponse(stub.contents[file_id])


def _choose_words(body: dict[str, Any]) -> tuple[list[str], str]:
    """Return the words of an answer, and why it ends."""
    words = list(WORDS)
    if body.get("continue_final_message"):
        assert body["add_generation_prompt"] is False
        said = body["messages"][-1]["content"]
        while words and said.startswith(words[0]):
            said = said.removeprefix(words.pop(0))
    limit = body.get("max_tokens", 16)
    return words[:limit], "length" if limit < len(words) else "stop"


def _describe_answer(body: dict[str, Any], model: str) -> dict[str, Any]:
    words, reason = _choose_words(body)
    message = {"role": "assistant", "content": "".join(words)}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": model}
    return {**head, "choices": [choice]}


async def _stream(stub: "StubApi", body: dict[str, Any], model: str) -> AsyncIterator[str]:
    words, reason = _choose_words(body)
    try:
        for word in ("", *words):
            chunk = {"model": model, "choices": [{"delta": {"content": word}}]}
            yield f"data: {json.dumps(chunk)}\n\n"
            if word and (held := stub.stream_holds.get(model)) is not None:
                while not held.is_set():
                    await anyio.sleep(0.01)
        if body["messages"][-1]["content"] == "break":
            yield 'data: {"error": {"message": "the model was unloaded"}}\n\n'
            return
        chunk = {"model": model, "choices": [{"delta": {}, "finish_reason": reason}]}
        yield f"data: {json.dumps(chunk)}\n\n"
        usage = {"completion_tokens": len(words), "prompt_tokens": 5, "total_tokens": 8}
        yield f"data: {json.dumps({'model': model, 'choices': [], 'usage': usage})}\n\n"
        yield "data: [DONE]\n\n"
    finally:
        stub.closed_streams += 1
