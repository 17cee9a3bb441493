"""Gradients that travel between ranks in fewer bytes, for links that are slower than the GPUs.

Only gradients may be compressed so: loss sums, counts and requests to stop have to stay exact, and do not
travel with them then.
"""

# No postponed annotations here: DistributedDataParallel compares those of a hook with the types themselves.

from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from ..config import Config
from ..errors import UsageError
from ..loss_scale import LossScale
from ..world import World

HEADROOM = 256.0
"""What the norm of all gradients is brought to before it goes into float16, whose largest is 65504."""

FIRST_STEPS = 10
"""Steps without PowerSGD: torch wants two at least, and early gradients are the ones that matter most."""

LOW_RANK = 2
LARGEST = torch.finfo(torch.float16).max

Future: TypeAlias = torch.futures.Future[torch.Tensor]


def check(cfg: Config, world: World) -> None:
    """Raise UsageError when gradients cannot be compressed in that way here."""
    kind = cfg.gradient_compression
    if kind == "bf16" and world.device.type != "cuda":
        raise UsageError(
            "--gradient-compression bf16 needs NCCL, which is for GPUs, and this is a CPU; use fp16 or "
            "powersgd"
        )
    if kind == "powersgd":
        try:
            import numpy  # noqa: F401 - torch draws with it
        except ModuleNotFoundError as error:
            raise UsageError(
                "--gradient-compression powersgd needs numpy in the interpreter of the ranks; install it, or "
                "use fp16"
            ) from error


class Compressor:
    """Adds up a bucket of gradients over the ranks. What comes back is their mean, as without compression."""

    exact_skips = True
    """Whether a bad step leaves no trace in it, so that it can be skipped before the host has seen it."""

    def __init__(self, ranks: int, scaler: LossScale | None) -> None:
        self.ranks = ranks
        self.scaler = scaler

    def hook(self, _state: object, bucket: dist.GradBucket) -> Future:
        """What DistributedDataParallel calls for each bucket."""
        raise NotImplementedError

    def learn(self, norm: torch.Tensor) -> None:
        """Hear the norm of a step's gradients, as sums over all ranks and not scaled."""

    def forget(self) -> None:
        """Drop what was kept from bad gradients."""

    @property
    def scale(self) -> Any:
        """What the gradients are multiplied with, for the scale of the loss."""
        return 1.0 if self.scaler is None else self.scaler.scale


class Half(Compressor):
    """float16 or bfloat16: half the bytes.

    Gradients are sums over all samples here, which may well pass float16's 65504, and later be too small for
    it. The norm of the step before tells where they are. Single ones that pass it nevertheless are cut there,
    unless they are not finite, which has to be seen.
    """

    def __init__(self, kind: torch.dtype, ranks: int, scaler: LossScale | None, device: torch.device) -> None:
        super().__init__(ranks, scaler)
        self.kind = kind
        self.factor = torch.ones((), device=device)
        self.learnt = False
        self.in_use: list[torch.Tensor] = []
        """What a GPU may still be reading on another stream than the one that it came from."""

    def hook(self, _state: object, bucket: dist.GradBucket) -> Future:
        """See `Compressor`. The first step, of whose gradients nothing is known, goes whole."""
        buffer = bucket.buffer()
        if not self.learnt:
            whole: Future = dist.all_reduce(buffer.div_(self.ranks), async_op=True).get_future()
            return whole.then(lambda future: future.value()[0])
        factor = self.factor / self.scale
        self.in_use.append(factor)
        values = buffer.mul_(factor / self.ranks)
        if self.kind is torch.float16:
            values = torch.where(values.isinf(), values, values.clamp(-LARGEST, LARGEST))
        sent: Future = dist.all_reduce(values.to(self.kind), async_op=True).get_future()
        return sent.then(lambda future: buffer.copy_(future.value()[0]).div_(factor))

    def learn(self, norm: torch.Tensor) -> None:
        """See `Compressor`."""
        wanted = torch.exp2(torch.floor(torch.log2(HEADROOM * self.ranks / norm)))
        usable = torch.isfinite(wanted) & (wanted > 0)
        self.factor = torch.where(usable, wanted, self.factor)
        self.learnt = True
        self.in_use.clear()


class PowerSgd(Compressor):
    """Matrices as products of two thin ones; what that leaves out is added to the next step's gradients.

    Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression", NeurIPS 2019.
    """

    exact_skips = False

    def __init__(self, ranks: int, scaler: LossScale | None) -> None:
        super().__init__(ranks, scaler)
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        self.compress = powerSGD_hook.powerSGD_hook
        self.state = powerSGD_hook.PowerSGDState(
            None,
            matrix_approximation_rank=LOW_RANK,
            start_powerSGD_iter=FIRST_STEPS,
            # Else the gradient of a layer that took no part, all zeros, is divided by its norm.
            orthogonalization_epsilon=1e-8,
        )

    def hook(self, _state: object, bucket: dist.GradBucket) -> Future:
        """See `Compressor`."""
        # What is left over for the next step must not depend on the scale of this one.
        bucket.buffer().div_(self.scale)
        future: Future = self.compress(self.state, bucket)
        # Each bucket takes several messages, each sent when the one before is there. Those of two buckets
        # could be sent in another order on another rank, which would add up what does not belong together.
        future.wait()
        return future.then(lambda future: future.value().mul_(self.scale))

    def forget(self) -> None:
        """See `Compressor`."""
        self.state.error_dict.clear()
        self.state.p_memory_dict.clear()
        self.state.q_memory_dict.clear()


def build(cfg: Config, world: World, scaler: LossScale | None) -> Compressor | None:
    """What the options ask for, or None. Raises UsageError."""
    kind = cfg.gradient_compression
    if kind == "none":
        return None
    check(cfg, world)
    if world.size == 1:
        return None
    if kind == "powersgd":
        return PowerSgd(world.size, scaler)
    return Half(torch.bfloat16 if kind == "bf16" else torch.float16, world.size, scaler, world.device)
