"""Phi-4-multimodal on ranks that have different things: a hang under ZeRO-3 and FSDP.

What the user sees: under ZeRO-3, FSDP1 and FSDP2 a hang (NCCL) or an abort (gloo), as soon as one rank's
batch has an image, or a sound, and another's has none; or both have a sound, and one an image beside it.

Why: its towers run where a batch has something for them, and a sound goes through other weights where an
image is beside it. A rank that skips one takes part in none of its gathers. ``batches-without-images`` does
not find them: they sit in one module that takes the text with them.

Since transformers 4.51, which brought the model.

The change: ranks that gather these weights together, or train them in FSDP2's root, agree, by one small
all-reduce a forward, on what one of them has: an image, a sound beside an image, a sound alone. Each runs
what it lacks on the smallest blank one, and its output is tied to the embeddings by zeros. All run them in
that order, and what a rank has lies at one end of it or in one piece, so blanks come before and after what
it runs itself. Where nothing is gathered (one process, DDP, ZeRO-1 and ZeRO-2, which were run and are right)
nothing changes.

Upstream: https://github.com/deepspeedai/DeepSpeed/issues/7044
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.blank_image import add_nothing
from .._shared.compiling import compiling
from .._shared.distributed import largest_of_each, world
from .._shared.missing_gradients import from_nothing
from .._shared.random_numbers import drawn_aside
from .._shared.training_group import FSDP1, ZERO3, agreeing_groups, sharding

FORWARD = "Phi4MultimodalFeatureEmbedding.forward"
PROJECTED = 'audio_projection_mode = "vision" if image_pixel_values is not None else "speech"'
IDS, TEXT = Argument(0, "input_ids"), Argument(1, "inputs_embeds")
PIXELS, HEARD = Argument(2, "image_pixel_values"), Argument(3, "audio_input_features")
# What a rank may run, in the order in which all run it.
IMAGE, BESIDE, ALONE = range(3)
# What runs in training where no rank needs it: FSDP1 would step once more by the gradient that a unit had,
# and DeepSpeed 0.14 does not end a step in which the tower is missing.
NONE = (False, False, False)
LEAST = {FSDP1: (True, True, True), ZERO3: (True, False, False)}


def look(code: Code) -> str | None:
    """The towers must run where there is something for them, and a sound by what is beside it."""
    forward = code.function(FORWARD)
    if forward is None:
        raise Unrecognised(f"{code.module} has no {FORWARD}")
    return None if PROJECTED in forward else "a sound goes through one projection"


def apply(patch: Patch, module: ModuleType) -> None:
    """Let every rank run what another one needs."""
    traced = compiling()

    def forward(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if traced() or world() == 1:
            return original(self, *args, **kwargs)
        training = self.training and module.torch.is_grad_enabled()
        if not (groups := agreeing_groups(self.children(), training=training)):
            return original(self, *args, **kwargs)
        text, here = TEXT.of(args, kwargs), _here(self, args, kwargs)
        least = LEAST.get(sharding(self.children()), NONE) if self.training else NONE
        asked = [int(has or needed) for has, needed in zip(here, least, strict=True)]
        wanted = largest_of_each(asked, groups, text.device)
        missing = [n for n, needed in enumerate(wanted) if needed and not here[n]]
        first = here.index(True) if any(here) else len(here)
        found = [_blank(self, n, text) for n in missing if n < first]
        output = original(self, *args, **kwargs)
        found += [_blank(self, n, text) for n in missing if n > first]
        return _tied(self, output, found) if found else output

    patch.wrap(module.Phi4MultimodalFeatureEmbedding, "forward", forward)


def _here(embedding: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[bool]:
    """Which of them the forward runs by itself."""
    ids = IDS.of(args, kwargs)  # [batch, length]
    pixels = PIXELS.of(args, kwargs) is not None
    image = pixels and bool((ids == embedding.image_token_id).any())
    heard = HEARD.of(args, kwargs) is not None and bool((ids == embedding.audio_token_id).any())
    return [image, heard and pixels, heard and not pixels]


def _tied(embedding: Any, output: Any, found: list[Any]) -> Any:
    """``output``, whose backward brings zeros to ``found``; ZeRO's optimizer is told that they are none."""
    parameters = [*embedding.parameters()]
    by_zero3 = any(hasattr(parameter, ZERO3) for parameter in parameters)
    begun = functools.partial(from_nothing, parameters, dropped=False) if by_zero3 else lambda: None
    return add_nothing(output, found, begun)


def _blank(embedding: Any, which: int, text: Any) -> Any:
    """What the tower makes of the smallest image, or sound, of nothing but ones."""
    with _aside([text.device, *(parameter.device for parameter in embedding.parameters())]):
        return _blank_image(embedding, text) if which == IMAGE else _blank_sound(embedding, which, text)


def _blank_image(embedding: Any, text: Any) -> Any:
    import torch

    vision = embedding.config.vision_config
    side = vision.image_size // vision.patch_size  # in patches, of which two by two are one feature
    features = (side + 1) // 2
    # The crop, the whole image, and one between them; each of their rows ends with one more.
    ids, empty = _place(2 * features * (features + 1) + 1, embedding.image_token_id, text)
    crops = torch.ones(1, 2, vision.num_channels, vision.image_size, vision.image_size, device=text.device)
    sizes = torch.tensor([[vision.crop_size, vision.crop_size]], device=text.device)
    mask = torch.ones(1, 2, side, side, device=text.device)
    said = {"image_pixel_values": crops, "image_sizes": sizes, "image_attention_mask": mask}
    return embedding.image_embed(ids, empty, **said)


def _blank_sound(embedding: Any, which: int, text: Any) -> Any:
    import torch

    audio = embedding.config.audio_config
    ids, empty = _place(1, embedding.audio_token_id, text)
    heard = torch.ones(1, audio.time_reduction, audio.input_size, device=text.device)
    sizes = torch.ones(1, dtype=torch.long, device=text.device)
    mode = "vision" if which == BESIDE else "speech"
    said = {"audio_input_features": heard, "audio_embed_sizes": sizes, "audio_projection_mode": mode}
    return embedding.audio_embed(ids, empty, **said)


def _place(length: int, token: int, text: Any) -> tuple[Any, Any]:
    """A text of ``token``, ``(1, length)``, and empty embeddings of it, ``(1, length, width)``."""
    import torch

    ids = torch.full((1, length), token, device=text.device)
    return ids, torch.zeros(1, length, text.shape[-1], dtype=text.dtype, device=text.device)


@contextlib.contextmanager
def _aside(devices: Iterable[Any]) -> Iterator[None]:
    """Inside, no number is drawn from the model's own: by dropout, or by numpy for a sound's mask."""
    import numpy

    state = numpy.random.get_state()
    try:
        with drawn_aside(devices):
            yield
    finally:
        numpy.random.set_state(state)
