"""The real application with an upstream, tested with OpenAI's own client."""

from collections.abc import Iterator

import openai
import psutil
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from benchmarks.application import find_free_port, write_deploy_file
from serving.store.model_store import ModelStore
from storage.layout import open_storage
from tests.e2e.conftest import ROOT, Application, start_application
from tests.process_tree import find_descendants, read_command
from tests.stub_server import StubServer, refuse, serve_stub
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long]

CHAT: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def stub() -> Iterator[StubServer]:
    with serve_stub() as stub:
        stub.models = ["tuneserve-demo"]
        yield stub


@pytest.fixture(scope="module")
def relaying(tmp_path_factory: pytest.TempPathFactory, stub: StubServer) -> Iterator[Application]:
    folder, port = tmp_path_factory.mktemp("relaying"), find_free_port()
    deploy = write_deploy_file(ROOT / "deploy.yaml", folder, port, upstreams=[stub.url])
    application = start_application(deploy, folder, port)
    yield application
    application.stop()


def test_upstream_answers_without_generator(relaying: Application, stub: StubServer) -> None:
    completions = relaying.client.chat.completions
    answer = completions.with_raw_response.create(model="latest", messages=CHAT)
    completion = answer.parse()
    assert completion.choices[0].message.content == "one two "
    assert completion.model == answer.headers["x-model-id"] == "tuneserve-demo"
    store = ModelStore(open_storage(relaying.storage))
    assert completion.system_fingerprint == store.get("tuneserve-demo").fingerprint
    assert stub.asked[-1]["model"] == "tuneserve-demo"
    root = psutil.Process(relaying.process.pid)
    titles = [read_command(replica) for replica in find_descendants("ServeReplica:", root)]
    assert titles
    assert not [title for title in titles if "Generator" in title]


def test_upstream_stream_is_relayed_and_ends_with_client(
    relaying: Application, stub: StubServer
) -> None:
    stream = relaying.client.chat.completions.create(model="latest", messages=CHAT, stream=True)
    assert [chunk.choices[0].delta.content for chunk in stream] == ["one ", "two "]
    stub.words, stub.delay_s = ["x"] * 1000, 0.05
    with relaying.client.chat.completions.create(
        model="latest", messages=CHAT, stream=True
    ) as stream:
        assert next(stream).choices[0].delta.content == "x"
        assert stub.num_open == 1
    wait_until(lambda: stub.num_open == 0, 10, "the upstream stops generating")
    stub.words, stub.delay_s = ["one ", "two "], 0.0


def test_errors_raise_exceptions_of_openai_client(relaying: Application, stub: StubServer) -> None:
    completions = relaying.client.chat.completions
    with pytest.raises(openai.NotFoundError, match="'nobody'"):
        completions.create(model="nobody", messages=CHAT)
    stub.refusal = refuse(429, "too many")
    with pytest.raises(openai.RateLimitError, match="too many"):
        completions.create(model="latest", messages=CHAT)
    stub.refusal = refuse(400, "not like this")
    with pytest.raises(openai.BadRequestError, match="not like this"):
        completions.create(model="latest", messages=CHAT)
    stub.refusal = None
