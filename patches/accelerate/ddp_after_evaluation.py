"""Nothing is printed: a model that was evaluated before it is trained is trained by each rank for itself.

What the user sees: nothing. ``trainer.evaluate()`` or ``trainer.predict()`` and then ``trainer.train()``, by
HF Trainer or whatever is made of it, under DDP: losses fall, but no gradient is averaged. Each rank trains
its own model on its share of the data, and the first one's is saved. A LoRA put around a model that was
evaluated before bears the mark of the model inside, and is trained so as well.

Why: an evaluation prepares the model without DDP around it, and marks it as prepared. The training then asks
for it to be prepared, and is handed what bears the mark as it is.

Since accelerate 1.14, which brought the mark (https://github.com/huggingface/accelerate/pull/3977); 1.15
included.

The change: what was prepared for an evaluation alone is prepared anew for a training, as up to accelerate
1.13. Left alone: one process; a frozen model, such as a teacher, for which torch refuses DDP; a model that
``torch.compile`` was put around in the evaluation, which the Trainer takes for what is to be trained, in
every release.

Upstream: no report was found.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

from vlmpatch.api import Argument, Code, Patch, Unrecognised, assign

OWNER, NAME = "Accelerator", "prepare_model"
MARK = "_is_accelerate_prepared"
MODEL, EVALUATES = Argument(0, "model"), Argument(2, "evaluation_mode")


def look(code: Code) -> str | None:
    """A model that bears the mark must be handed back, whatever it was prepared for."""
    function = code.function(f"{OWNER}.{NAME}")
    if function is None or "evaluation_mode" not in function:
        raise Unrecognised(f"{code.module} has no {OWNER}.{NAME}")
    return None if f'getattr(model, "{MARK}", False)' in function else "a model bears no mark"


def apply(patch: Patch, module: ModuleType) -> None:
    """Prepare anew for a training what was prepared for an evaluation alone."""
    evaluated: WeakValueDictionary[int, Any] = WeakValueDictionary()  # by id: a module may have an __eq__

    def prepare_model(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        model, evaluates = MODEL.of(args, kwargs), EVALUATES.of(args, kwargs, False)
        marked = getattr(model, MARK, False)
        trains = marked and not evaluates and self.num_processes > 1
        if trains and any(p.requires_grad for p in model.parameters()):
            # PEFT's model has the attributes of the one inside, the mark among them.
            for inside in [part for part in model.modules() if evaluated.get(id(part)) is part]:
                del evaluated[id(inside)]
                if hasattr(inside, MARK):  # a compiled one bears it outside
                    assign(inside, MARK, False)
        prepared = original(self, *args, **kwargs)
        if evaluates and not marked:
            evaluated[id(model)] = model
        return prepared

    patch.wrap(getattr(module, OWNER), NAME, prepare_model)
