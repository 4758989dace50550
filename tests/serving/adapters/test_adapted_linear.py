"""Rows of a batch that have different adapters do not influence each other."""

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from serving.adapters.adapted_linear import AdaptedLinear
from serving.adapters.adapter_file import LayerFactors
from serving.adapters.adapter_stacks import AdapterStacks
from serving.adapters.arena import Arena, Layout
from serving.adapters.row_adapters import MAX_STATIC, RowAdapters, StaticRowAdapters
from serving.adapters.stacked_factors import FactorList
from serving.errors import EngineDeadError
from serving.transformers_internals import CudaGraphSets

SIZE = 32
NO_ROOM = Arena([], torch.device("cpu"))


def make_layer(dtype: torch.dtype = torch.float32, *, bias: bool = False) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Linear(SIZE, SIZE, bias=bias).to(dtype).requires_grad_(requires_grad=False)


def make_factors(*, seed: int = 0, magnitude: torch.Tensor | None = None) -> LayerFactors:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(4, SIZE, generator=generator)
    return LayerFactors(a, torch.randn(SIZE, 4, generator=generator), 0.5, magnitude)


class Layer:
    """A layer with adapters; with `is_static`, in tensors that stay in place, as on a GPU."""

    def __init__(
        self, layer: nn.Linear, adapters: dict[int, LayerFactors], *, is_static: bool = False
    ) -> None:
        self._layer = layer
        self.stacks = AdapterStacks(torch.device("cpu"), max_rows=64)
        if is_static:
            self.stacks.rows = StaticRowAdapters(torch.device("cpu"), max_rows=64)
        self.adapted = AdaptedLinear(layer, self.stacks.rows)
        self.loaded = set(adapters)
        for number, factors in adapters.items():
            self.adapted.add(number, factors, NO_ROOM)

    def set_batch(self, spans: list[tuple[int, int]], *, is_endless: bool = False) -> int | None:
        """Set the rows of the next pass; returns the version of the stack."""
        return self.stacks.set_batch(spans, [self.adapted], self.loaded, is_endless=is_endless)

    def compute(self, spans: list[tuple[int, int]], inputs: torch.Tensor) -> torch.Tensor:
        """Compute a pass."""
        self.set_batch(spans)
        found: torch.Tensor = self.adapted(inputs)
        assert found.dtype == self._layer.weight.dtype
        return found


def compute(
    layer: nn.Linear,
    adapters: dict[int, LayerFactors],
    spans: list[tuple[int, int]],
    inputs: torch.Tensor,
) -> torch.Tensor:
    return Layer(layer, adapters).compute(spans, inputs)


@pytest.mark.parametrize("part", ["a", "b", "magnitude"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e300])
def test_values_that_are_not_finite_are_refused(part: str, value: float) -> None:
    layer = make_layer()
    factors = make_factors(magnitude=torch.ones(SIZE))
    tensor: torch.Tensor = getattr(factors, part).double()
    tensor.view(-1)[5] = value
    changed = LayerFactors(**{**factors._asdict(), part: tensor})
    with pytest.raises(EngineDeadError, match=r"^a value of its lora_\w+.* is not finite in float"):
        AdaptedLinear(layer, RowAdapters()).add(1, changed, NO_ROOM)


def test_scale_beyond_the_dtype_is_refused() -> None:
    factors = make_factors()._replace(scale=1e300)
    with pytest.raises(EngineDeadError, match="^a value of its lora_B, scaled, is not finite in "):
        AdaptedLinear(make_layer(), RowAdapters()).add(1, factors, NO_ROOM)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_whose_product_with_another_adapter_overflows_are_exact(dtype: torch.dtype) -> None:
    layer = make_layer(dtype)
    large = torch.finfo(dtype).max / 8
    factors = make_factors()._replace(a=torch.full((4, SIZE), 30.0), b=torch.ones(SIZE, 4) / 64)
    inputs = torch.ones(1, 3, SIZE, dtype=dtype) / 64
    inputs[0, 1] = 0
    inputs[0, 1, :SIZE] = large / 100  # times A: more than the largest number
    alone = layer(inputs)
    found = compute(layer, {1: factors}, [(1, 1), (0, 2)], inputs)
    assert torch.equal(found[:, 1:], alone[:, 1:])
    assert bool(torch.isfinite(found[:, 0]).all())


