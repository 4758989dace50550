"""The part of a spec that describes an adapter, which is trained in place of all weights."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from training.settings.fault_messages import show_value

_MAX_MODULES = 256
_MAX_CHARACTERS = 200
AUTO_TARGETS = ("auto", "all-linear")


def _check_targets(value: Any) -> Any:
    if isinstance(value, str) and value not in AUTO_TARGETS:
        raise ValueError(
            f"target_modules is {show_value(value)}, expected 'auto', 'all-linear', or a list of "
            'names of modules, as in ["q_proj", "v_proj"]'
        )
    return value


def _check_names(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) > _MAX_MODULES:
        raise ValueError(f"expected at most {_MAX_MODULES} modules, got {len(names)}")
    if faulty := [name for name in names if not 0 < len(name) <= _MAX_CHARACTERS]:
        raise ValueError(
            f"found {show_value(faulty[0])}, expected names of 1 to {_MAX_CHARACTERS} characters"
        )
    return names


def _check_given(value: Any) -> Any:
    if isinstance(value, tuple | list) and not value:
        raise ValueError(
            "target_modules is empty, expected 'auto', 'all-linear', or a list of names"
        )
    return value


_Names = Annotated[tuple[str, ...], AfterValidator(_check_names)]


class AdapterSettings(BaseModel):
    """An adapter of low rank: what is added to some layers, and learned while they are frozen.

    The output of an adapted layer is W x + s B A x, with A of `rank` rows and B of `rank` columns.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    method: Literal["lora", "dora", "rslora"] = Field(
        "lora",
        description="'lora' (arXiv 2106.09685); 'dora', which also learns the lengths of the "
        "weights' rows (arXiv 2402.09353); 'rslora', whose scale is alpha / √rank "
        "(arXiv 2312.03732).",
    )
    rank: int = Field(8, ge=1, le=4096, description="Rank of the adapter's matrices.")
    alpha: float | None = Field(
        None,
        gt=0,
        le=65536,
        description="Scale of the adapter: 's' is alpha / rank. Default: twice the rank.",
    )
    init: Literal["default", "pissa", "olora"] = Field(
        "default",
        description="Values that the adapter starts from: 'default', random ones and zeros; "
        "'pissa', the largest singular values of each weight (arXiv 2404.02948); 'olora', a QR "
        "decomposition of it (arXiv 2406.01775).",
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of the adapter's input.")
    target_modules: Annotated[
        Literal["auto", "all-linear"] | Annotated[_Names, BeforeValidator(_check_given)],
        BeforeValidator(_check_targets),
    ] = Field(
        "auto",
        description="Layers with an adapter: 'auto', the linear layers of the model's repeated "
        "blocks; 'all-linear', all except the head; or the ends of their names.",
    )
    export: Literal["adapter", "merged"] = Field(
        "adapter",
        description="What the run leaves: the 'adapter' in PEFT's layout, or a complete model with "
        "the adapter 'merged' into its weights.",
    )
    modules_to_save: _Names = Field(
        (),
        description="Modules that are learned whole, and are part of the adapter: the ends of "
        "their names. The head of a classifier always is.",
    )

    @model_validator(mode="after")
    def _check_init(self) -> Self:
        if self.method == "dora" and self.init != "default":
            raise ValueError(
                f"init is {self.init!r} and method is 'dora', whose learned lengths PEFT does not "
                "keep for it: set init to 'default', or method to 'lora' or 'rslora'"
            )
        return self

    @property
    def scale_numerator(self) -> float:
        """The value of `alpha`, or its default."""
        return 2.0 * self.rank if self.alpha is None else self.alpha
