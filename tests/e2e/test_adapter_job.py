"""A job whose result is an adapter: trained, served beside its base, continued, and merged."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.conftest import Application
from tests.e2e.test_application import FINAL, HANDBOOK, complete_chat, read_handbook
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

BASE = "tuneserve-demo"
NUM_ROWS = 40


def generate_with_peft(models: Path, adapter: str, question: str) -> str:
    """Return the greedy answer of an adapter that PEFT loads on its base model."""
    tokenizer = AutoTokenizer.from_pretrained(models / adapter)
    plain = AutoModelForCausalLM.from_pretrained(models / BASE)
    model = PeftModel.from_pretrained(plain, str(models / adapter)).eval()
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    out = model.generate(**prompt, max_new_tokens=256, do_sample=False)
    answer = out[0, prompt["input_ids"].size(1) :]
    return str(tokenizer.decode(answer, skip_special_tokens=True))


def finish_job(client: openai.OpenAI, model: str, file_id: str, settings: dict[str, object]) -> str:
    """Run a job to its end; return the id of its model."""
    started = client.fine_tuning.jobs.create(
        model=model,
        training_file=file_id,
        suffix="adapter",
        extra_body={"training": settings},
    )
    job = wait_until(
        lambda: (
            job if (job := client.fine_tuning.jobs.retrieve(started.id)).status in FINAL else None
        ),
        600,
        "the job ends",
    )
    assert job.status == "succeeded", job.error
    return str(job.fine_tuned_model)


def test_adapter_is_trained_served_beside_its_base_and_merged(
    application: Application, http: httpx.Client, tmp_path: Path
) -> None:
    client = application.client
    rows = tmp_path / "adapter-rows.jsonl"
    lines = (HANDBOOK / "train.jsonl").read_text().splitlines()[:NUM_ROWS]
    rows.write_text("\n".join(lines) + "\n")
    file = client.files.create(file=rows, purpose="fine-tune")
    questions = [question for question, _ in read_handbook("train.jsonl")[:4]]
    before = [complete_chat(client, BASE, question) for question in questions]
    settings = {"adapter": {"rank": 8, "export": "adapter"}, "epochs": 2, "learning_rate": 0.005}
    adapter = finish_job(client, BASE, file.id, settings)
    shown = http.get(f"/v1/models/{adapter}").json()
    assert (shown["kind"], shown["base_model"]) == ("adapter", BASE)
    models = application.storage / "models"
    folder = models / adapter
    assert not (folder / "model.safetensors").exists()

    asked = [(model, question) for question in questions for model in (adapter, BASE)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: complete_chat(client, *one), asked))
    assert answers[1::2] == before
    assert answers[::2] == [generate_with_peft(models, adapter, one) for one in questions]
    assert answers[::2] != before

    # A job from the adapter continues it; there is nothing to set.
    continued = finish_job(client, adapter, file.id, {"epochs": 1})
    lineage = http.get(f"/v1/models/{continued}/lineage").json()
    assert (lineage["base_model"], lineage["base_adapter"]) == (BASE, adapter)
    assert lineage["parent"]["run_id"] != lineage["run_id"]
    assert lineage["spec"]["adapter"]["rank"] == 8
    answers_of_continued = [complete_chat(client, continued, one) for one in questions]
    assert answers_of_continued == [generate_with_peft(models, continued, one) for one in questions]

    refused = http.delete(f"/v1/models/{BASE}")
    assert refused.status_code == 409
    assert adapter in refused.json()["error"]["message"]

    merged = http.post(f"/v1/models/{adapter}/merge", json={"model": f"{adapter}-merged"})
    assert (merged.status_code, merged.json()["status"]) == (202, "merging"), merged.text

    def read_merge() -> dict[str, Any]:
        merge: dict[str, Any] = http.get(f"/v1/models/{adapter}/merges").json()["data"][0]
        return merge

    wait_until(lambda: read_merge()["status"] != "merging", 300, "the adapter is merged")
    assert read_merge()["status"] == "succeeded", read_merge()
    assert http.get(f"/v1/models/{adapter}-merged").json()["kind"] == "model"
    assert [complete_chat(client, f"{adapter}-merged", one) for one in questions] == answers[::2]
