"""A module next to the scripts."""

WORD = "found next to the script"
