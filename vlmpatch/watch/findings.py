"""What the watch says is wrong: what, with which names, and the likely cause."""

from __future__ import annotations

from typing import Any, NamedTuple

SHOWN = 4  # names in a finding
TOWERS = ("visual", "vision", "vpm")

APART = (
    "the loss is computed past DDP's wrapper (a script that calls self.model), or gradients are reduced in a "
    "nested backward (use_reentrant=True); `python -m vlmpatch explain F6` and `explain F10`"
)
ZEROS = (
    "what they feed adds nothing to the loss: no image in these batches, labels all masked, or a part of the "
    "model that this task does not use"
)
RECOMPUTED = (
    "the recompute sees something else than the forward did: a cache, a random number, a buffer that the "
    "forward writes; `python -m vlmpatch doctor`"
)
CUT = (
    "use_reentrant=True cuts the graph where nothing that goes in requires a gradient, as the vision tower's "
    "input; use_reentrant=False ends it (`python -m vlmpatch explain F5`). Or no batch had an image"
)
UNUSED = (
    "no batch used them: text without images, or a layer whose output the model does not read, or detaches"
)
NO_GRAPH = (
    "the {part} runs under torch.no_grad(), around it or in its own forward, as code does that means it to "
    "stay frozen"
)
NOT_CALLED = "the {part} was never called: no batch had an image, or its features were computed beforehand"
IDLE_ADAPTERS = "they were frozen after the adapter was made: what freezes a part comes before get_peft_model"
NOT_TARGETED = (
    "no module has that name: an entry of a list is the end of a module's name, and only a single string is "
    "a pattern; or the part was frozen afterwards"
)
REFROZEN = (
    "it freezes all that is no adapter: name their modules in modules_to_save, or unfreeze them after it"
)


class SilentFailure(NamedTuple):
    """Something that is wrong: what, with which names, and why it may be so."""

    what: str
    names: tuple[str, ...]
    cause: str

    def __str__(self) -> str:
        shown = ", ".join(self.names[:SHOWN])
        more = f" and {len(self.names) - SHOWN} more" if len(self.names) > SHOWN else ""
        where = f": {shown}{more}" if shown else ""
        return f"{self.what}{where}. Likely cause: {self.cause}"


def why_unreached(model: Any, names: tuple[str, ...]) -> str:
    """The likely cause where the backward has not reached the parameters ``names``."""
    return CUT if checkpointed(model) and any(tower in n for n in names for tower in TOWERS) else UNUSED


def checkpointed(model: Any) -> list[Any]:
    """The modules whose switch for checkpointing is on."""
    return [module for module in model.modules() if getattr(module, "gradient_checkpointing", False) is True]
