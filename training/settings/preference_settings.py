"""The settings of preference tuning."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

PreferenceLoss = Literal["dpo", "ipo", "orpo", "kto"]
MAX_BETA = 100.0


class PreferenceSettings(BaseModel):
    """The loss of preference tuning and its parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    loss: PreferenceLoss = Field(
        "dpo",
        description="'dpo' and 'ipo' compare two answers by a reference, the model as it starts; "
        "'orpo' needs no reference; 'kto' also learns from single answers with a verdict.",
    )
    beta: float = Field(
        0.1,
        gt=0,
        le=MAX_BETA,
        description="How closely the model stays to the reference: the factor of rewards; of "
        "'ipo', the paper's tau; of 'orpo', the weight of the odds ratio, the paper's lambda.",
    )
    desirable_weight: float = Field(
        1.0, gt=0, le=1000, description="Factor on the loss of good answers, for 'kto' only."
    )
    undesirable_weight: float = Field(
        1.0, gt=0, le=1000, description="Factor on the loss of bad answers, for 'kto' only."
    )