def test_factors_are_stacked_again_only_for_other_adapters() -> None:
    layer = make_layer()
    factors = {number: make_factors(seed=number) for number in range(1, 6)}
    several = Layer(layer, factors)
    inputs = torch.randn(1, 8, SIZE)
    stacked = []
    for spans in (
        [(1, 2), (2, 2), (3, 2), (4, 2)],
        [(2, 4), (0, 1), (4, 3)],  # half of them
        [(0, 8)],
        [(1, 3), (2, 1), (3, 4)],
        [(3, 8)],  # a quarter
        [(5, 4), (3, 4)],
        [(5, 8)],
    ):
        found = several.compute(spans, inputs)
        start = 0
        for number, count in spans:
            part = inputs[:, start : start + count]
            alone = compute(layer, factors, [(number, count)], part)
            torch.testing.assert_close(found[:, start : start + count], alone)
            start += count
        stacked.append((several.stacks.rows.numbers, several.stacks.version))
    first = ((1, 2, 3, 4), 1)
    assert stacked == [first, first, ((), 1), first, ((3,), 2), ((3, 5), 3), ((3, 5), 3)]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dora_of_other_rows_changes_nothing(dtype: torch.dtype, *, bias: bool) -> None:
    layer = make_layer(dtype, bias=bias)
    if bias:
        layer.bias.data.fill_(100)
    inputs = torch.randn(1, 6, SIZE, dtype=dtype)
    factors = make_factors(magnitude=torch.rand(SIZE) + 0.5)
    found = compute(layer, {1: factors, 2: make_factors(seed=3)}, [(1, 2), (0, 4)], inputs)
    assert torch.equal(found[:, 2:], layer(inputs)[:, 2:])
    assert not torch.equal(found[:, :2], layer(inputs)[:, :2])


def test_dora_of_other_rows_leaves_those_of_lora_as_they_are() -> None:
    layer = make_layer(bias=True)
    layer.bias.data.copy_(torch.linspace(-3, 3, SIZE))
    inputs = torch.randn(1, 6, SIZE)
    lora, others = make_factors(seed=3), make_factors(seed=4)
    spans = [(1, 2), (2, 2), (0, 2)]
    dora = others._replace(magnitude=torch.rand(SIZE) + 0.5)
    beside_lora = compute(layer, {1: others, 2: lora}, spans, inputs)
    beside_dora = compute(layer, {1: dora, 2: lora}, spans, inputs)
    assert torch.equal(beside_dora[:, 2:], beside_lora[:, 2:])
    assert not torch.equal(beside_dora[:, :2], beside_lora[:, :2])


def test_infinite_output_of_a_row_without_an_adapter_stays_infinite() -> None:
    layer = make_layer(torch.float16)
    layer.weight.data.fill_(100)
    inputs = torch.ones(1, 2, SIZE, dtype=torch.float16)
    inputs[:, 1] = 100
    dora = make_factors(magnitude=torch.ones(SIZE))
    found = compute(layer, {1: dora}, [(1, 1), (0, 1)], inputs)
    assert bool(torch.isinf(found[:, 1]).all())
    assert torch.equal(found[:, 1], layer(inputs)[:, 1])


def test_row_of_length_zero_has_no_gain() -> None:
    layer = make_layer()
    layer.weight.data[3] = 0
    factors = make_factors(magnitude=torch.ones(SIZE))
    factors.b[3] = 0
    inputs = torch.randn(1, 2, SIZE)
    found = compute(layer, {1: factors}, [(1, 1), (0, 1)], inputs)
    assert bool(torch.isfinite(found).all())
    assert float(found[0, 0, 3]) == 0


