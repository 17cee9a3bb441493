"""Imported by its sibling."""

WORD = "imported relatively"
