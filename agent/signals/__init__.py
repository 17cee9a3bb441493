"""Gathers what the ranks of an attempt on this host show about themselves, as `..diagnosis` wants it."""

from .look import gather as gather
