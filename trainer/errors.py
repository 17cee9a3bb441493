"""What stops a training run, as exceptions whose text is for the user."""

from __future__ import annotations


class TrainerError(Exception):
    """Base of everything below: the text says what is wrong and what to do."""


class UsageError(TrainerError):
    """The options do not fit each other, the job or this machine. Every rank finds the same fault."""


class JobError(TrainerError):
    """A job file breaks the contract."""


class CheckpointError(TrainerError):
    """A checkpoint cannot be read, or does not belong to this model."""


class ClusterError(TrainerError):
    """Processes that a training needs are gone, or have never come."""


class WorkerError(TrainerError):
    """A process that prepares data has died."""


class NonFiniteError(TrainerError):
    """The loss or the gradients are NaN or infinite. Raised by every rank at the same step."""


CAN_SKIP = "; to leave such steps out instead: --on-nan skip, or on_nan in [train]"
"""What it says besides where training stops at the first bad step."""
