"""An adapter saved under ZeRO-3 holds empty tensors.

What the user sees: nothing while saving. ``adapter_model.safetensors`` holds tensors of size 0, or loading
it ends in ``size mismatch … torch.Size([0])``.

Why: every rank holds a part of each weight and an empty tensor in its place. The Trainer gathers before it
saves; ``save_pretrained`` of a PeftModel or ``get_peft_model_state_dict`` called by a script or a callback
does not.

What is done: where the state dict is left to PEFT, PEFT first chooses what belongs to the adapter; the ranks
meet, without a collective, and gather that much and no more. Rank 0 writes, or whichever rank says
``is_main_process=True``. A rank that is alone gets an error within a minute.

Left alone: an adapter that is whole on this rank, put in after the engine was made (as PEFT itself does where
PiSSA's difference is saved). One rank may ask for it.

Every PEFT. Upstream: https://github.com/huggingface/peft/issues/2450
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.distributed import rank
from .._shared.rendezvous import rendezvous
from .._shared.zero3_parameters import absent, any_absent, whole
from .._shared.zero3_state_dict import REMEDY, handed_over, is_on_rank_0

STATE = "get_peft_model_state_dict"
MODEL, GIVEN = Argument(0, "model"), Argument(1, "state_dict")


def look(code: Code) -> str | None:
    """PEFT must choose from a state dict it is given."""
    if code.module.endswith("peft_model"):
        if code.function("PeftModel.save_pretrained") is None:
            raise Unrecognised("PeftModel has no save_pretrained")
        return None
    function = code.function(STATE)
    if function is None or function.parameters[:2] != ("model", "state_dict"):
        raise Unrecognised(f"{code.module} has no {STATE}(model, state_dict)")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Gather what PEFT has chosen."""

    def chosen(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        model = MODEL.of(args, kwargs)
        if hasattr(model, "state_dict") and not GIVEN.of(args, kwargs) and any_absent(model):
            gathered = handed_over(model)
            if gathered is None and is_on_rank_0(model):
                return {}  # transformers 5 calls _save on every rank; this one writes nothing
            state = model.state_dict(keep_vars=True) if gathered is None else gathered
            placed, named = GIVEN.replaced(args, kwargs, state)
            found = original(*placed, **named)
            if gathered is not None:
                return found
            if any(absent(value) for value in found.values()):
                said = f"saving the adapter of {type(model).__name__}"
                rendezvous(patch, model.parameters(), said, why=REMEDY)
                return {name: _values(value) for name, value in found.items()}
        return original(*args, **kwargs)

    def save(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if any_absent(self) and len(args) < 5:  # is_main_process is the fifth after the folder
            kwargs.setdefault("is_main_process", rank() == 0)
        return original(self, *args, **kwargs)

    if module.__name__ == "peft.peft_model":
        patch.wrap(module.PeftModel, "save_pretrained", save)
        return
    patch.wrap(module, STATE, chosen)


def _values(value: Any) -> Any:
    if not hasattr(value, "detach"):
        return value
    if not absent(value):
        return value.detach()
    with whole([value], changed=False):
        return value.detach().cpu().clone()
