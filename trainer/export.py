"""The weights of a checkpoint, alone and in one file: `python -m trainer.export CHECKPOINT --to FILE`.

The file is what other programs load: safetensors, or a state_dict of torch, by its ending. It holds the
parameters and buffers under the job's own names, on the CPU, whole, of the type that they were trained in.
The job's file is not needed, nor as many ranks as there were. Weights that are one tensor in the model are in
it under each of their names, so that it can be loaded into any model of that job.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - this is the host's interpreter
    sys.exit("trainer.export: error: needs Python 3.10 or newer, this is " + sys.executable)

import argparse
import importlib.util
import json
import os
import pickle
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .errors import CheckpointError, TrainerError, UsageError
from .folder import MARKER, CheckpointFolder

KINDS = (".safetensors", ".pt", ".pth")
PREFIX = "model."
INSTALL = "pip install safetensors"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What was written. `parameters` are the numbers in all tensors; `left_out` cannot be in such a file."""

    checkpoint: Path
    step: int
    file: Path
    bytes: int
    tensors: int
    parameters: int
    left_out: tuple[str, ...]


def find(word: str, folder: Path | None) -> tuple[Path, int]:
    """The checkpoint that `word` means, and its step.

    It is a path, that of a folder with several, of which the newest is meant, or a step in `folder`. Raises
    UsageError, and CheckpointError when it is incomplete.
    """
    if word.isdigit():
        if folder is None:
            raise UsageError(
                f"step {word} of which run? say --checkpoint-dir, or give the path of the checkpoint"
            )
        path = CheckpointFolder(folder).of(int(word))
    else:
        path = Path(word).expanduser()
    if not path.is_dir():
        raise UsageError(f"there is no checkpoint {path}{_others(path.parent)}")
    step = _step(path)
    if step is not None:
        return path, step
    listing = CheckpointFolder(path).listing()
    if listing.complete:
        step = max(listing.complete)
        return CheckpointFolder(path).of(step), step
    if any(path.glob("*.distcp")):
        raise CheckpointError(f"{path} was not written to its end{_others(path.parent)}")
    raise UsageError(f"{path} has no complete checkpoint")


