"""Imports its sibling."""

import sibling

print(sibling.WORD, sibling.__file__)
