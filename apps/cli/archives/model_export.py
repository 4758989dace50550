"""`tuneserve models export`: a model as an archive, in another dtype, or as a GGUF file.

The API gives the model as an archive; everything else is done on this machine.
"""

import io
import json
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from apps.cli.connection import DEFAULT_URL, AsJson, Url, run_with_api
from apps.cli.files import save
from apps.cli.output import fail, notes, show, show_size
from apps.client.client import ApiClient
from apps.client.model_resources import Model
from apps.client.models import ArchiveFormat
from model_files.gguf.llama_cpp_tools import (
    CONVERTER_TYPES,
    QUANTISER_TYPES,
    GgufConversionError,
    find_tools,
)
from model_files.weight_headers import ADAPTER_CONFIG_NAME
from storage.durable import MANIFEST_NAME
from system.free_resources import measure_free_disk
from system.library_errors import LibraryError

Result = TypeVar("Result")
_FORMATS: dict[str, ArchiveFormat] = {".tar": "tar", ".zip": "zip"}
_GENERATING_TASK = "causal_lm"
_CONFIG_NAME = "config.json"
_WEIGHTS_ENDING = ".safetensors"
_HEAD_BYTES = 1 << 20  # small files precede the weights in an archive
_ENTRY_BYTES = 1024  # of each file of an archive beside its content, at most
_BITS = {"float32": 32, "bfloat16": 16, "float16": 16}
_LEAST_BITS = 16  # of a weight that is not quantised


class ExportFormat(StrEnum):
    """What a model is converted to."""

    SAFETENSORS = "safetensors"
    GGUF = "gguf"


class WeightDtype(StrEnum):
    """The dtypes of converted weights, keys of `training.model.DTYPES`."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"

    @property
    def num_bits(self) -> int:
        """Bits of one weight."""
        return 32 if self == WeightDtype.FP32 else 16


class _ModelBytes(NamedTuple):
    """The sizes of a model's files in bytes: those with its weights, and the others."""

    num_files: int
    weights: int
    others: int

    @property
    def directory(self) -> int:
        """All files."""
        return self.weights + self.others

    @property
    def archive(self) -> int:
        """An archive of all files, at most."""
        return self.directory + (self.num_files + 2) * _ENTRY_BYTES

    def scale_weights(self, factor: float) -> "_ModelBytes":
        """Return the sizes with weights of another dtype."""
        return self._replace(weights=int(factor * self.weights))


class _Exported(NamedTuple):
    """A model of the API, with the small files at the beginning of its archive."""

    model: Model
    files: Mapping[str, bytes]

    @property
    def is_adapter(self) -> bool:
        return ADAPTER_CONFIG_NAME in self.files

    @property
    def config(self) -> Mapping[str, Any]:
        """Its config.json; empty if it has none."""
        try:
            config = json.loads(self.files.get(_CONFIG_NAME, b"{}"))
        except ValueError as exc:
            fail(f"{_CONFIG_NAME} of model {self.model.id!r} cannot be read: {exc}")
        return config if isinstance(config, dict) else {}

    @property
    def sizes(self) -> _ModelBytes:
        """The sizes that its manifest lists; zeros if that is not at the beginning of the archive.

        The manifest is the first file of an archive; earlier releases sorted it behind the weights
        of an adapter.
        """
        content = self.files.get(MANIFEST_NAME)
        if content is None:
            return _ModelBytes(0, 0, 0)
        try:
            listed = json.loads(content)["files"].items()
            sizes = {name: int(entry["size_bytes"]) for name, entry in listed}
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            fail(f"{MANIFEST_NAME} of model {self.model.id!r} cannot be read: {exc}")
        weights = sum(size for name, size in sizes.items() if name.endswith(_WEIGHTS_ENDING))
        others = sum(sizes.values()) - weights + len(content)
        return _ModelBytes(len(sizes) + 1, weights, others)

    @property
    def num_bits(self) -> int:
        """Bits per weight according to its config.json; if that has none, the least possible."""
        name = self.config.get("dtype") or self.config.get("torch_dtype")
        return _BITS.get(str(name), _LEAST_BITS)


