"""Which engine for which job, and what each costs: what was measured and what the rules say, never taste."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from vlmpatch.tools.doctor import measured
from vlmpatch.tools.lint import command, understood
from vlmpatch.tools.lint.context import Around
from vlmpatch.tools.lint.model import Model
from vlmpatch.tools.lint.rules import lint
from vlmpatch.tools.lint.understood import Understood
from vlmpatch.tools.view.language import Words

# Bytes a parameter with AdamW and bf16 weights: weight, gradient, and float32 master, momentum and variance.
_WEIGHT, _GRADIENT, _OPTIMIZER = 2, 2, 12
# Gathered elements over parameters in a step with checkpointing, DeepSpeed 0.18.2: docs/zero3-gathers.md.
GATHERED = {"full": ("2.00", "2.71–2.91"), "lora": ("1.97", "2.74")}
_FLAGS = "--nproc_per_node 8 train.py --gradient_checkpointing true --gradient_accumulation_steps 4"
_TUNING = {"full": "", "lora": "--use_lora true"}
GIB = 1 << 30


class Engine(NamedTuple):
    """One way to train.

    Attributes:
        name: for a person.
        key: of the record of measurements.
        flags: of a launch that asks for it.
        split: which of weight, gradient and optimizer state are divided by the number of ranks.
    """

    name: str
    key: str
    flags: str
    split: tuple[bool, bool, bool]


ENGINES = (
    Engine("DDP", "ddp_unused", "", (False, False, False)),
    Engine("ZeRO-1", "zero1", "--deepspeed zero1", (False, False, True)),
    Engine("ZeRO-2", "zero2", "--deepspeed zero2", (False, True, True)),
    Engine("ZeRO-3", "zero3", "--deepspeed zero3", (True, True, True)),
)


class Choice(NamedTuple):
    """What an engine comes to for one kind of tuning.

    Attributes:
        engine: it is.
        tuning: ``full`` or ``lora``.
        bytes: of states a parameter: what each rank holds whole, and what is divided by their number.
        judged: what the rules say of a launch that says no more than that.
        exact: whether gradients and steps were measured, and right.
    """

    engine: Engine
    tuning: str
    bytes: tuple[int, int]
    judged: Understood
    exact: bool


def choices(tuning: str, model: Model | None, around: Around) -> Iterator[Choice]:
    """Each engine, for ``tuning``."""
    record = measured.mixed(model.kind, around.installed.get("transformers")) if model else None
    for engine in ENGINES:
        line = f"torchrun {_FLAGS} {_TUNING[tuning]} {engine.flags}"
        (launch,) = command.read(line, "").launches
        judged = understood.of(launch, lint(launch, around._replace(model=model)))
        right = record is not None and tuning in record.right[engine.key]
        yield Choice(engine, tuning, states(engine, tuning), judged, right)


def states(engine: Engine, tuning: str) -> tuple[int, int]:
    """Bytes a parameter that a rank holds whole, and those that the ranks divide; adapters are left out."""
    sizes = (_WEIGHT, _GRADIENT, _OPTIMIZER) if tuning == "full" else (_WEIGHT, 0, 0)
    whole = sum(size for size, split in zip(sizes, engine.split, strict=True) if not split)
    return whole, sum(sizes) - whole


def data(choice: Choice) -> dict[str, Any]:
    """A choice for ``--json``."""
    whole, divided = choice.bytes
    return {
        "engine": choice.engine.name,
        "tuning": choice.tuning,
        "bytes_a_parameter": whole,
        "bytes_a_parameter_divided": divided,
        "measured_right": choice.exact,
        "wrong": choice.judged.wrong,
        "ended": dict(choice.judged.ended),
        "left": choice.judged.left,
    }


def row(choice: Choice, model: Model | None, say: Words) -> tuple[str, str]:
    """A label and a paragraph for a person."""
    said = [_memory(choice, model, say)]
    if choice.engine.key == "zero3":
        ours, bare = GATHERED[choice.tuning]
        gathers = "each parameter gathered {ours} times a step ({bare} without vlmpatch)"
        said.append(say(gathers, ours=ours, bare=bare))
    if choice.exact:
        said.append(say("measured right with vlmpatch, mixed batches too"))
    said.append(_verdict(choice.judged, say))
    return choice.engine.name, say.mark("; ").join(said)


def _memory(choice: Choice, model: Model | None, say: Words) -> str:
    whole, divided = choice.bytes
    if model is None or model.parameters is None:
        parts = [f"{whole} B"] if whole else []
        parts += [say("{bytes} B / ranks", bytes=divided)] if divided else []
        return say("{states} of states a parameter", states=" + ".join(parts))
    parts = [_gib(whole * model.parameters)] if whole else []
    parts += [say("{size} / ranks", size=_gib(divided * model.parameters))] if divided else []
    return say("{states} of states a GPU", states=" + ".join(parts))


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _verdict(judged: Understood, say: Words) -> str:
    if not judged.wrong:
        notes = say.listed(judged.notes)
        return say(
            "nothing known goes wrong for certain ({notes})" if notes else "nothing known goes wrong",
            notes=notes,
        )
    wrong = say.listed(judged.wrong)
    if judged.left:
        return say("{wrong} without vlmpatch, {left} with it", wrong=wrong, left=say.listed(judged.left))
    return say("{wrong} without vlmpatch, nothing known with it", wrong=wrong)
