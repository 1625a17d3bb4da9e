"""Under ZeRO-3 DeLoRA learns nothing, without an error; LoHa, LN tuning, OSF, LoRA on experts are not made.

What the user sees: DeLoRA trains with a gradient norm of 0 and a loss that is the model's own. LoRA on a
parameter (``target_parameters``: the experts of Qwen3-VL-MoE) and LoHa end in ``IndexError: tuple index out
of range`` from ``get_peft_model``, LN tuning in ``assert len(set(t.dtype for t in tensors)) == 1`` as the
engine is made, OSF in ``optimizer got an empty parameter list`` or ``list index out of range``.

Why: these adapters are made of the weights of the layer that they are put on. DeLoRA multiplies by their
norms, LoHa and LoRA on a parameter have their shape, LN tuning trains a copy of them, OSF a part of their
decomposition. On a model that was loaded under ZeRO-3 each rank holds an empty tensor in their place: its
norm is 0, and so is all that DeLoRA adds and every gradient of it. Where LoRA needs weights as it is made
(DoRA, PiSSA), PEFT gathers them; here it does not.

What is done: while such an adapter is made for a layer, that layer's weights are gathered.

PEFT 0.13 to today; LoRA on a parameter 0.17 to 0.20, for 0.21.2 no longer asks the empty tensor; DeLoRA and
OSF came with 0.18. Upstream: https://github.com/huggingface/peft/issues/2916 (LoRA on a parameter),
https://github.com/huggingface/peft/pull/2780 (DeLoRA), https://github.com/huggingface/peft/pull/1887 (LoRA)
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Argument, Code, Patch, Unrecognised

from .._shared.rendezvous import rendezvous
from .._shared.zero3_parameters import any_absent, whole

REMEDY = "Call get_peft_model and add_adapter on every rank, without `if rank == 0`."
# What makes an adapter of a layer, and the words by which it reads the layer's weights.
MAKES = {
    "peft.tuners.delora.layer": ("DeloraLayer.reset_delora_parameters", "norm"),
    "peft.tuners.ln_tuning.layer": ("LNTuningLayer.update_layer", "deepcopy"),
    "peft.tuners.loha.layer": ("LoHaLayer.update_layer", "weight.shape"),
    "peft.tuners.lora.layer": ("ParamWrapper.__init__", "param.shape"),
    "peft.tuners.osf.model": ("OSFModel._create_and_replace", "weight.shape"),
}
READS = {"ParamWrapper.__init__": "ParamWrapper._get_in_out_features"}  # in its place, in later releases
GIVEN = {  # to those that are no method of a layer that they know
    "ParamWrapper": Argument(0, "base_layer"),
    "OSFModel": Argument(2, "target"),
}


def look(code: Code) -> str | None:
    """What makes the adapter must read the weights, and gather nothing."""
    name, words = MAKES[code.module]
    if name.partition(".")[0] not in code.names:
        return "this PEFT makes no such adapter"
    makes = code.function(name)
    read = [function for function in (makes, code.function(READS.get(name, name))) if function is not None]
    if any("gather_params_ctx" in function or "ds_shape" in function for function in read):
        return "this PEFT knows of weights that are not here"
    if makes is None or not any(words in function for function in read):
        raise Unrecognised(f"{code.module} has no {name} that reads a layer's weights")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Gather what an adapter is made of."""
    owner, _, name = MAKES[module.__name__][0].partition(".")

    def made(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        layer = GIVEN[owner].of(args, kwargs) if owner in GIVEN else self.get_base_layer()
        if not any_absent(layer):
            return original(self, *args, **kwargs)
        weights = list(layer.parameters())
        rendezvous(patch, weights, f"making an adapter for {type(layer).__name__}", why=REMEDY)
        with whole(weights, changed=False):
            return original(self, *args, **kwargs)

    patch.wrap(getattr(module, owner), name, made)