def export(
    model_id: Annotated[str, typer.Argument(help="Id or alias of a model.")],
    output: Annotated[Path, typer.Argument(help="The new .tar, .zip or .gguf file.")],
    to: Annotated[
        ExportFormat | None, typer.Option("--format", help="Convert the model on this machine.")
    ] = None,
    quantize: Annotated[
        str | None,
        typer.Option(help="Type of the weights in GGUF, as in q8_0 or q4_k_m; default: as stored."),
    ] = None,
    dtype: Annotated[
        WeightDtype | None, typer.Option(help="Type of the weights in safetensors.")
    ] = None,
    llama_cpp: Annotated[
        Path | None,
        typer.Option(envvar="TUNESERVE_LLAMA_CPP", help="Folder of llama.cpp; default: PATH."),
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Download a model as one archive, or convert it to another dtype or to GGUF."""
    if quantize is not None and to != ExportFormat.GGUF:
        fail("--quantize needs --format gguf; the weights of safetensors files take --dtype")
    if dtype is not None and to != ExportFormat.SAFETENSORS:
        fail("--dtype needs --format safetensors; the weights of GGUF files take --quantize")
    _check_output(output, to)
    if to == ExportFormat.GGUF:
        _export_gguf(model_id, output, quantize, llama_cpp, url, as_json)
        return
    if dtype is not None:
        _export_dtype(model_id, output, dtype, url)
    else:
        exported = run_with_api(url, lambda api: _inspect(api, model_id))
        _check_space(output, exported.sizes.archive)
        name = exported.model.id
        run_with_api(url, lambda api: fetch_model(api, name, output, _FORMATS[output.suffix]))
    show({"model": model_id, "path": str(output)}, as_json, lambda: f"wrote {output}")


async def fetch_model(
    api: ApiClient, model_id: str, archive: Path, archive_format: ArchiveFormat
) -> None:
    """Download a model as one archive, and show the progress."""
    async with api.models.export(model_id, archive_format) as pieces:
        await save(show_progress("Fetching", pieces), archive)


async def show_progress(what: str, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces unchanged, and show the number of bytes as progress."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), console=notes, transient=True) as bar:
        task = bar.add_task(what, total=None)
        async for piece in pieces:
            bar.advance(task, len(piece))
            yield piece


def unpack_model(url: str, model_id: str, folder: Path) -> Path:
    """Download a model into a folder, and return its directory."""
    archive = folder / f"{model_id}.tar"
    run_with_api(url, lambda api: fetch_model(api, model_id, archive, "tar"))
    try:
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
    except (OSError, tarfile.TarError) as exc:
        fail(f"the archive of {model_id!r} cannot be unpacked: {exc}")
    archive.unlink()
    return folder / model_id


def _check_output(output: Path, to: ExportFormat | None) -> None:
    if to == ExportFormat.GGUF and output.suffix != ".gguf":
        fail(f"{output.name!r}: expected a name that ends in .gguf")
    if to != ExportFormat.GGUF and output.suffix not in _FORMATS:
        advice = "; add --format gguf to convert it" if output.suffix == ".gguf" else ""
        fail(f"{output.name!r}: expected a name that ends in .tar or .zip{advice}")
    if output.exists():
        fail(f"{str(output)!r} already exists; choose another name")
    if not output.parent.is_dir():
        fail(f"there is no folder {str(output.parent)!r}")


def _check_space(output: Path, needed_bytes: int) -> None:
    """End the command if the disk of the new file has less room than the export needs."""
    free_bytes = measure_free_disk(output.parent)
    if needed_bytes > free_bytes:
        fail(
            f"the disk of {str(output)!r} has no room for the export: with its temporary files it "
            f"needs up to {_describe_bytes(needed_bytes)}, {_describe_bytes(free_bytes)} are free; "
            "make room there, or export to another disk"
        )


def _describe_bytes(num_bytes: int) -> str:
    return f"{num_bytes:,} bytes ({show_size(num_bytes)})"


def _measure_dtype_export(exported: _Exported, dtype: WeightDtype) -> int:
    """Return the most bytes that are written at a time.

    First the archive and the unpacked model, then the converted model and its archive. While a file
    is converted it is there twice, which is less than the larger of both.
    """
    sizes = exported.sizes
    converted = sizes.scale_weights(dtype.num_bits / exported.num_bits)
    return max(one.archive + one.directory for one in (sizes, converted))


def _measure_gguf_export(exported: _Exported, quantization: str | None) -> int:
    """Return the most bytes that are written at a time.

    First the archive and the unpacked model, then the unpacked model and the GGUF file; the
    quantiser reads one with unquantised weights, which is removed at its end. The vocabulary in a
    GGUF file is not larger than the files of the tokenizer.
    """
    sizes = exported.sizes
    num_bits = {**CONVERTER_TYPES, **QUANTISER_TYPES}.get(quantization or "", exported.num_bits)
    written = sizes.scale_weights(num_bits / exported.num_bits).directory
    if quantization in QUANTISER_TYPES:
        written += sizes.directory
    return sizes.directory + max(sizes.archive, written)


def _export_dtype(model_id: str, output: Path, dtype: WeightDtype, url: str) -> None:
    exported = run_with_api(url, lambda api: _inspect(api, model_id))
    _check_unquantised(exported)
    _check_space(output, _measure_dtype_export(exported, dtype))
    from serving.store.export import stream_folder  # slow to import
    from training.export.weight_dtype import convert_weights

    name = exported.model.id
    with _work_beside(output) as folder:
        directory = unpack_model(url, name, folder)
        with notes.status(f"Converting to {dtype}"):
            _run_or_fail(lambda: convert_weights(directory, dtype))
            building = folder / output.name
            with building.open("wb") as file:
                for piece in stream_folder(directory, name, _FORMATS[output.suffix]):
                    file.write(piece)
        building.rename(output)


def _export_gguf(
    model_id: str,
    output: Path,
    quantize: str | None,
    llama_cpp: Path | None,
    url: str,
    as_json: bool,
) -> None:
    from transformers.utils.logging import disable_progress_bar  # slow to import, as are these

    from model_files.gguf.conversion import check_architecture, convert_to_gguf
    from model_files.gguf.verification import verify_gguf

    quantization = quantize.lower() if quantize else None
    tools = _run_or_fail(lambda: find_tools(llama_cpp, quantization))
    exported = run_with_api(url, lambda api: _inspect(api, model_id))
    architecture = _find_gguf_architecture(exported)
    with notes.status("Starting llama.cpp's converter"):
        _run_or_fail(lambda: check_architecture(tools, architecture))
    _check_space(output, _measure_gguf_export(exported, quantization))
    disable_progress_bar()
    with _work_beside(output) as folder:
        directory = unpack_model(url, exported.model.id, folder)
        building = folder / output.name
        with notes.status("Converting"):
            done = _run_or_fail(lambda: convert_to_gguf(tools, directory, building, quantization))
        with notes.status("Verifying"):
            report = _run_or_fail(lambda: verify_gguf(done, directory))
        building.rename(output)
    answer = {"model": exported.model.id, "path": str(output), **report.describe()}
    show(answer, as_json, lambda: f"wrote {output}: {report}")


def _find_gguf_architecture(exported: _Exported) -> str:
    """Return the architecture's name in config.json; end the command if GGUF cannot have it."""
    model = exported.model
    if exported.is_adapter:
        fail(
            f"{model.id!r} is an adapter, and GGUF is for complete models: merge it with its base "
            "model first, or export it without --format"
        )
    if model.task != _GENERATING_TASK:
        fail(
            f"the task of {model.id!r} is {model.task}, and GGUF is for models that generate text; "
            "export it without --format"
        )
    _check_unquantised(exported)
    architectures = exported.config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        fail(f"{_CONFIG_NAME} of model {model.id!r} names no 'architectures', which GGUF needs")
    return str(architectures[0])


def _check_unquantised(exported: _Exported) -> None:
    if exported.config.get("quantization_config"):
        fail(
            f"the weights of {exported.model.id!r} are quantised ('quantization_config' in "
            f"{_CONFIG_NAME}), and cannot be converted; export it without --format"
        )


async def _inspect(api: ApiClient, model_id: str) -> _Exported:
    """Read a model's description, and the small files at the beginning of its archive."""
    model = await api.models.get(model_id)
    head = b""
    async with api.models.export(model.id, "tar") as pieces:
        async for piece in pieces:
            head += piece
            if len(head) >= _HEAD_BYTES:
                break
    return _Exported(model, dict(_read_head(head)))


def _read_head(head: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the complete files of a truncated archive."""
    try:
        with tarfile.open(fileobj=io.BytesIO(head), mode="r|") as files:
            for member in files:
                if (file := files.extractfile(member)) is not None:
                    yield member.name.split("/", 1)[-1], file.read()
    except tarfile.ReadError:  # where the archive was cut
        return


@contextmanager
def _work_beside(output: Path) -> Iterator[Path]:
    """Yield a temporary folder on the disk of the output, which can then be renamed.

    An `OSError`, such as that of a full disk, ends the command.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=f".{output.name}-", dir=output.parent) as folder:
            yield Path(folder)
    except OSError as exc:
        fail(exc)


def _run_or_fail(work: Callable[[], Result]) -> Result:
    """Return the result of some work; end the command for what a user or a library caused."""
    try:
        return work()
    except (ValueError, GgufConversionError, LibraryError, OSError) as exc:
        fail(exc)
