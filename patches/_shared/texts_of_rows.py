"""Texts packed into rows, for layers that read along a row without looking at positions."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from vlmpatch.api import Argument, signature

from .by_identity import ByIdentity
from .compiling import compiling
from .packed_positions import begin_again, readable

MASK, POSITIONS = "attention_mask", "position_ids"
CACHE = ("past_key_values", "cache")  # the second from transformers 5.24 on
BOUNDARIES = ("seq_idx", "cu_seqlens")  # by which kernels are told the texts

LAYERS = {
    "qwen3_5": "Qwen3_5DecoderLayer",
    "qwen3_5_moe": "Qwen3_5MoeDecoderLayer",
    "qwen3_next": "Qwen3NextDecoderLayer",
    "lfm2": "Lfm2DecoderLayer",
    "lfm2_moe": "Lfm2MoeDecoderLayer",
    "lfm3": "Lfm3DecoderLayer",
}

Texts = list[list[int]]  # the lengths of every row's texts
Inside = Callable[
    [Any, Texts], contextlib.AbstractContextManager[None]
]  # of a layer, what runs told of texts


def layer_of(module: str) -> str:
    """The class of a module of transformers' that a layer is."""
    return LAYERS[module.split(".")[2]]


class Reader(NamedTuple):
    """A function that reads along a row.

    Args:
        along: the dimension of a row's length in what it takes and gives.
        parts: the arguments that have this dimension.
        said: the name by which it is told boundaries.
        package: the one whose kernel makes use of them.
    """

    along: int
    parts: tuple[Argument, ...]
    said: str
    package: str


RULE = Reader(
    1,
    (Argument(0, "query"), Argument(1, "key"), Argument(2, "value"), Argument(3, "g"), Argument(4, "beta")),
    "cu_seqlens",
    "fla",
)


def convolution(name: str) -> Reader:
    """One that takes what it reads first, as ``name``."""
    return Reader(-1, (Argument(0, name),), "seq_idx", "causal_conv1d")


class Told(threading.local):
    """The texts of the layer that runs in this thread."""

    now: Texts | None = None

    @contextlib.contextmanager
    def texts(self, texts: Texts | None) -> Iterator[None]:
        """Inside, what runs is told of them."""
        before, self.now = self.now, texts
        try:
            yield
        finally:
            self.now = before


class Known:
    """The texts of positions, of those that masks were made of and of their copies on other devices."""

    def __init__(self) -> None:
        self._texts = ByIdentity()
        self._last: tuple[Texts, Any, list[list[int]]] | None = None  # the device, and the positions

    def put(self, positions: Any, texts: Texts | None) -> None:
        """Remember the texts of ``positions``, for as long as these live."""
        self._texts.put(positions, (texts,))
        self._last = None if texts is None else (texts, positions.device, positions.tolist())

    def of(self, positions: Any) -> Texts | None:
        """The texts, or None where there is one, or no mask was made of ``positions``."""
        held = self._texts.get(positions)
        if held is None:
            held = (self._of_copy(positions),)
            self._texts.put(positions, held)
        texts: Texts | None = held[0]
        return texts

    def _of_copy(self, positions: Any) -> Texts | None:
        """A model that lies on several devices hands its layers copies."""
        if self._last is None or self._last[1] == positions.device or not readable(positions):
            return None
        texts, _, said = self._last
        return texts if positions.tolist() == said else None


