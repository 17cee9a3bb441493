"""What `encamp logs` does: read or follow the streams that were chosen, and bring their bytes to stdout."""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ..fleet.errors import HostError
from ..fleet.log_stream import LogStream
from . import output
from .find_run import open_run
from .log_choice import choose
from .terminal import Harmless

LONGEST_LINE = 16 * 1024 * 1024
"""A line of more bytes is broken when logs are merged: it would have to be kept whole."""


async def print_logs(args: argparse.Namespace) -> int:
    """Write the log to stdout."""
    async with open_run(args) as found:
        attempt = found.run.attempt if args.attempt is None else args.attempt
        streams, unheard = await choose(args, found, attempt)
        if args.json:
            parts = await asyncio.gather(*(_collect(args, stream) for stream in streams))
            state = found.current().state if attempt == found.run.attempt else None
            output.print_json({"run": found.id, "attempt": attempt, "state": state, "streams": parts})
        else:
            await _write(_merge(args, streams) if args.merged else _chunks(args, streams[0]))
    return HostError.exit_code if unheard else 0


async def _start(args: argparse.Namespace, stream: LogStream) -> int:
    return 0 if args.tail is None else await stream.tail(args.tail)


async def _chunks(
    args: argparse.Namespace, stream: LogStream, start: int | None = None
) -> AsyncGenerator[bytes, None]:
    if start is None:
        start = await _start(args, stream)
    async with aclosing(stream.follow(start) if args.follow else stream.read(start)) as chunks:
        async for data in chunks:
            yield data


async def _merge(args: argparse.Namespace, streams: list[LogStream]) -> AsyncGenerator[bytes, None]:
    """The lines of all streams as they come, each with its rank in front."""
    lines: asyncio.Queue[bytes] = asyncio.Queue(maxsize=2 * len(streams))

    async def pump(stream: LogStream) -> None:
        prefix = f"[rank {stream.stream[4:]}] ".encode()
        rest = b""
        async with aclosing(_chunks(args, stream)) as chunks:
            async for data in chunks:
                whole, newline, rest = (rest + data).rpartition(b"\n")
                if newline or len(rest) > LONGEST_LINE:
                    text = whole if newline else rest
                    rest = rest if newline else b""
                    await lines.put(b"".join(prefix + line + b"\n" for line in text.split(b"\n")))
        if rest:
            await lines.put(prefix + rest + b"\n")

    pumps = [asyncio.create_task(pump(stream)) for stream in streams]
    ended = asyncio.gather(*pumps)
    try:
        while not (ended.done() and lines.empty()):
            line = asyncio.ensure_future(lines.get())
            await asyncio.wait((line, ended), return_when=asyncio.FIRST_COMPLETED)
            if line.done():
                yield line.result()
            else:
                line.cancel()
        await ended
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, ended, return_exceptions=True)


async def _write(chunks: AsyncGenerator[bytes, None]) -> None:
    """Write to stdout in a thread: a pager that takes nothing must not keep the connection from living."""
    stdout = sys.stdout.fileno()
    harmless = Harmless() if os.isatty(stdout) else None
    async with aclosing(chunks) as pieces:
        async for data in pieces:
            await asyncio.to_thread(_write_all, stdout, harmless.feed(data) if harmless else data)
    if harmless:
        _write_all(stdout, harmless.feed(b"", final=True))


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


async def _collect(args: argparse.Namespace, stream: LogStream) -> dict[str, Any]:
    """A stream as JSON: its text, or base64 where it is no UTF-8."""
    start = await _start(args, stream)
    async with aclosing(_chunks(args, stream, start)) as chunks:
        data = b"".join([chunk async for chunk in chunks])
    try:
        encoding, text = "utf-8", data.decode()
    except UnicodeDecodeError:
        encoding, text = "base64", base64.b64encode(data).decode("ascii")
    rank = int(stream.stream[4:]) if stream.stream.startswith("rank") else None
    return {
        "stream": stream.stream,
        "rank": rank,
        "offset": start,
        "bytes": len(data),
        "encoding": encoding,
        "data": text,
    }
