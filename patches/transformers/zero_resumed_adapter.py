"""``Error(s) in loading state_dict for PeftModelForCausalLM: Missing key(s) in state_dict``.

What the user sees: a LoRA run under DeepSpeed that is resumed by ``resume_from_checkpoint``, or ends with
``load_best_model_at_end``, dies while the checkpoint is loaded.

Why: the Trainer has DeepSpeed leave out what is frozen when it saves a PeftModel, and asks for every key when
it loads what was saved.

In transformers 4.37 alone, which was the first to leave it out; 4.38 asks for no key of a PeftModel.

The change: of a PeftModel, keys of frozen parameters may be absent. A trained parameter, a buffer or a key
that the model does not have is asked for as before.

Upstream: https://github.com/huggingface/transformers/pull/28746
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised

NAME = "deepspeed_load_checkpoint"
LOADS = "load_checkpoint"  # the engine's method that it calls
LEFT_OUT = "exclude_frozen_parameters=True"
ASKED = "load_module_strict"


def look(code: Code) -> str | None:
    """The Trainer must leave frozen parameters out, and then ask for them."""
    if ASKED in code.source:
        return "this Trainer asks for no key of a PeftModel"
    if f"{NAME}(self.model_wrapped" not in code.source:
        raise Unrecognised(f"the Trainer does not call {NAME}")
    return None if LEFT_OUT in code.source else "this Trainer saves what is frozen too"


def apply(patch: Patch, module: ModuleType) -> None:
    """Ask a checkpoint of a PeftModel for what was saved."""

    def loads(original: Callable[..., Any], /, deepspeed_engine: Any, *args: Any, **kwargs: Any) -> Any:
        if not module._is_peft_model(deepspeed_engine.module):
            return original(deepspeed_engine, *args, **kwargs)
        asked = functools.partial(deepspeed_engine.load_checkpoint, custom_load_fn=_loaded)
        with patch.swapped(deepspeed_engine, LOADS, asked):
            return original(deepspeed_engine, *args, **kwargs)

    patch.wrap(module, NAME, loads)


def _loaded(src: Mapping[str, Any], dst: Any) -> None:
    """Load ``src`` into the model ``dst``, strictly but for what is frozen."""
    frozen = {name for name, parameter in dst.named_parameters() if not parameter.requires_grad}
    kept = {name: value for name, value in dst.state_dict().items() if name in frozen and name not in src}
    dst.load_state_dict({**kept, **src})
