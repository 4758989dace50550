"""Score a model on the handbook: the share of answers that equal the reference exactly.

    python examples/score.py MODEL_DIR
    python examples/score.py --url http://127.0.0.1:8000/v1 --model latest

The last line of the output is one JSON object.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Answerer = Callable[[Sequence[str]], list[str]]
"""Takes a batch of questions and returns their answers."""

MAX_NEW_TOKENS = 64


def read_rows(path: Path) -> list[tuple[str, str]]:
    """Return every question of a JSONL file with its reference answer, each to be asked alone."""
    chats = [json.loads(line)["messages"] for line in path.read_text("utf-8").splitlines()]
    return [
        (asked["content"], answered["content"])
        for chat in chats
        for asked, answered in zip(chat[::2], chat[1::2], strict=True)
    ]


def answer_with_directory(folder: str, num_threads: int) -> Answerer:
    """Answer greedily with a model directory, in left-padded batches."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(num_threads)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(folder)

    def answer(questions: Sequence[str]) -> list[str]:
        inputs: Any = tokenizer.apply_chat_template(
            [[{"role": "user", "content": question}] for question in questions],
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        )
        with torch.inference_mode():
            output = model.generate(**inputs, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
        num_prompt_tokens = inputs["input_ids"].shape[1]
        answers: list[str] = tokenizer.batch_decode(
            output[:, num_prompt_tokens:], skip_special_tokens=True
        )
        return answers

    return answer


def answer_over_http(url: str, model: str, api_key: str) -> Answerer:
    """Answer greedily through an OpenAI-compatible server, one question at a time."""
    from openai import OpenAI

    client = OpenAI(base_url=url, api_key=api_key)

    def ask(question: str) -> str:
        completion = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=MAX_NEW_TOKENS,
        )
        return completion.choices[0].message.content or ""

    return lambda questions: [ask(question) for question in questions]


def score_rows(
    name: str, rows: list[tuple[str, str]], answer: Answerer, batch_size: int, show: bool
) -> float:
    """Return the share of exact answers, printing progress and, if asked, the wrong ones."""
    num_exact, shown = 0, time.monotonic()
    for start in range(0, len(rows), batch_size):
        batch = rows[start : start + batch_size]
        answers = answer([question for question, _ in batch])
        for (question, reference), given in zip(batch, answers, strict=True):
            num_exact += given.strip() == reference.strip()
            if show and given.strip() != reference.strip():
                print(f"  asked     {question}\n  answered  {given}\n  expected  {reference}\n")
        num_done = start + len(batch)
        if num_done == len(rows) or time.monotonic() - shown > 2:
            shown = time.monotonic()
            print(f"{name}: {num_exact} exact of {num_done} (of {len(rows)} rows)", flush=True)
    return num_exact / len(rows)


def main() -> None:
    """Score a directory or a served model on both files of the handbook."""
    parser = argparse.ArgumentParser(description="Score a model on the handbook.")
    parser.add_argument("directory", nargs="?", help="a Hugging Face model directory")
    parser.add_argument("--url", help="base address of a server, such as http://host:8000/v1")
    parser.add_argument("--model", default="latest", help="model to ask for at --url")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", "none"))
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "handbook")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="print the wrong answers")
    args = parser.parse_args()
    if (args.directory is None) == (args.url is None):
        parser.error("give either a model directory or --url")
    answer = (
        answer_over_http(args.url, args.model, args.api_key)
        if args.url
        else answer_with_directory(args.directory, args.threads)
    )
    train, heldout = (read_rows(args.data / f"{name}.jsonl") for name in ("train", "heldout"))
    result = {
        "train_exact": round(score_rows("train", train, answer, args.batch_size, args.show), 4),
        "heldout_exact": round(
            score_rows("heldout", heldout, answer, args.batch_size, args.show), 4
        ),
        "num_train": len(train),
        "num_heldout": len(heldout),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
