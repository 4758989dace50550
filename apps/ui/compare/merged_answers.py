"""The answers of several models at once, merged into one stream."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import NamedTuple

from apps.client.client import ApiClient
from apps.client.errors import ApiClientError
from apps.ui.chat.conversation import Conversation, Question, answer
from apps.ui.error_messages import describe_error


class ColumnStep(NamedTuple):
    """The conversation of one model with the answer so far, a note, and why the answer failed."""

    conversation: Conversation
    note: str = ""
    error: str = ""


class MergedAnswers:
    """Answers to one question for each of several names; a failing one does not stop the others."""

    def __init__(self, client: ApiClient, questions: Mapping[str, Question]) -> None:
        self._client = client
        self._questions = questions
        self._steps: asyncio.Queue[tuple[str, ColumnStep] | None] = asyncio.Queue()
        self._num_open = len(questions)

    def stop(self) -> None:
        """End the stream, and so all answers."""
        self._num_open = 0
        self._steps.put_nowait(None)

    async def follow(self) -> AsyncGenerator[dict[str, ColumnStep], None]:
        """Yield the newest steps by name, as soon as there are any.

        Ending or closing this generator closes all streams of the API.
        """
        tasks = [
            asyncio.create_task(self._answer(name, question))
            for name, question in self._questions.items()
        ]
        try:
            while self._num_open > 0:
                newest = self._take_all(await self._steps.get())
                if newest:
                    yield newest
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for result in ended:
            if isinstance(result, Exception):
                raise result

    def _take_all(self, first: tuple[str, ColumnStep] | None) -> dict[str, ColumnStep]:
        """Return the newest of all waiting steps of each name, with the note of the first one."""
        newest: dict[str, ColumnStep] = {}
        waiting = [first]
        while not self._steps.empty():
            waiting.append(self._steps.get_nowait())
        for item in waiting:
            if item is None:
                self._num_open -= 1
                continue
            name, step = item
            earlier = newest.get(name)
            newest[name] = step._replace(note=step.note or (earlier.note if earlier else ""))
        return newest

    async def _answer(self, name: str, question: Question) -> None:
        """Put the steps of one answer, and None at its end, into the queue."""
        current = question.conversation
        try:
            async with aclosing(answer(self._client, question)) as steps:
                async for step in steps:
                    current = step.conversation
                    self._steps.put_nowait((name, ColumnStep(current, step.note)))
        except ApiClientError as exc:
            self._steps.put_nowait((name, ColumnStep(current, error=describe_error(exc))))
        finally:
            self._steps.put_nowait(None)
