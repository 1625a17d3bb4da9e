"""What a model may take, by the names of what its forward takes; the likelier first."""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Iterator
from typing import Any

from tests.families._shared import small
from tests.lab.made_small import singles
from tests.lab.made_small.offered import LENGTH, ROWS, number, offered

PLACES = 4  # of an image in a text
Inputs = dict[str, Any]


def feeds(model: Any) -> Iterator[Inputs]:
    """What the model may take, by the names of its forward's parameters; the likelier first."""
    import torch

    names = inspect.signature(model.forward).parameters
    if known := singles.inputs(model, names):
        yield known
    with contextlib.suppress(Exception):  # a model that takes no images, or none of these
        yield from _pictured(model)
    config, ids = model.config, torch.randint(5, 100, (ROWS, LENGTH))
    end = getattr(config, "eos_token_id", None)
    if isinstance(end, int) and end < 128:
        ids[:, -1] = end  # some read the last of these
    offers = offered(model)
    text: Inputs = {}
    if "input_ids" in names or {*names} == {"args", "kwargs"}:
        text["input_ids"] = ids
        if "attention_mask" in names:
            text["attention_mask"] = torch.ones_like(ids)
    if "decoder_input_ids" in names:
        text["decoder_input_ids"] = ids[:, :7]
    if "bbox" in names:
        text["bbox"] = torch.zeros(ROWS, LENGTH, 4, dtype=torch.long)
    taken = [
        name
        for name, parameter in names.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in text
    ]
    if missing := [name for name in taken if name not in offers]:
        raise TypeError(f"nothing is known to offer as {', '.join(missing)}")
    every = itertools.product(*(offers[name] for name in taken))
    wanted = [dict(zip(taken, each, strict=True)) for each in itertools.islice(every, 24)]
    without = {name: value for name, value in text.items() if name != "decoder_input_ids"}
    for needed in wanted:
        if text or needed:
            yield {**text, **needed}
            yield {**without, **needed}
    if text:
        yield {name: value[:1] for name, value in text.items()}  # no padding token, no two rows
        yield {"input_ids": ids[:, None].expand(ROWS, 2, LENGTH).contiguous()}  # two choices of each
        yield {"input_ids": ids[:1].expand(ROWS * 4, LENGTH)}  # four codebooks
        books = number(config, "num_codebooks", 4)
        yield from ({"input_ids": ids[..., None].expand(ROWS, LENGTH, each)} for each in (books, books + 1))
        if "decoder_input_ids" in text:
            yield {**text, "decoder_input_ids": ids}  # of which some read the places of the text
            yield {**text, "decoder_input_ids": ids[:1, :7].expand(ROWS * 4, 7)}
            channels = getattr(getattr(config, "decoder_config", config), "num_channels", 4)
            yield {**text, "decoder_input_ids": ids[:, :7, None].expand(ROWS, 7, channels)}
    for needed in wanted:
        for name in offers:
            if name in names and name not in needed and name not in text:
                for more in offers[name]:
                    if name != "inputs_embeds":  # it takes the place of the text
                        yield {**text, **needed, **_beside(model, name), name: more}
                    yield {**needed, **_beside(model, name), name: more}


def _beside(model: Any, name: str) -> Inputs:
    """What a forward wants beside the argument ``name``, where it has a parameter for it."""
    import torch

    places = torch.arange(LENGTH).expand(ROWS, LENGTH) < PLACES
    found = {"pixel_values": {"image_embeds_position_mask": places.long()}}.get(name, {})
    names = inspect.signature(model.forward).parameters
    return {other: value for other, value in found.items() if other in names}


def _pictured(model: Any) -> Iterator[Inputs]:
    """Text with an image in it, where the model says what it makes of images."""
    import torch

    names = inspect.signature(model.forward).parameters
    token = next(
        (value for name in small.IMAGE_TOKENS if isinstance(value := getattr(model.config, name, None), int)),
        None,
    )
    for pixels in small.candidates(model) if token is not None else ():
        images = pixels()
        with contextlib.suppress(Exception):
            with torch.no_grad():
                pieces = small.tokens_of(model, images)
            ids = torch.randint(5, 100, (1, pieces + LENGTH))
            ids[0, 3 : 3 + pieces] = token
            text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            types = {
                name: (ids == token).long()
                for name in ("mm_token_type_ids", "token_type_ids")
                if name in names
            }
            yield {**text, **types, **images}
