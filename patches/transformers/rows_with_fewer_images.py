"""Nothing is seen: in a batch, rows of Llama-3.2-Vision look at images that are not there.

What the user sees: no error. Where rows of a batch have different numbers of images, what comes before the
first image of a row with fewer trains on the blank images it was filled up with; so does all of a row without
an image, beside which others have some. The loss hardly moves; gradients of the vision tower are off by 80 %
and more. A row by itself, or beside rows with as many images, is right.

Why: Mllama's processor fills every row up to as many images as the longest has, by zeros that the vision
tower encodes like any image. A token before the first image may look at none; of such a token the mask says
that it may look at everything, blank images too, and only the feed-forward part of a cross-attention layer is
taken back for it afterwards, not what it saw. For a batch without images these layers are left out.

In transformers since 4.45, which brought the model; 5.24 has it.

The change: such a token looks at images of its own row, as it does where the row is by itself, and what the
layers make of a row without an image beside others is passed over, as if they were left out. Tokens before an
image go on looking at their row's images: that is another question, which upstream has not settled, and a
model that was trained otherwise would answer otherwise where it is used. So do tokens that are generated for
a row without an image beside others. Left alone: batches of one row, or in which no image is filled up (such
a one has 0 for its ``aspect_ratio_ids``, and no token looks at it), a model that is being compiled.

Upstream: https://github.com/huggingface/transformers/issues/39379,
https://github.com/huggingface/transformers/issues/35937
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.compiling import compiling
from .._shared.packed_positions import readable

PREPARE, LAYER = "_prepare_cross_attention_mask", "MllamaCrossAttentionDecoderLayer"
MODELS = ("MllamaModel", "MllamaForConditionalGeneration")  # the first from 4.52 on
PIXELS, ASPECTS = Argument(1, "pixel_values"), Argument(3, "aspect_ratio_ids")
ASKED = Argument(0, "cross_attention_mask")
HIDDEN, LOOKS = Argument(0, "hidden_states"), Argument(4, "full_text_row_masked_out_mask")
PARAMETERS = ("self", "input_ids", PIXELS.name, "aspect_ratio_mask", ASPECTS.name)
OPENED = "cross_attention_mask *= full_text_row_masked_out_mask"
NO_IMAGE = 0  # what stands for the aspect ratio of an image that fills a row up


class Running(threading.local):
    """Which images of the forward that runs in this thread may fill rows up; [rows, images]."""

    blank: Any = None

    @contextlib.contextmanager
    def told(self, blank: Any) -> Iterator[None]:
        """Inside, masks are made for these."""
        before, self.blank = self.blank, blank
        try:
            yield
        finally:
            self.blank = before


def look(code: Code) -> str | None:
    """A token that may look at no image must be let look at all, and keep what it saw."""
    prepare, layer = code.function(PREPARE), code.function(f"{LAYER}.forward")
    model = next((found for name in MODELS if (found := code.function(f"{name}.forward"))), None)
    if prepare is None or layer is None or model is None:
        raise Unrecognised(f"{code.module} has no {PREPARE} that its model calls")
    if OPENED not in prepare or layer.source.count(f"{LOOKS.name}[:, 0] *") > 1:
        return "a token that may look at no image keeps nothing of one"
    if model.parameters[:5] != PARAMETERS or f"{PREPARE}(" not in model:
        raise Unrecognised(f"{code.module} prepares masks as no known release does")
    if layer.parameters[1] != HIDDEN.name or layer.parameters[5] != LOOKS.name:
        raise Unrecognised(f"{LAYER} is called as in no known release")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Keep rows from images that are not theirs."""
    running, tracing = Running(), compiling()

    def forward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        aspects = ASPECTS.of(args, kwargs)
        alone = PIXELS.of(args, kwargs) is None or aspects is None or len(aspects) == 1
        blank = None if alone or tracing() or not readable(aspects) else aspects == NO_IMAGE
        with running.told(blank if blank is not None and blank.any() else None):
            return original(self, *args, **kwargs)

    def prepare(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        mask, looks = original(*args, **kwargs)
        blank, asked = running.blank, ASKED.of(args, kwargs)
        if blank is None or asked.shape[:1] + asked.shape[2:3] != blank.shape:
            return mask, looks
        return kept_apart(mask, looks, blank.to(mask.device) & ~asked.bool().any(dim=3).any(dim=1))

    def layer(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        hidden, looks = HIDDEN.of(args, kwargs), LOOKS.of(args, kwargs)
        found = original(self, *args, **kwargs)
        if looks is None or looks.shape[1] == 1:
            return found
        if isinstance(found, tuple):  # until 4.55
            return (left_out(found[0], hidden, looks), *found[1:])
        return left_out(found, hidden, looks)

    model = next(name for name in MODELS if hasattr(module, name))
    patch.wrap(getattr(module, model), "forward", forward)
    patch.wrap(module, PREPARE, prepare)
    patch.wrap(getattr(module, LAYER), "forward", layer)


def kept_apart(mask: Any, looks: Any, blank: Any) -> tuple[Any, Any]:
    """Keep tokens from blank images, and say which rows have an image where some have none.

    Args:
        mask: added to scores, [rows, 1, tokens, images x tiles x patches].
        looks: whether a token may look at an image, [rows, 1, tokens, 1]. A layer reads the first of its
            second dimension; whether the row has an image comes behind it.
        blank: [rows, images].
    """
    import torch

    texts = blank.all(dim=1)[:, None, None, None]
    keys = blank.repeat_interleave(mask.shape[-1] // blank.shape[1], dim=1)[:, None, None]
    # A row without an image keeps a mask that lets it look: of no key at all attention makes NaN.
    mask = mask.masked_fill(keys & ~texts & (looks == 0), torch.finfo(mask.dtype).min)
    return mask, torch.cat([looks, (~texts).to(looks).expand_as(looks)], dim=1) if texts.any() else looks


def left_out(found: Any, hidden: Any, looks: Any) -> Any:
    """What a layer made of rows with images; what it was given of the others, [rows, tokens, size]."""
    import torch

    return torch.where(looks[:, 1, :1].bool(), found, hidden)
