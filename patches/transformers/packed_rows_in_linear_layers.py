"""Nothing is seen: packed texts go into one another in layers of linear attention and short convolutions.

What the user sees: no error. Texts packed into one row and told apart by ``position_ids`` that begin again
at 0 (``DataCollatorWithFlattening``, TRL's ``padding_free`` and ``packing``), without a mask, train as one
text in every layer of Qwen3.5, Qwen3-Next, LFM2 and LFM3 that is not attention, and so in MiniCPM-V 4.6
and 4.7, LFM2-VL and LFM3-VL: gradients are 5 to 63 % off those of the texts by themselves. Where boundaries
are said too (newer TRL), ``can't keep packed sequences apart without``, and the name of a package.

Why: attention looks for rows in the positions. A layer of linear attention hands on what it has read to all
that follows, and its convolution the last tokens; neither is told of the rows, whatever kernels there are.
Boundaries that a caller says (``cu_seq_lens_q``, ``seq_idx``) are for the kernels of two packages
(flash-linear-attention, causal-conv1d), each of which takes another of these names. Without the package
transformers 5.20 and later refuse, and earlier releases take no notice.

In transformers since Qwen3-Next came (4.57); the change is for releases from 5.16 on, whose layers call two
functions of their module. 5.24 has it still.

The change: where attention looks for rows in such positions, a layer calls the convolution and the rule of
linear attention for each text by itself, unless boundaries were said and the package is there. Nothing else
of the layer is called more than once. Left alone: positions with gaps, all of them zero, any mask that the
caller gave, a cache that holds something, a model that is being compiled or traced.

Upstream: https://github.com/huggingface/transformers/issues/46093,
https://github.com/huggingface/transformers/pull/45034
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from vlmpatch.api import Argument, Code, Patch, Unrecognised, signature

from .._shared.by_identity import ByIdentity
from .._shared.compiling import compiling
from .._shared.packed_positions import begin_again


class Reader(NamedTuple):
    """A function that reads along a row.

    Args:
        along: the dimension of a row's length in what it takes and gives.
        parts: the arguments that have this dimension.
        said: the name by which it is told boundaries.
        package: the one whose kernel makes use of them.
    """

    along: int
    parts: tuple[str, ...]
    said: str
    package: str


CONVOLUTION, RULE = "causal_conv1d_fn", "torch_chunk_gated_delta_rule"
READERS = {
    CONVOLUTION: Reader(-1, ("hidden_states",), "seq_idx", "causal_conv1d"),
    RULE: Reader(1, ("query", "key", "value", "g", "beta"), "cu_seqlens", "fla"),
}
LAYERS = {
    "qwen3_5": "Qwen3_5DecoderLayer",
    "qwen3_5_moe": "Qwen3_5MoeDecoderLayer",
    "qwen3_next": "Qwen3NextDecoderLayer",
    "lfm2": "Lfm2DecoderLayer",
    "lfm2_moe": "Lfm2MoeDecoderLayer",
    "lfm3": "Lfm3DecoderLayer",
}
MASKED = "create_recurrent_attention_mask"  # made once a forward, from what attention's own mask is made of
MASK, POSITIONS = "attention_mask", "position_ids"
CACHE = ("past_key_values", "cache")  # the second from transformers 5.24 on

Texts = list[list[int]]  # the lengths of every row's texts


def look(code: Code) -> str | None:
    """The layer must be handed the positions that its mask was made of, and call functions of its module."""
    layer = code.function(f"{layer_of(code.module)}.forward")
    if layer is None:
        raise Unrecognised(f"{code.module} has no {layer_of(code.module)}")
    if code.function(CONVOLUTION) is None:
        return "layers hold their convolution themselves"
    if POSITIONS not in layer.parameters or f"{MASKED}(**" not in code.source:
        raise Unrecognised(f"{layer_of(code.module)} is told of positions in another way than it was")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Know the texts where masks are made and in a layer, and call for each what reads along a row."""
    import torch

    told, tracing, known = _Told(), compiling(), Known()
    owner = getattr(module, layer_of(module.__name__))
    _, *names = signature(owner.forward).parameters
    place = Argument(names.index(POSITIONS), POSITIONS)

    def masked(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        positions = kwargs.get(POSITIONS)
        if positions is not None and not (tracing() or torch.jit.is_tracing()):
            # Attention looks for rows without a mask, and beside a cache only while gradients are recorded.
            cached = any(kwargs.get(name) is not None for name in CACHE)
            looks = kwargs.get(MASK) is None and (torch.is_grad_enabled() or not cached)
            known.put(positions, lengths_of(positions) if looks and begin_again(positions) else None)
        return original(*args, **kwargs)

    def forward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        positions = place.of(args, kwargs)
        if positions is None or tracing() or torch.jit.is_tracing():
            return original(self, *args, **kwargs)
        with told.texts(known.of(positions)):
            return original(self, *args, **kwargs)

    patch.wrap(module, MASKED, masked)
    patch.wrap(owner, "forward", forward)
    for name, reader in READERS.items():
        if hasattr(module, name):
            patch.wrap(module, name, _one_by_one(told, reader, signature(getattr(module, name)).parameters))


def layer_of(module: str) -> str:
    """The class of a module of transformers' that a layer is."""
    return LAYERS[module.split(".")[2]]


class Known:
    """The texts of positions, of those that masks were made of and of their copies on other devices."""

    def __init__(self) -> None:
        self._texts = ByIdentity()
        self._last: tuple[Texts, Any] | None = None  # and the device

    def put(self, positions: Any, texts: Texts | None) -> None:
        """Remember what ``positions`` tell apart, for as long as they live."""
        self._texts.put(positions, (texts,))
        self._last = None if texts is None else (texts, positions.device)

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
        if self._last is None or self._last[1] == positions.device:
            return None
        texts = self._last[0]
        return texts if begin_again(positions) and lengths_of(positions) == texts else None


class _Told(threading.local):
    """The texts of the layer that runs in this thread."""

    now: Texts | None = None

    @contextlib.contextmanager
    def texts(self, texts: Texts | None) -> Iterator[None]:
        before, self.now = self.now, texts
        try:
            yield
        finally:
            self.now = before


def _one_by_one(told: _Told, reader: Reader, names: Any) -> Callable[..., Any]:
    """What calls ``reader`` for each text, and puts the results behind one another again."""
    places = [Argument([*names].index(name), name) for name in reader.parts]

    def call(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        texts, given = told.now, [place.of(args, kwargs) for place in places]
        if texts is None or not _fit(texts, given, reader.along) or kwargs.get("initial_state") is not None:
            return original(*args, **kwargs)
        if kwargs.get(reader.said) is not None and _is_there(reader.package):
            return original(*args, **kwargs)
        rest = {name: value for name, value in kwargs.items() if name not in ("seq_idx", "cu_seqlens")}

        def of(row: int, begin: int, length: int) -> Any:
            some, named = args, rest
            for place, tensor in zip(places, given, strict=True):
                part = tensor[row : row + 1].narrow(reader.along, begin, length)
                some, named = place.replaced(some, named, part)
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
        lengths = [end - begin for begin, end in itertools.pairwise(begins)]
        rows.append([*_without_padding_apart(lengths)])
    return rows


def _without_padding_apart(lengths: list[int]) -> Iterator[int]:
    """Zeros that fill a row up are texts of one token, which teach nothing: one call for all of them."""
    for alone, group in itertools.groupby(lengths, lambda length: length == 1):
        some = [*group]
        yield from [sum(some)] if alone else some


@functools.cache
def _is_there(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
