"""What was handed to ``explain`` -> the text in it, or what it is instead.

A log is read as it is. One that was compressed, or written by PowerShell as UTF-16, is read through a stream
that unpacks piece by piece and stops at ``UNPACKED`` bytes, so that a bomb costs time and no memory.
"""

from __future__ import annotations

import bz2
import codecs
import errno
import gzip
import io
import lzma
import os
import stat
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple, cast

HEAD = 4096  # bytes that say what it is
UNPACKED = 2 << 30  # of one file, at most
MEMBERS = 256  # of one archive
MEMORY = 256 << 20  # that xz may ask for
PATIENCE = 3.0  # seconds until a pipe has a writer
_UTF16 = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_PACKED: tuple[tuple[bytes, Callable[[BinaryIO], BinaryIO]], ...] = (
    (b"\x1f\x8b", lambda stream: cast(BinaryIO, gzip.GzipFile(fileobj=stream))),
    (b"BZh", lambda stream: cast(BinaryIO, bz2.BZ2File(stream))),
    (b"\xfd7zXZ\x00", lambda stream: cast(BinaryIO, _Unxz(stream))),
)
_ZIP = b"PK\x03\x04"
# What begins so cannot be read, and what it is.
_OTHERS = (
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"GIF8", "a picture"),
    (b"RIFF", "a picture"),
    (b"%PDF", "a PDF"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"7z\xbc\xaf", "7z"),
    (b"\x80\x02", "binary data"),
    (b"\x80\x04", "binary data"),
    (b"\x7fELF", "binary data"),
)
_BROKEN = (
    OSError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    RuntimeError,
    NotImplementedError,
    ValueError,
)


def opened(path: str) -> BinaryIO:
    """A log, to be read.

    Raises:
        OSError: it cannot be; or it is a pipe, and has had no writer for ``PATIENCE`` seconds.
    """
    if not stat.S_ISFIFO(os.stat(path).st_mode):
        return _open(path)
    found: list[BinaryIO] = []
    # To open one waits for who writes to it; a daemon, for that cannot be interrupted.
    waiting = threading.Thread(target=lambda: found.append(_open(path)), daemon=True)
    waiting.start()
    waiting.join(PATIENCE)
    if not found:
        raise OSError(errno.ENXIO, "it is a pipe that nothing writes to", path)
    return found[0]


def _open(path: str) -> BinaryIO:
    return open(path, "rb")


class Text(NamedTuple):
    """One text to read; ``name`` where it lay in an archive; ``instead`` what it is where it is no text."""

    stream: BinaryIO
    name: str = ""
    instead: str = ""


def texts(stream: BinaryIO) -> Iterator[Text]:
    """The texts in ``stream``, each to be read before the next is asked for: several in an archive."""
    head, stream = _head(stream)
    if head.startswith(_ZIP):
        yield from _members(stream)
        return
    for magic, unpack in _PACKED:
        if head.startswith(magic):
            unpacked = cast(BinaryIO, _Bounded(unpack(stream)))
            yield from (text for text in texts(unpacked))
            return
    for mark, encoding in _UTF16:
        if head.startswith(mark) or _looks_like(head, mark):
            yield Text(cast(BinaryIO, _Recoded(stream, encoding)))
            return
    yield Text(stream, instead=_instead(head))


def _head(stream: BinaryIO) -> tuple[bytes, BinaryIO]:
    """The first bytes of ``stream``, and a stream that has them still."""
    if stream.seekable():
        at = stream.tell()
        head = stream.read(HEAD)
        stream.seek(at)
        return head, stream
    head = b""
    while len(head) < HEAD and (piece := stream.read(HEAD - len(head))):
        head += piece
    return head, cast(BinaryIO, _Chained(head, stream))


def _looks_like(head: bytes, mark: bytes) -> bool:
    """Whether ``head`` is UTF-16 without its mark: every other byte of English is zero."""
    zeros = head[1::2] if mark == codecs.BOM_UTF16_LE else head[0::2]
    others = head[0::2] if mark == codecs.BOM_UTF16_LE else head[1::2]
    return len(head) >= 8 and zeros.count(0) > 0.8 * len(zeros) and others.count(0) < 0.1 * len(others)


def _instead(head: bytes) -> str:
    if len(head) < HEAD and not head.strip(b"\0 \t\r\n\xef\xbb\xbf"):
        return "empty"
    known = next((name for magic, name in _OTHERS if head.startswith(magic)), "")
    if known:
        return known
    controls = sum(byte < 8 or 13 < byte < 27 for byte in head)
    tar = head[257:262] == b"ustar"
    return "binary data" if controls > len(head) // 20 and not tar else ""


def _members(stream: BinaryIO) -> Iterator[Text]:
    if not stream.seekable():  # the list of a zip stands at its end
        stream = io.BytesIO(stream.read(MEMORY))
    try:
        with zipfile.ZipFile(stream) as archive:
            inside = [each for each in archive.infolist() if not each.is_dir()][:MEMBERS]
            if any(each.filename.endswith("data.pkl") for each in inside):
                yield Text(io.BytesIO(), instead="a checkpoint")
                return
            for each in inside:
                with archive.open(each) as member:
                    yield from (
                        text._replace(name=each.filename) for text in texts(cast(BinaryIO, _Bounded(member)))
                    )
    except _BROKEN:
        yield Text(io.BytesIO(), instead="a damaged archive")


class _Piecewise(io.RawIOBase):
    """A stream that is read once, forwards."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


class _Chained(_Piecewise):
    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head, self._rest = head, rest

    def read(self, size: int = -1) -> bytes:
        if not self._head:
            return self._rest.read(size)
        piece, self._head = (self._head, b"") if size < 0 else (self._head[:size], self._head[size:])
        return piece


class _Bounded(_Piecewise):
    """What ``stream`` unpacks to, up to ``UNPACKED`` bytes, or to where it is damaged."""

    def __init__(self, stream: object) -> None:
        self._stream, self._left = cast(BinaryIO, stream), UNPACKED

    def read(self, size: int = -1) -> bytes:
        if self._left <= 0:
            return b""
        try:
            piece = self._stream.read(min(size if size >= 0 else HEAD, self._left))
        except _BROKEN:
            piece, self._left = b"", 0
        self._left -= len(piece)
        return piece


class _Unxz(_Piecewise):
    """xz, in bounded memory: ``lzma.LZMAFile`` has no limit to set."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._unpacker = lzma.LZMADecompressor(memlimit=MEMORY)

    def read(self, size: int = -1) -> bytes:
        while not self._unpacker.eof:
            data = self._stream.read(HEAD) if self._unpacker.needs_input else b""
            if self._unpacker.needs_input and not data:
                raise EOFError
            if piece := self._unpacker.decompress(data, max_length=size or 1):
                return piece
        return b""


class _Recoded(_Piecewise):
    """UTF-16 as UTF-8."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")

    def read(self, size: int = -1) -> bytes:
        while raw := self._stream.read(size):
            if text := self._decoder.decode(raw):
                return text.encode()
        return b""