def test_small_gains_of_dora_survive_half_precision() -> None:
    """Gains between 1 and 1.0035 are all 1 in bf16; PEFT keeps the learned lengths in fp32."""
    factors = make_factors()
    layer = make_layer(torch.bfloat16)
    weight = layer.weight.float() + 0.5 * factors.b @ factors.a * 0.01
    factors = factors._replace(a=factors.a * 0.01)
    length = torch.linalg.vector_norm(weight, dim=1)
    magnitude = length * (1 + torch.linspace(0, 0.0035, SIZE))
    inputs = torch.randn(1, 64, SIZE, dtype=torch.bfloat16)
    exact = inputs.float() @ (weight * (magnitude / length)[:, None]).T
    without = inputs.float() @ weight.T

    def measure_share(outputs: torch.Tensor) -> float:
        """Return how much of the effect of the lengths is in the outputs; 1 is all of it."""
        effect = exact - without
        return float(((outputs.float() - without) * effect).sum() / (effect**2).sum())

    spans: Sequence[list[tuple[int, int]]] = ([(1, 64)], [(1, 63), (0, 1)])
    served = [
        compute(layer, {1: factors._replace(magnitude=magnitude)}, one, inputs) for one in spans
    ]
    assert measure_share(served[0]) == pytest.approx(1, abs=0.15)
    assert torch.equal(served[0][:, :63], served[1][:, :63])
    wrapped = nn.Sequential(make_layer(torch.bfloat16))
    config = LoraConfig(r=4, lora_alpha=2, use_dora=True, target_modules=["0"])
    peft = get_peft_model(wrapped, config).eval()
    with torch.no_grad():
        adapted = peft.base_model.model[0]
        adapted.lora_A["default"].weight.copy_(factors.a)
        adapted.lora_B["default"].weight.copy_(factors.b)
        adapted.lora_magnitude_vector["default"].weight.copy_(magnitude)
        expected = peft(inputs)
    assert float((served[0].float() - expected.float()).abs().max()) < 0.05


SPANS: Sequence[list[tuple[int, int]]] = (
    [(1, 2), (2, 3), (0, 3)],
    [(3, 1), (1, 1), (2, 2), (0, 1), (3, 3)],
    [(0, 8)],
    [(2, 8)],
    [(1, 3), (3, 2), (2, 3)],
    [(3, 2), (1, 1)],  # and five rows of padding
)


def make_three() -> dict[int, LayerFactors]:
    """Make adapters, of which the last one is of DoRA."""
    adapters = {number: make_factors(seed=number) for number in (1, 2)}
    return adapters | {3: make_factors(seed=3, magnitude=torch.rand(SIZE) + 0.5)}


def test_recorded_pass_computes_the_rows_of_later_passes() -> None:
    """A record has the tensors of the pass in which it was made, as a CUDA graph has."""
    layer, adapters = make_layer(bias=True), make_three()
    static = Layer(layer, adapters, is_static=True)
    static.set_batch([(1, 1), (2, 1), (3, 1)])
    recorded = make_fx(static.adapted)(torch.zeros(1, 8, SIZE))
    results = []
    inputs = torch.randn(1, 8, SIZE)
    for spans in SPANS:
        version = static.set_batch(spans)
        if version is not None:  # passes of the model itself have graphs of their own
            assert version == 1
            found = recorded(inputs)
            padded = [*spans, (0, 8 - sum(count for _, count in spans))]
            torch.testing.assert_close(found, compute(layer, adapters, padded, inputs))
            assert torch.equal(static.adapted(inputs), found)
            results.append(found)
    assert len(results) == len(SPANS) - 1
    assert not any(torch.equal(one, other) for one, other in pairwise(results))


def test_layouts_of_a_layer_are_listed_once_per_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    num_calls = 0
    list_layouts = FactorList.list_layouts

    def count(factors: FactorList) -> list[Layout]:
        nonlocal num_calls
        num_calls += 1
        return list_layouts(factors)

    monkeypatch.setattr(FactorList, "list_layouts", count)
    layer = Layer(make_layer(), {1: make_factors(), 2: make_factors(seed=1)})
    layer.set_batch([(1, 2), (2, 2)])
    assert num_calls == 1
    layer.set_batch([(1, 2), (2, 2)])
    assert num_calls == 1


def test_padding_rows_have_no_adapter_of_an_earlier_stack() -> None:
    """Previously, they named adapters beyond the end of a smaller stack."""
    layer = make_layer()
    adapters = {number: make_factors(seed=number) for number in range(1, MAX_STATIC + 1)}
    dora = make_factors(magnitude=torch.rand(SIZE) + 0.5)
    static = Layer(layer, {**adapters, 90: dora}, is_static=True)
    inputs = torch.randn(1, 40, SIZE)
    static.compute([(number, 2) for number in adapters], inputs)
    static.loaded -= set(adapters) - {3}
    assert static.set_batch([(90, 1)]) == 2
    assert static.stacks.rows.numbers == (3, 90)
    found = static.adapted(inputs)
    torch.testing.assert_close(found, compute(layer, {90: dora}, [(90, 1), (0, 39)], inputs))


