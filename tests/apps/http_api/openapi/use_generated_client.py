"""Use of a client generated from the API's description; runs in the generator's environment.

Arguments: the folder of the generated package, the address of the application.
"""

import io
import sys


def use(url: str) -> None:
    from client import Client, models
    from client.api.aliases import promote, roll_back
    from client.api.chat import complete_chat
    from client.api.completions import complete_text
    from client.api.files import list_files, preview_file, upload_file
    from client.api.fine_tuning import cancel_job, clone_job, create_job, list_events, list_jobs
    from client.api.models import list_models, put_model
    from client.types import File

    client = Client(base_url=url)
    (model,) = list_models.sync(client=client).data
    assert model.id == "tiny"
    rows = b'{"prompt": "How many loaves?", "completion": "Twelve."}\n'
    form = models.UploadFileBody(
        file=File(io.BytesIO(rows), "rows.jsonl", "text/plain"),
        purpose=models.UploadFileBodyPurpose.FINE_TUNE,
    )
    file = upload_file.sync(client=client, body=form)
    assert file.bytes_ == len(rows)
    assert [each.id for each in list_files.sync(client=client).data] == [file.id]
    assert preview_file.sync(file.id, client=client).num_rows == 1
    request = models.FineTuneRequest(
        model="tiny",
        training_file=file.id,
        hyperparameters=models.Hyperparameters(n_epochs=2),
        metadata=models.FineTuneRequestMetadataType0.from_dict({"team": "ovens"}),
    )
    job = create_job.sync(client=client, body=request)
    assert (job.status, job.training["epochs"]) == ("queued", 2)
    clone = clone_job.sync(job.id, client=client, body=models.FineTuneChanges(suffix="again"))
    assert {each.id for each in list_jobs.sync(client=client).data} == {job.id, clone.id}
    assert cancel_job.sync(job.id, client=client).status == "cancelled"
    assert list_events.sync(job.id, client=client).data[0].object_ == "fine_tuning.job.event"
    alias = promote.sync("production", client=client, body=models.Promotion(model="tiny"))
    assert alias.history[0].model == "tiny"
    error = roll_back.sync("production", client=client)
    assert (error.error.param, error.error.code) == ("name", "not_found")
    turn = models.ChatMessage(role=models.ChatMessageRole.USER, content="one two")
    part = models.TextPart(type_="text", text="one two")
    parts = models.ChatMessage(role=models.ChatMessageRole.USER, content=[part])
    for message in (turn, parts):
        chat = models.ChatCompletionRequest(model="latest", messages=[message], stop="x")
        answer = complete_chat.sync(client=client, body=chat)
        assert answer.choices[0].message.role == "assistant"
    for prompt in ("one two", "one"):
        body = models.CompletionRequest(model="latest", prompt=prompt, stop=["x"])
        assert complete_text.sync(client=client, body=body).choices[0].text
    refused = put_model.sync("mine", client=client, body=File(io.BytesIO(b"no archive")))
    assert refused.error.type_ == "invalid_request_error"


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    use(sys.argv[2])