def _step(path: Path) -> int | None:
    """The step of a complete checkpoint, also of one that has another name now."""
    try:
        said = json.loads((path / MARKER).read_bytes())
        return int(said["step"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _others(folder: Path) -> str:
    complete = sorted(CheckpointFolder(folder).listing().complete) if folder.is_dir() else []
    return f"; complete ones there: {', '.join(f'step-{step}' for step in complete)}" if complete else ""


def check(file: Path, *, force: bool) -> None:
    """Raise UsageError where nothing can be written to `file`, or must not be."""
    if file.suffix not in KINDS:
        raise UsageError(f"--to {file}: the name must end in {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    if file.is_dir():
        raise UsageError(f"--to {file}: that is a folder")
    if not file.parent.is_dir():
        raise UsageError(f"--to {file}: there is no folder {file.parent}")
    if file.exists() and not force:
        raise UsageError(f"{file} is there already; --force overwrites it")
    if file.suffix == ".safetensors" and importlib.util.find_spec("safetensors") is None:
        raise UsageError(
            f"{sys.executable} has no safetensors: {sys.executable} -m {INSTALL}; or export to a .pt file"
        )


def export(checkpoint: Path, step: int, file: Path) -> Exported:
    """Write the weights of `checkpoint` to `file`: all of it or nothing. Raises CheckpointError."""
    import torch

    weights = read(checkpoint)
    left_out: tuple[str, ...] = ()
    if file.suffix == ".safetensors":
        left_out = tuple(name for name, value in weights.items() if not isinstance(value, torch.Tensor))
        weights = {name: value for name, value in weights.items() if name not in left_out}
    partial = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        _write(weights, partial, file.suffix)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(file)
    except OSError as error:
        raise CheckpointError(f"{file} could not be written: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    tensors = [value for value in weights.values() if isinstance(value, torch.Tensor)]
    return Exported(
        checkpoint=checkpoint,
        step=step,
        file=file,
        bytes=file.stat().st_size,
        tensors=len(tensors),
        parameters=sum(value.numel() for value in tensors),
        left_out=left_out,
    )


def read(checkpoint: Path) -> dict[str, Any]:
    """The weights under the job's own names, in the order of the model. Raises CheckpointError."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    if (checkpoint / "state.npz").is_file():
        raise CheckpointError(
            f"{checkpoint} is a checkpoint of TensorFlow, which needs no export: NumPy reads its state.npz, "
            "where the weights' names begin with model/"
        )
    state: dict[str, Any] = {}
    try:
        reader = dcp.FileSystemReader(checkpoint)
        metadata = reader.read_metadata()
        for key, stored in metadata.state_dict_metadata.items():
            if key.startswith(PREFIX):
                is_tensor = isinstance(stored, TensorStorageMetadata)
                state[key] = torch.empty(stored.size, dtype=stored.properties.dtype) if is_tensor else None
        if not state:
            raise CheckpointError(f"{checkpoint} holds no model")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is")  # which is as wanted
            dcp.load(state, storage_reader=reader)
    except dcp.api.CheckpointException as error:
        reason = next(iter(error.failures.values()))[0]
        raise CheckpointError(f"{checkpoint} cannot be read: {reason}") from error
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{checkpoint} cannot be read: {error}") from error
    # What a module adds to its state may be a dictionary: then a checkpoint has the parts of that.
    weights: dict[str, Any] = unflatten_state_dict(state, metadata.planner_data)["model"]
    return weights


def _write(weights: dict[str, Any], path: Path, kind: str) -> None:
    """Write the file. Raises OSError."""
    if kind == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        try:
            # The format is that of torch's tensors: so say the loaders of other libraries that look for it.
            # Nothing else, as safetensors writes two entries in another order each time: equal weights are to
            # be equal files.
            save_file(weights, path, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(str(error)) from error
    else:
        import torch

        with path.open("wb") as stream:
            try:
                torch.save(weights, stream)
            except RuntimeError as error:  # so torch says that it cannot write; why is behind it
                raise OSError(str(error.__context__ or error)) from error


def parser() -> argparse.ArgumentParser:
    """The command line of `python -m trainer.export`."""
    result = argparse.ArgumentParser(
        prog="trainer.export",
        description="Writes the weights of a checkpoint, alone, to one file.",
        epilog="example: python -m trainer.export checkpoints/step-100 --to model.safetensors",
        allow_abbrev=False,
    )
    result.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="its folder, a folder of some (the newest), or a step"
    )
    result.add_argument("--to", required=True, metavar="FILE", help="*.safetensors, or *.pt for torch")
    result.add_argument(
        "--checkpoint-dir",
        metavar="FOLDER",
        help="where the step is; default: $ENCAMP_RUN_DIR/checkpoints, if that is set",
    )
    result.add_argument("--force", action="store_true", help="overwrite the file")
    result.add_argument("--json", action="store_true", help="tell what was written as a JSON object")
    return result


def main(argv: Sequence[str]) -> str | None:
    """Export. Returns what went wrong, or None."""
    args = parser().parse_args(argv)
    run = os.environ.get("ENCAMP_RUN_DIR")
    folder = args.checkpoint_dir or (f"{run}/checkpoints" if run else None)
    file = Path(args.to).expanduser().absolute()
    try:
        check(file, force=args.force)
        checkpoint, step = find(args.checkpoint, Path(folder).expanduser() if folder else None)
        if importlib.util.find_spec("torch") is None:
            raise UsageError(f"{sys.executable} has no torch; use a Python that can import it")
        done = export(checkpoint, step, file)
    except TrainerError as error:
        return f"trainer.export: error: {error}"
    if args.json:
        print(json.dumps(asdict(done), default=str))
        return None
    print(
        f"{done.file}: step {done.step}, {done.tensors} tensors, {done.parameters / 1e6:.2f} M numbers, "
        f"{done.bytes / 1e6:.1f} MB"
    )
    if done.left_out:
        print(f"left out, as they are no tensors: {', '.join(done.left_out)}")
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