def test_stack_on_a_gpu_keeps_the_adapters_used_last() -> None:
    adapters = {number: make_factors(seed=number) for number in range(1, 25)}
    static = Layer(make_layer(), adapters, is_static=True)
    seen = []
    batches = ([(1, 2), (2, 2)], [(1, 4)], [(0, 4)], [(3, 4)], [(1, 2), (2, 2)])
    for spans in (*batches, [(number, 1) for number in range(4, 20)], [(1, 1)]):
        static.set_batch(spans)
        seen.append((static.stacks.version, static.stacks.rows.numbers))
    three, sixteen = (1, 2, 3), tuple(range(4, 20))
    assert seen[:6] == [(1, (1, 2)), (1, (1, 2)), (1, ()), (2, three), (2, three), (3, sixteen)]
    version, numbers = seen[6]
    assert version == 4
    assert len(numbers) == MAX_STATIC
    assert 1 in numbers
    assert set(numbers) <= {1, *sixteen}


@pytest.mark.parametrize("is_static", [False, True])
def test_unloaded_adapter_leaves_the_stack_with_the_next_batch(is_static: bool) -> None:
    layer, adapters = make_layer(), make_three()
    one = Layer(layer, adapters, is_static=is_static)
    inputs = torch.randn(1, 4, SIZE)
    before = one.compute([(1, 2), (2, 1), (3, 1)], inputs)
    one.loaded.remove(3)
    one.adapted.remove(3)
    torch.testing.assert_close(one.adapted(inputs), before)  # of a pass that is still computed
    expected = compute(layer, adapters, [(1, 2), (2, 2)], inputs)
    torch.testing.assert_close(one.compute([(1, 2), (2, 2)], inputs), expected)
    assert one.stacks.rows.numbers == (1, 2)
    assert one.adapted.stack is not None
    assert one.adapted.stack.ranks == (4, 4)
    # A request that was cancelled may still be in a pass: its rows get the model's own results.
    rest = one.compute([(1, 2), (3, 2)], inputs)
    torch.testing.assert_close(rest, compute(layer, adapters, [(1, 2), (0, 2)], inputs))


def test_all_rows_of_a_pass_of_any_length_can_have_one_adapter() -> None:
    layer, factors = make_layer(), make_factors()
    static = Layer(layer, {1: factors}, is_static=True)
    inputs = torch.randn(1, 100, SIZE)  # more than `max_rows`
    static.set_batch([(1, 1)], is_endless=True)
    found = static.adapted(inputs)
    torch.testing.assert_close(found, compute(layer, {1: factors}, [(1, 100)], inputs))
    few, spans = inputs[:, :4], [(0, 2), (1, 2)]
    expected = compute(layer, {1: factors}, spans, few)
    torch.testing.assert_close(static.compute(spans, few), expected)


@pytest.mark.parametrize("captures_others", [False, True])
def test_graphs_of_adapters_are_kept_apart_from_those_of_the_model(captures_others: bool) -> None:
    plain = SimpleNamespace()
    inputs = SimpleNamespace(graphs=plain)
    runner = SimpleNamespace(use_cuda_graph_varlen=True, use_cuda_graph_decode=False)
    processor = SimpleNamespace(inputs_and_outputs=inputs, model_runner=runner)
    manager: Any = SimpleNamespace(batch_processor=processor)
    graphs = CudaGraphSets(manager, captures_others=captures_others)
    used = []
    for version in (None, 1, 1, None, 1, 2, None, 3):
        graphs.select(version)
        used.append(inputs.graphs)
        assert runner.use_cuda_graph_varlen == (version is None or captures_others)
        assert not runner.use_cuda_graph_decode
    assert [one is plain for one in used] == [True, False, False, True, False, False, True, False]
    assert used[1] is used[2] is used[4]
    assert len({id(used[number]) for number in (1, 5, 7)}) == 3
