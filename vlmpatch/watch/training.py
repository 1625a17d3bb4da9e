"""``VLMPATCH_WATCH=1``: the first steps of a training are watched for what fails without an error.

    VLMPATCH_WATCH=1 torchrun … train.py        every Trainer of the process (TRL's, ms-swift's, a script's)
    from vlmpatch.tools.watch import WatchCallback
    Trainer(…, callbacks=[WatchCallback()])     this one

Three things are looked at: every trainable parameter is reached by the backward; the ranks hold the same
parameters after the optimizer's step; loss and gradients of the first batch are those of the same batch
with checkpointing off. How many parameters of each part of the model are trained is said with the result,
and where a part was meant to be trained and is frozen. What is found is a warning with names and the likely
cause; nothing is ended and nothing is changed: the extra forward leaves everything as it was (``untouched``),
or is not made. After the last watched step all hooks are gone.

Ranks are compared where a wrapper of this very model keeps them alike and each of them holds it whole (DDP,
ZeRO-1 and 2), over the job's store, and none is waited for (``exchange``). Under ZeRO-3 every value exists
once, and a second forward would disturb DeepSpeed's record of the order of modules, so there the first check
alone is made.
"""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING, Any

from vlmpatch.watch.refrozen import History, chosen
from vlmpatch.watch.verdict import Verdict, conclude, several, tell
from vlmpatch.watch.watcher import STEPS, Watcher

if TYPE_CHECKING:
    from vlmpatch.imports.finder import Hooks
    from vlmpatch.journal.journal import Journal

TARGET = "transformers.trainer_callback"
PEFT = "peft.peft_model"


def arm(hooks: Hooks, journal: Journal, steps: int = STEPS) -> None:
    """Give every Trainer of this process a ``WatchCallback``; called when VLMPATCH_WATCH is set.

    Args:
        hooks: tells of transformers.
        journal: records the change.
        steps: how many optimizer steps each Trainer is watched for.
    """

    history = History()

    def on_peft(module: Any) -> None:
        def build(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> None:
            kept = chosen(args[0] if args else kwargs.get("model"))
            original(self, *args, **kwargs)
            history.keep(self, kept)

        journal.wrap("watch", module.PeftModel, "__init__", build)

    def on_target(module: Any) -> None:
        made = sys.modules[__name__].WatchCallback

        def build(original: Any, self: Any, /, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if not any(isinstance(callback, made) for callback in self.callbacks):
                self.callbacks.append(made(steps, history))

        journal.wrap("watch", module.CallbackHandler, "__init__", build)

    hooks.watch(TARGET, on_target)
    hooks.watch(PEFT, on_peft)


def __getattr__(name: str) -> Any:
    """``WatchCallback``, made when it is asked for: it derives from a class of transformers."""
    if name != "WatchCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from transformers.trainer_callback import TrainerCallback

    class WatchCallback(TrainerCallback):  # type: ignore[misc]
        """Watches the first steps of one Trainer and warns of what fails without an error.

        Args:
            steps: how many optimizer steps.
            history: what was chosen to be trained before PEFT had the model; known under VLMPATCH_WATCH.
        """

        def __init__(self, steps: int = STEPS, history: History | None = None) -> None:
            self.steps = steps
            self.history = history
            self.watcher: Watcher | None = None
            self.verdict: Verdict | None = None  # for which some rank has not yet come

        def on_train_begin(
            self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
        ) -> None:
            """Begin, where the model is one that can be watched."""
            if getattr(args, "fsdp", None):
                tell("parameters are sharded by FSDP: not watched", everywhere=several())
            elif model is not None:
                self.watcher = Watcher(model, self.steps, self.history)

        def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """A micro-batch within an accumulation is over."""
            if self.watcher is not None:
                self.watcher.micro_batch_ended()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """The optimizer has made its step."""
            if self.verdict is not None:
                # Every rank's gradients were needed for this step, so each has come past the one before.
                self.verdict.given_up()
                self.verdict = None
            if self.watcher is not None and self.watcher.step_ended():
                self.verdict, self.watcher = conclude(self.watcher), None

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """The training was shorter than the watch."""
            if self.watcher is not None:
                self.watcher.end()
                self.verdict, self.watcher = conclude(self.watcher), None
            if self.verdict is not None:
                atexit.register(self.verdict.given_up)
                self.verdict = None

    globals()[name] = WatchCallback
    return WatchCallback
