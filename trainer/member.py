"""Which of the processes of a training this one is. Torch and TensorFlow count them alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """This rank, and how many there are."""

    rank: int
    local_rank: int
    size: int

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes what is written once."""
        return self.rank == 0