def while_masked(known: Known) -> Callable[..., Any]:
    """Around what makes a mask, by keywords: the texts that attention keeps apart."""
    import torch

    tracing = compiling()

    def masked(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        positions = kwargs.get(POSITIONS)
        if positions is not None and not (tracing() or torch.jit.is_tracing()):
            mask = kwargs.get(MASK)
            # It does so without a mask, and beside a cache only while gradients are recorded.
            cached = any(kwargs.get(name) is not None for name in CACHE)
            looks = mask is None and (torch.is_grad_enabled() or not cached)
            texts = lengths_of(positions) if looks and begin_again(positions) else None
            known.put(positions, texts if mask is None else texts_of_mask(mask, positions))
        return original(*args, **kwargs)

    return masked


def in_layer(layer: type[Any], known: Known, inside: Inside) -> Callable[..., Any]:
    """Around the forward of a ``layer`` that is handed positions: ``inside`` where they tell texts apart."""
    import torch

    tracing = compiling()
    _, *names = signature(layer.forward).parameters
    place = Argument(names.index(POSITIONS), POSITIONS)

    def forward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        positions = place.of(args, kwargs)
        if positions is None or tracing() or torch.jit.is_tracing() or (texts := known.of(positions)) is None:
            return original(self, *args, **kwargs)
        with inside(self, texts):
            return original(self, *args, **kwargs)

    return forward


def one_by_one(told: Told, reader: Reader) -> Callable[..., Any]:
    """Around a ``reader``: it is called for each text, and the results are put behind one another again."""

    def call(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        texts, given = told.now, [part.of(args, kwargs) for part in reader.parts]
        if texts is None or not _fit(texts, given, reader.along) or kwargs.get("initial_state") is not None:
            return original(*args, **kwargs)
        if kwargs.get(reader.said) is not None and _is_there(reader.package):
            return original(*args, **kwargs)
        rest = {name: value for name, value in kwargs.items() if name not in BOUNDARIES}

        def of(row: int, begin: int, length: int) -> Any:
            some, named = args, rest
            for part, tensor in zip(reader.parts, given, strict=True):
                piece = tensor[row : row + 1].narrow(reader.along, begin, length)
                some, named = part.replaced(some, named, piece)
            return original(*some, **named)

        return _joined([_row(of, row, lengths) for row, lengths in enumerate(texts)], reader.along)

    return call


def _row(of: Callable[[int, int, int], Any], row: int, lengths: list[int]) -> list[Any]:
    begins = [sum(lengths[:number]) for number in range(len(lengths))]
    return [of(row, begin, length) for begin, length in zip(begins, lengths, strict=True)]


def _joined(rows: list[list[Any]], along: int) -> Any:
    """What came of every text as what would have come of the rows: a state is that of a row's last text."""
    import torch

    if not isinstance(rows[0][0], tuple):
        return torch.cat([torch.cat(row, along) for row in rows])
    results = torch.cat([torch.cat([result for result, _ in row], along) for row in rows])
    states = [row[-1][1] for row in rows]
    return results, None if states[0] is None else torch.cat(states)


def _fit(texts: Texts, tensors: list[Any], along: int) -> bool:
    """Whether ``tensors`` are as long as the rows: before a row, a cache may have put what came earlier."""
    return all(
        tensor is not None and tensor.shape[0] == len(texts) and tensor.shape[along] == sum(texts[0])
        for tensor in tensors
    )


def lengths_of(positions: Any) -> Texts:
    """The texts that ``positions`` of shape [rows, length] tell apart."""
    rows = []
    for row in positions.tolist():
        begins = [0, *(place for place, position in enumerate(row) if place and not position), len(row)]
        rows.append(_filled_up([end - begin for begin, end in itertools.pairwise(begins)]))
    return rows


def texts_of_mask(mask: Any, positions: Any) -> Texts | None:
    """The texts that a ``mask`` of every query and key tells apart; None where it is another, or all is one.

    A text begins where neither it nor what follows sees anything that comes before.

    Args:
        mask: of shape [rows, 1, length, length], True where a query sees a key, or 0 where nothing is taken
            off its score.
        positions: of shape [rows, length]; those of one text do not come back to 0.
    """
    import torch

    if not (readable(mask) and readable(positions)) or positions.dim() != 2:
        return None
    rows, length = positions.shape
    with torch._C.DisableTorchFunction():
        if mask.shape != (rows, 1, length, length) or not (
            mask.is_floating_point() or mask.dtype == torch.bool
        ):
            return None
        if not ((positions[:, 1:] == 0) & (positions[:, :-1] > 0)).any():
            return None
        seen = mask[:, 0] if mask.dtype == torch.bool else mask[:, 0] > torch.finfo(mask.dtype).min / 2
        places = torch.arange(length, device=mask.device).expand(rows, -1)
        first = torch.where(seen.any(-1), seen.byte().argmax(-1), places)  # the first key that a query sees
        begin = (first.flip(-1).cummin(-1).values.flip(-1) >= places).tolist()
    texts = []
    for row in begin:
        ends = [*(place for place in range(length) if row[place]), length]
        texts.append(_filled_up([end - start for start, end in itertools.pairwise(ends)]))
    return texts if any(sum(length > 1 for length in row) > 1 for row in texts) else None


def _filled_up(lengths: list[int]) -> list[int]:
    """Zeros that fill a row up are texts of one token, which nothing follows: one call for all of them."""
    texts = len(lengths)
    while texts and lengths[texts - 1] == 1:
        texts -= 1
    return [*lengths[:texts], *([len(lengths) - texts] if texts < len(lengths) else [])]


@functools.cache
def _is_there(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
