"""Who reads which log of one host, and how far: what survives a lost connection.

Each reader gets every byte once and in order, whatever the connections in between did: a message that
overlaps what a reader has is cut, one that skips something is announced to it as a gap first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agent import wire

from .log_source import LogSink

log = logging.getLogger(__name__)

Key = tuple[str, int, str]
"""Run, attempt, stream."""


@dataclass(slots=True)
class _Reader:
    sink: LogSink
    next: int
    """The offset of the first byte that it has not seen."""


class Follows:
    """The readers of one host's logs."""

    def __init__(self) -> None:
        self._readers: dict[Key, list[_Reader]] = {}

    def add(self, key: Key, offset: int, sink: LogSink) -> None:
        """Let `sink` have the stream from `offset` on."""
        self._readers.setdefault(key, []).append(_Reader(sink, offset))

    def remove(self, key: Key, sink: LogSink) -> bool:
        """Give a sink nothing more; True when nobody reads that stream any longer."""
        readers = [reader for reader in self._readers.get(key, ()) if reader.sink is not sink]
        if readers:
            self._readers[key] = readers
            return False
        return self._readers.pop(key, None) is not None

    def drop(self, key: Key) -> None:
        """Forget a stream that the host does not have any more."""
        self._readers.pop(key, None)

    def wanted(self) -> Iterator[tuple[Key, int]]:
        """Each stream that somebody reads, and from which offset on it is needed."""
        for key in list(self._readers):
            yield key, self.start(key)

    def start(self, key: Key) -> int:
        """The offset from which on somebody needs this stream."""
        return min(reader.next for reader in self._readers[key])

    def take_log(self, message: wire.Log) -> None:
        """Hand bytes to those who have not had them. Raises WireError when they cannot be decoded."""
        data = wire.payload(message.data)
        end = message.offset + len(data)
        for key, reader in self._of(message):
            if end <= reader.next:
                continue
            start = max(message.offset, reader.next)
            if start > reader.next:
                self._tell(key, reader.sink, reader.sink.gap, reader.next, start)
            reader.next = end
            self._tell(key, reader.sink, reader.sink.data, start, data[start - message.offset :])

    def take_gap(self, message: wire.Gap) -> None:
        """Tell the readers that bytes were left out."""
        for key, reader in self._of(message):
            if message.end > reader.next:
                start, reader.next = reader.next, message.end
                self._tell(key, reader.sink, reader.sink.gap, start, message.end)

    def _of(self, message: wire.Log | wire.Gap) -> list[tuple[Key, _Reader]]:
        key = (message.run, message.attempt, message.stream)
        return [(key, reader) for reader in self._readers.get(key, ())]

    def _tell(self, key: Key, sink: LogSink, call: Callable[..., None], *arguments: object) -> None:
        try:
            call(*arguments)
        except Exception:  # whatever a viewer does wrong, the connection serves others too
            log.exception("a reader of %s failed and gets nothing more", key)
            self.remove(key, sink)
