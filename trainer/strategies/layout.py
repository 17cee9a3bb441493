"""How the ranks are divided: which take samples of their own, which share layers, and which share a copy."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config
from ..errors import UsageError
from ..world import World


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """This rank's place among the ranks.

    Ranks that share layers (`tensor`) or hold other layers (`stages`) work on the same samples; these groups
    are numbered by `data_rank`, of which there are `data`.
    """

    data: int
    data_rank: int
    tensor: int = 1
    stages: int = 1
    replicas: int = 1
    """Whole copies of the model; used by those strategies that hold more than one, or less."""
    draw: int = 0
    """Number for what is drawn at random: ranks that share a layer draw alike, all others apart."""

    def mesh(self, ranks: int) -> dict[str, int]:
        """How `ranks` ranks are divided: their number is `data` x `tensor` x `pipeline`.

        `data` counts those with samples of their own, and `replicas` the whole copies that these hold, where
        a strategy holds several in shards, else 1.
        """
        return {
            "data": self.data,
            "tensor": self.tensor,
            "pipeline": ranks // (self.data * self.tensor),
            "replicas": self.replicas,
        }

    def __str__(self) -> str:
        """`2 copies x 4 shards`, or nothing where the name of the strategy says it all."""
        if self.replicas > 1:
            return f"{self.replicas} copies x {self.data // self.replicas} shards"
        if self.tensor > 1 and self.data > 1:
            return f"{self.data} shards x {self.tensor} in a layer"
        return f"{self.stages} stages" if self.stages > 1 else ""


def data_parallel(_cfg: Config, world: World) -> Layout:
    """Every rank takes its own samples."""
    return Layout(data=world.size, data_rank=world.rank, draw=world.rank)


def copies_of_shards(cfg: Config, world: World) -> Layout:
    """Every rank takes its own samples; `shard_ranks` that follow each other hold a copy together.

    By default these are the ranks of a host, and on one host half of them. Raises UsageError.
    """
    shard = cfg.shard_ranks or (world.local_size if world.local_size < world.size else world.size // 2)
    many = f"--strategy hsdp on {world.size} ranks"
    if shard < 2 or world.size < 2 * shard:
        raise UsageError(
            f"{many} needs two copies or more, each of two ranks or more, and not {_count(shard)} in a copy; "
            "use fsdp for one copy, ddp for one on each rank"
        )
    if world.size % shard:
        raise UsageError(f"{many}: copies of {shard} ranks do not fit; {_sizes('--shard-ranks', world.size)}")
    return Layout(data=world.size, data_rank=world.rank, replicas=world.size // shard, draw=world.rank)


def shared_layers(_cfg: Config, world: World) -> Layout:
    """All ranks share each layer, and take the same samples. Raises UsageError."""
    if world.size == 1:
        raise UsageError("--strategy tp shares each layer among ranks, and this is one rank: use ddp")
    return Layout(data=1, data_rank=0, tensor=world.size)


def shards_of_shared_layers(cfg: Config, world: World) -> Layout:
    """`tensor_parallel` ranks that follow each other share each layer, 2 by default. Raises UsageError."""
    tensor = cfg.tensor_parallel or 2
    many = f"--strategy fsdp+tp on {world.size} ranks"
    if world.size < 2 * tensor:
        raise UsageError(
            f"{many} needs two groups or more of {tensor} ranks that share layers; use tp for one group, "
            "fsdp for none"
        )
    if world.size % tensor:
        raise UsageError(
            f"{many}: groups of {tensor} that share layers do not fit; "
            + _sizes("--tensor-parallel", world.size)
        )
    group = world.rank // tensor
    return Layout(data=world.size // tensor, data_rank=group, tensor=tensor, draw=group)


def stages(cfg: Config, world: World) -> Layout:
    """Each rank holds layers of its own, and all work on the same samples. Raises UsageError."""
    if world.size == 1:
        raise UsageError("--strategy pp spreads the layers over the ranks, and this is one rank: use ddp")
    per_rank = 2 if cfg.pipeline_schedule == "interleaved" else 1
    return Layout(data=1, data_rank=0, stages=world.size * per_rank, draw=world.rank)


def _count(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def _sizes(flag: str, ranks: int) -> str:
    """What `flag` can be: what divides the ranks into groups of two or more, two groups or more."""
    possible = [str(n) for n in range(2, ranks // 2 + 1) if ranks % n == 0]
    return f"{flag} can be {' or '.join(possible)}" if possible else "no size of them does: use fsdp"
