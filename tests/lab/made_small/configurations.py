"""Small configurations of a class: by names that many have, then in the class's own proportions."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tests.families._shared import small
from tests.families._shared.sizes import IMAGE
from tests.lab.made_small import singles
from tests.lab.made_small.narrowed import Sizes, asked, by_chance, narrowed
from tests.lab.made_small.sizes import CHOICES, LAYERS_NAMED, NARROWER, PLAIN, WHOLE


def configurations(own: Callable[[], Any], needed: Sizes) -> Iterator[Callable[[], Any]]:
    """Ways of making a small one of ``own`` with what is ``needed``, the smaller first, ``own`` last."""
    yield from (_named(own, sizes, needed) for sizes in CHOICES)
    yield from (_narrowed(own, factor, needed) for factor in NARROWER)
    yield own


def _named(own: Callable[[], Any], sizes: Sizes, needed: Sizes) -> Callable[[], Any]:
    return lambda: shrunk(own(), sizes, needed)


def _narrowed(own: Callable[[], Any], factor: int, needed: Sizes) -> Callable[[], Any]:
    return lambda: narrowed(own(), factor, needed)


def owned(kind: Any) -> Iterator[Callable[[], Any]]:
    """What may be the configuration of ``kind``: its class's own, the one its constructor names, a part."""
    said = inspect.signature(kind.__init__).parameters.get("config")
    named = said.annotation if said else None
    if isinstance(named, str):
        named = getattr(sys.modules[kind.__module__], named, None)
    if inspect.isclass(named) and hasattr(named, "to_dict") and named is not kind.config_class:
        yield named
    yield lambda: kind.config_class(**singles.parts(kind))
    if needed := singles.sizes(kind):  # without which some refuse themselves
        yield functools.partial(kind.config_class, **needed)
    for name in _parts(kind.config_class):
        yield functools.partial(_part, kind.config_class, name)


def _parts(configuration: Any) -> list[str]:
    """The names of a configuration's parts; older releases have them on the made one alone."""
    if named := getattr(configuration, "sub_configs", None):
        return [*named]
    with contextlib.suppress(Exception):  # one that is not made without its parts
        return [name for name, value in vars(configuration()).items() if hasattr(value, "to_dict")]
    return []


def _part(of: Callable[[], Any], name: str) -> Any:
    return getattr(of(), name)


def shrunk(config: Any, sizes: Sizes, needed: Sizes) -> Any:
    """``config`` with every part of it small, what is ``needed``, and nothing in it left to chance."""
    parts = {
        name: shrunk(value, small.TOWER if "vision" in name else sizes, needed.get(name) or {}).to_dict()
        for name, value in vars(config).items()
        if hasattr(value, "to_dict") and name != "generation_config"
    }
    said = small.known(config, sizes | dict.fromkeys(small.IMAGE_TOKENS, IMAGE))
    said = {name: value for name, value in said.items() if not _is_derived(config, name)}
    if "mrope_section" in sizes:
        sections = {name: sizes[name] for name in ("mrope_section", *WHOLE) if name in sizes}
        rope = {**PLAIN, **sections}
        said |= {name: rope for name in ("rope_parameters", "rope_scaling") if hasattr(config, name)}
    said |= {name: _within(value) for name, value in vars(config).items() if name.endswith(LAYERS_NAMED)}
    said = {name: value for name, value in said.items() if name.removeprefix("_") not in needed}
    return type(config)(**(said | by_chance(config) | parts | asked(config, needed)))


def _within(layers: Any) -> Any:
    """Layers that a model of two has, in place of those named."""
    if isinstance(layers, (list, tuple)):
        return type(layers)([*range(2)][-len(layers) :])
    return min(layers, 1) if isinstance(layers, int) and layers > 0 else layers


def _is_derived(config: Any, name: str) -> bool:
    name = type(config).attribute_map.get(name, name)
    own = inspect.getattr_static(type(config), name, None)
    return isinstance(own, property) and own.fset is None
