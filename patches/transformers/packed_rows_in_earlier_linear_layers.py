"""The same as ``packed-rows-in-linear-layers``, where layers hold their convolution themselves.

What the user sees: no error; see there. Qwen3-Next, LFM2 and, from transformers 5.4 on, Qwen3.5 train packed
texts as one in every layer that is not attention.

Why: see there. These layers call a kernel where its package is installed, and otherwise a module, torch's
``Conv1d``, which is told nothing of a row.

Since LFM2 came with transformers 4.54, until 5.15. In 5.2 and 5.3 Qwen3.5's layers are handed the positions
of images instead of the texts': nothing is changed there.

The change: while such a layer runs on packed texts, the kernel or function that it holds is called for each
text, and what comes into the convolution has as many zeros between two texts as it looks back, which are
taken out of what it gives. So it runs once, as ZeRO-3's hooks on it want. A call whose boundaries were said
is left alone where the package is there.

Upstream: https://github.com/huggingface/transformers/issues/46093,
https://github.com/huggingface/transformers/pull/45034
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

from .._shared.texts_of_rows import (
    POSITIONS,
    RULE,
    Known,
    Texts,
    Told,
    convolution,
    in_layer,
    layer_of,
    one_by_one,
    while_masked,
)

MASKED, CONVOLUTION = "create_causal_mask", "causal_conv1d_fn"
PARTS = ("linear_attn", "conv")  # of a layer, what is no attention
HELD = {CONVOLUTION: convolution("x"), "chunk_gated_delta_rule": RULE}
OF_TEXTS = f"{POSITIONS}=text_{POSITIONS},"


def look(code: Code) -> str | None:
    """The layer must be handed the positions that the mask was made of, and hold its convolution."""
    layer = code.function(f"{layer_of(code.module)}.forward")
    if layer is None:
        raise Unrecognised(f"{code.module} has no {layer_of(code.module)}")
    if code.function(CONVOLUTION) is not None:
        return "layers call a function for their convolution"
    if POSITIONS not in layer.parameters or f"{MASKED}(" not in code.source:
        raise Unrecognised(f"{layer_of(code.module)} is told of positions in another way than it was")
    if f"text_{POSITIONS}" in code.source and not _handed_on(code.source):
        return "layers are handed the positions of images"
    return None


def _handed_on(source: str) -> bool:
    """Whether the text's positions go to the layers, beside the mask."""
    layers = source[source.index(f"text_{POSITIONS} = ") :].partition("decoder_layer(\n")[2]
    return layers.partition("\n            )")[0].count(OF_TEXTS) == 1


def apply(patch: Patch, module: ModuleType) -> None:
    """Know the texts where masks are made, and have a layer read each by itself."""
    told, known = Told(), Known()
    layer = getattr(module, layer_of(module.__name__))

    @contextlib.contextmanager
    def inside(self: Any, texts: Texts) -> Iterator[None]:
        with told.texts(texts), contextlib.ExitStack() as meanwhile:
            for name in PARTS:
                if hasattr(self, name):
                    meanwhile.enter_context(_told_apart(patch, getattr(self, name), told, texts))
            yield

    patch.wrap(module, MASKED, while_masked(known))
    patch.wrap(layer, "forward", in_layer(layer, known, inside))
    if "lfm2" in module.__name__ and getattr(module, CONVOLUTION, None) is not None:
        patch.wrap(module, CONVOLUTION, one_by_one(told, HELD[CONVOLUTION]))


@contextlib.contextmanager
def _told_apart(patch: Patch, part: Any, told: Told, texts: Texts) -> Iterator[None]:
    """Inside, what ``part`` holds reads each of ``texts`` by itself, adapters around it too."""
    with contextlib.ExitStack() as meanwhile:
        for module in part.modules():
            for name, reader in HELD.items():
                if (held := vars(module).get(name)) is not None:
                    called = functools.partial(one_by_one(told, reader), held)
                    meanwhile.enter_context(patch.swapped(module, name, called))
            if "kernel_size" in vars(module):
                gaps = Gaps(texts, module.kernel_size[0] - 1)
                meanwhile.callback(module.register_forward_pre_hook(gaps.before).remove)
                meanwhile.callback(module.register_forward_hook(gaps.after).remove)
        yield


class Gaps:
    """Hooks of a convolution: zeros come between two texts, and are taken out again.

    What another thread calls it for meanwhile are rows of its own.

    Args:
        texts: of the rows.
        width: how many tokens the convolution looks back.
    """

    def __init__(self, texts: Texts, width: int) -> None:
        self.texts = texts
        self.width = width
        self._open = False
        self._thread = threading.get_ident()

    def before(self, module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Forward pre-hook: of shape [rows, channels, length]."""
        if threading.get_ident() != self._thread:
            return None
        (rows,) = inputs
        self._open = rows.shape[0] == len(self.texts) and rows.shape[-1] == sum(self.texts[0])
        if not self._open:  # a text by itself already, or more than the rows
            return None
        longest = max(map(len, self.texts)) - 1
        wide = rows.new_zeros(*rows.shape[:-1], rows.shape[-1] + longest * self.width)
        for number, places in enumerate(self._places(rows.device)):
            wide[number, :, places] = rows[number]
        return (wide,)

    def after(self, module: Any, inputs: Any, output: Any) -> Any:
        """Forward hook."""
        if threading.get_ident() != self._thread or not self._open:
            return None
        import torch

        places = self._places(output.device)
        return torch.stack([row[:, where] for row, where in zip(output, places, strict=True)])

    def _places(self, device: Any) -> list[Any]:
        """Where each row's tokens lie among the zeros."""
        import torch

        rows = []
        for lengths in self.texts:
            number = torch.arange(len(lengths), device=device)
            behind = number.repeat_interleave(torch.tensor(lengths, device=device)) * self.width
            rows.append(torch.arange(sum(lengths), device=device) + behind)
        return rows
