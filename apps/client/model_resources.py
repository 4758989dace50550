"""Responses about models, their transfers from and to the hub, and aliases."""

from collections.abc import Mapping

from apps.client.resources import Resource


class Model(Resource):
    """A model for chat and fine-tuning."""

    id: str
    created: int = 0
    aliases: tuple[str, ...] = ()
    task: str = "causal_lm"
    base: bool = False
    demonstration: bool = False
    run_id: str | None = None
    checkpoint_step: int | None = None
    kind: str = "model"
    base_model: str | None = None
    bytes: int = 0
    tuned_from: str | None = None
    data: str | None = None
    metrics: Mapping[str, float] = {}


class WorkProblem(Resource):
    """Why work on a model failed, as the error of a request with this status."""

    status: int = 500
    message: str = ""
    code: str | None = None


class ModelMerge(Resource):
    """A merge of an adapter into the new model `id`, in progress or ended."""

    id: str
    adapter: str
    status: str
    error: WorkProblem | None = None

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.status == "merging"


class HubPermissions(Resource):
    """Patterns of what may be installed from the hub, and where models may be pushed."""

    install: tuple[str, ...] = ()
    push: tuple[str, ...] = ()


class HubTransfer(Resource):
    """An installation of a model from the hub (`kind` is 'install'), or a push of one to it."""

    id: str
    kind: str = "install"
    model: str = ""
    repository: str = ""
    revision: str | None = None
    commit: str | None = None
    created: int = 0
    step: str = ""
    bytes: int = 0
    total_bytes: int | None = None
    status: str
    url: str | None = None
    error: WorkProblem | None = None

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.status == "running"


class AliasMove(Resource):
    """A move of an alias; `model` is None if the alias was removed."""

    model: str | None = None
    at: int = 0
    rollback: bool = False


class ModelAlias(Resource):
    """A name that points to a model, and its moves, oldest first.

    `rollback_to` is the model that a rollback would point it to; None if there is none.
    """

    id: str
    model: str
    rollback_to: str | None = None
    history: tuple[AliasMove, ...] = ()


class AliasEvent(Resource):
    """What one replica of the generator did when an alias moved."""

    alias: str = ""
    outcome: str = ""
    model: str = ""
    before: str | None = None
    message: str = ""
    at: int = 0


class CardFile(Resource):
    """A file of a model as it was published."""

    name: str
    bytes: int = 0


class ModelCard(Resource):
    """The content of a model; None for what is unknown."""

    id: str
    text: str | None = None
    license: str | None = None
    files: tuple[CardFile, ...] = ()
    fault: str | None = None
    num_parameters: int | None = None
    dtype: str | None = None
    architecture: str | None = None
    context_length: int | None = None
    rank: int | None = None
