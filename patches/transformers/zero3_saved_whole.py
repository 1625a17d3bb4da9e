"""``torch.Size([0])`` in what ``save_pretrained`` wrote under ZeRO-3.

What the user sees: nothing while saving. The file holds empty tensors, and loading it ends in ``size
mismatch … copying a param with shape torch.Size([0]) from checkpoint``; the training is lost.

Why: every rank holds a part of each weight and an empty tensor in its place. The Trainer gathers before it
saves; ``save_pretrained`` called by a script or a callback does not.

What is done: where the state dict is left to ``save_pretrained``, the ranks meet, without a collective, and
gather weight by weight; rank 0 keeps and writes them, or whichever rank says ``is_main_process=True``. A
rank that is alone gets an error within a minute that says where the others are. A state dict that was handed
in is not touched.

Every transformers. Upstream: https://github.com/OpenGVLab/InternVL/issues/751,
https://github.com/OpenRLHF/OpenRLHF/issues/839
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from vlmpatch.api import Code, Patch, Unrecognised, signature

from .._shared.distributed import rank
from .._shared.rendezvous import rendezvous
from .._shared.zero3_parameters import any_absent
from .._shared.zero3_state_dict import REMEDY, handed_over, whole_state


def look(code: Code) -> str | None:
    """The state dict must be an argument."""
    save = code.function("PreTrainedModel.save_pretrained")
    if save is None or not {"state_dict", "is_main_process"} <= set(save.parameters):
        raise Unrecognised("PreTrainedModel.save_pretrained takes no state_dict and is_main_process")
    return None


def apply(patch: Patch, module: ModuleType) -> None:
    """Hand in a state dict that is whole."""

    def save(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if not any_absent(self):
            return original(self, *args, **kwargs)
        said = signature(original).bind(self, *args, **kwargs)
        if said.arguments.get("state_dict") is not None:
            return original(self, *args, **kwargs)
        writes = said.arguments.get("is_main_process", rank() == 0)
        state = handed_over(self)
        if state is None:
            rendezvous(patch, self.parameters(), f"save_pretrained of {type(self).__name__}", why=REMEDY)
            state = whole_state(self, keep=writes)
        if not writes:
            return None
        said.arguments.update(state_dict=state, is_main_process=True)
        return original(*said.args, **said.kwargs)

    patch.wrap(module.PreTrainedModel, "save_pretrained", save)
