"""Each patch by itself: a run that is right with all of them, and what it ends in without this one.

    python -m tests.e2e.alone [PATCH ...]

prints both endings of each; ``test_alone.py`` holds them against what stands here.

The patch is switched off as a user would, by ``VLMPATCH_DISABLE``. A patch whose run ends as well without it
has too wide a gate, or too weak a test. What MiniCPM-V's script needs is proven in ``test_minicpmv.py``.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.zero3_runs import Run
from tests.e2e import test_adapters as adapters
from tests.e2e import test_field as field
from tests.e2e import test_minicpmv_launched as minicpmv
from tests.e2e import test_mixed as mixed
from tests.e2e import test_zero3 as zero3
from tests.e2e import test_zero3_outside as outside
from tests.lab import cells, envs, launch
from tests.lab.cells import Result
from tests.matrix import scripts
from vlmpatch_lab.cell import Cell

RIGHT = "right"
GRADIENTS, PARAMETERS = 1e-5, 1e-3  # relative; steps divide by a gradient's size
TF447, TF457, TF523 = "tf447-ds0169", "tf457-ds0182", "tf523-ds0198"
READY_TWICE = "mark a variable ready only once"
STANDS = "use_reentrant=True was passed in so many words and stands"
Env = Mapping[str, str]
Endings = dict[str, str]  # of each case, by its name


@dataclass(frozen=True)
class Proof:
    """A run that needs the patch."""

    patch: str
    stack: str
    how: str  # one of HOW
    case: Any
    without: str  # regex: what it ends in without the patch
    with_all: str = RIGHT  # regex
    # Patches that end the same failure in the models they know, off in both runs: as in a model they do not.
    hidden_by: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.stack}:{self.patch}"

    @property
    def name(self) -> str:
        """Of the case, among the endings."""
        return str(getattr(self.case, "id", self.case))


# --- how a case is run, and what its ending is called ------------------------------------------------


def of_cells(stack: str, wanted: Sequence[Cell], env: Env, out: Path) -> Endings:
    """Cells held against their measures, which run bare."""
    known, measures = envs.read_stacks()[stack], out.parent / "measures"
    missing = [c.reference for c in wanted if not any((measures / c.reference.id).glob("rank*.pt"))]
    if missing:
        cells.run(known, missing, measures)
    ran = cells.run(known, wanted, out, patched=True, reference=measures, env=env)
    return {name: ended(result) for name, result in ran.items()}


def of_field(stack: str, wanted: Sequence[Cell], env: Env, out: Path) -> Endings:
    """Cells that measure themselves."""
    ran = cells.run(envs.read_stacks()[stack], wanted, out, patched=True, env=env)
    return {name: ended(result) for name, result in ran.items()}


def of_warned(stack: str, wanted: Sequence[Cell], env: Env, out: Path) -> Endings:
    """Cells that end in the user's own choice; what matters is that it was said."""
    ran = cells.run(envs.read_stacks()[stack], wanted, out, patched=True, env=env)
    return {name: f"{'told' if STANDS in r.log else 'silent'}: {r.error}" for name, r in ran.items()}


def of_outside(stack: str, wanted: Sequence[str], env: Env, out: Path) -> Endings:
    found = outside.perform(stack, wanted, out, patched=True, env=env)
    return {name: outside_ending(report) for name, report in found.items()}


def outside_ending(report: dict[str, Any]) -> str:
    if report["hung"]:
        return f"hung: {report['ranks']}"
    return "; ".join(w for rank in report["ranks"] for w in outside.wrong(rank)) or RIGHT


def of_mixed(stack: str, wanted: Sequence[str], env: Env, out: Path) -> Endings:
    """Scenarios of ``mixed_ranks``."""
    kinds = sorted({name.split(":")[1] for name in wanted})
    known = envs.read_stacks()[stack]
    models = launch.checkpoints(known, [kind for kind in kinds if kind != "minicpmv"])
    models |= {"minicpmv": scripts.made(known) / "model"} if "minicpmv" in kinds else {}
    found = mixed.of_scenarios(stack, models, wanted, out, "patched", env)
    return {
        name: f"error: {error}" if error else RIGHT if off <= GRADIENTS else f"{off:.2g} off"
        for name, (error, off) in found.items()
    }


def of_trainer(stack: str, wanted: Sequence[str], env: Env, out: Path) -> Endings:
    """HF Trainer by torchrun on mixed data; a case is an engine."""
    endings = {}
    mixed.train(stack, "plain", out / "right.pt")
    for engine in wanted:
        ran = mixed.train(stack, engine, out / f"{engine}.pt", "--import-vlmpatch", env=env)
        off = mixed.apart(stack, out / f"{engine}.pt", out / "right.pt") if ran.rc == 0 else 0.0
        said = f"error: {ran.output[-6000:]}" if ran.rc else f"{off:.2g} off"
        endings[engine] = RIGHT if ran.rc == 0 and off <= GRADIENTS else said
    return endings


def of_gathers(stack: str, wanted: Sequence[Run], env: Env, out: Path) -> Endings:
    """Runs of ``bench.zero3_gather_ranks``; an error comes with what the ranks printed."""
    found = zero3.perform(stack, list(wanted), out, env)
    printed = {
        name: "".join(path.read_text()[-3000:] for path in sorted((out / name).glob("rank*.log")))
        for name in found
    }
    return {n: f"error: {ran['error']}\n{printed[n]}" if ran["error"] else RIGHT for n, ran in found.items()}


def of_adapters(stack: str, wanted: Sequence[str], env: Env, out: Path) -> Endings:
    """An adapter of the oldest stack, loaded in one of the ways of ``tests.lab.adapters``."""
    model = launch.checkpoint(envs.read_stacks()[adapters.OLD], "qwen2_vl")
    adapters.act(adapters.OLD, "save", model, out)
    ran = adapters.act(stack, "load", model, out, "--patched", env=env)
    return {
        way["way"]: RIGHT if way["loaded"] == way["saved"] else f"{way['loaded']} of {way['saved']} loaded"
        for way in ran
    }


def of_swift(stack: str, wanted: Sequence[str], env: Env, out: Path) -> Endings:
    """MiniCPM-V in ms-swift; a case is what it does, and under which engine."""
    made, endings = scripts.made(envs.read_stacks()[stack]), {}
    for case in wanted:
        kind, engine = case.split(":")
        ran = minicpmv.swift(kind, engine, made, out / kind, stack=stack, **dict(env)).finished
        endings[case] = f"error: {ran.output[-6000:]}" if ran.rc else RIGHT
    return endings


HOW: dict[str, Callable[[str, Sequence[Any], Env, Path], Endings]] = {
    "cell": of_cells,
    "field": of_field,
    "warned": of_warned,
    "outside": of_outside,
    "mixed": of_mixed,
    "trainer": of_trainer,
    "gathers": of_gathers,
    "adapters": of_adapters,
    "swift": of_swift,
}


def ended(result: Result) -> str:
    """``right``, or the worst that can be said of it."""
    if not result.ok:
        return f"error: {result.error}"
    if result.missing:
        return f"{len(result.missing)} without a gradient"
    if result.between_ranks:
        return f"{result.between_ranks:.2g} between ranks"
    if not ((result.difference or 0.0) <= GRADIENTS and (result.parameters or 0.0) <= PARAMETERS):
        return f"{result.difference:.2g} off, parameters {result.parameters}"
    return RIGHT


def perform(proofs: Sequence[Proof], out: Path, without: str = "") -> Endings:
    """Run cases of one stack and kind in one process, with everything or without one patch."""
    (stack,), (how,), (hidden,) = ({getattr(p, n) for p in proofs} for n in ("stack", "how", "hidden_by"))
    off = [*hidden, *([without] if without else [])]
    cases = list({proof.name: proof.case for proof in proofs}.values())
    out.mkdir(parents=True, exist_ok=True)
    return HOW[how](stack, cases, {"VLMPATCH_DISABLE": ",".join(off)}, out)


def groups(proofs: Iterable[Proof]) -> list[list[Proof]]:
    """Those that can share a process when every patch is on."""
    found: dict[Any, list[Proof]] = {}
    for proof in proofs:
        found.setdefault((proof.stack, proof.how, proof.hidden_by), []).append(proof)
    return list(found.values())


def fits(pattern: str, ending: str) -> bool:
    """Whether an ending is the one that is expected."""
    return re.search(pattern, ending) is not None and (pattern == RIGHT) == (ending == RIGHT)


# --- the proofs ---------------------------------------------------------------------------------------


def zero(stage: int, pattern: str, accumulation: int = 1, **more: Any) -> Cell:
    return Cell(
        engine=f"zero{stage}", tuning="full", compared=3, pattern=pattern, accumulation=accumulation, **more
    )


NO_BLANK_IMAGE = ("batches-without-images",)
LEAST = "cache-in-recompute"  # what `make test` proves of this page: one cell on one stack

PROOFS = (
    # Checkpointing.
    Proof(
        "torch-checkpoint-default",
        TF457,
        "cell",
        Cell(kind="internvl_repo", engine="ddp", tuning="full"),
        READY_TWICE,
    ),
    Proof("gradient-checkpointing-default", TF457, "cell", Cell(engine="ddp_unused"), READY_TWICE),
    Proof(
        "overridden-checkpointing-default",
        TF523,
        "cell",
        Cell(engine="ddp_unused", variant="copied"),
        READY_TWICE,
    ),
    Proof(
        "vision-input-grads",
        TF457,
        "cell",
        Cell(engine="none", checkpointing="reentrant"),
        "without a gradient",
        hidden_by=("reentrant-checkpoint-inputs",),
    ),
    Proof("reentrant-checkpoint-inputs", TF457, "field", field.KEYWORDS, field.NO_GRADIENT),
    Proof(
        "old-checkpointing-format",
        TF457,
        "cell",
        Cell(engine="zero2", variant="old_flag"),
        "has no attribute '_gradient_checkpointing_func'",
    ),
    Proof(
        "explicit-reentrant-warning",
        TF457,
        "warned",
        Cell(engine="ddp_unused", checkpointing="reentrant"),
        f"^silent: .*{READY_TWICE}",
        f"^told: .*{READY_TWICE}",
    ),
    Proof("cache-in-recompute", TF457, "field", field.WRAPPED, field.METADATA),
    Proof("generate-while-checkpointing", TF457, "field", field.GENERATE, field.MASK),
    Proof("input-grads-leaf", TF457, "field", field.LEAF_LLAVA, field.LEAF),
    # Who decides for the user.
    Proof("swift-checkpoint-override", "swift341", "cell", Cell(trainer="swift_sft"), READY_TWICE),
    Proof("swift-missing-generation-config", "swift360", "swift", "sft:zero2", "NoneType.*eos_token_id"),
    Proof("llamafactory-forced-reentrant", "llamafactory093", "cell", field.FORCED, READY_TWICE),
    Proof(
        "trl-forced-reentrant",
        "trl029",
        "cell",
        Cell(trainer="trl_sft", engine="zero3"),
        "without a gradient",
        hidden_by=("reentrant-checkpoint-inputs", "vision-input-grads"),
    ),
    Proof("axolotl-forced-reentrant", "axolotl019", "cell", Cell(trainer="axolotl_sft"), READY_TWICE),
    # The Trainer.
    Proof("accumulated-loss-undivided", TF447, "field", field.ACCUMULATE_TEXT, field.WRONG),
    Proof("accumulation-divided-twice", "tf530-ds0185", "field", field.ACCUMULATE_TEXT, field.WRONG),
    Proof("loss-kwargs-ignored", "torch260", "field", field.ACCUMULATE_LLAVA, field.WRONG),
    Proof("stale-rope-deltas", TF447, "cell", Cell(tuning="full", compared=2), " off"),
    Proof("overridden-compute-loss", TF457, "field", field.OLD_SCRIPT, field.NO_COUNT),
    Proof("adapter-renamed-keys", TF457, "adapters", "resume", "^0 of "),
    Proof("peft-generation-inputs", TF457, "field", field.CAUSAL_TASK, field.NO_INPUTS),
    Proof("unused-under-checkpointing", TF457, "trainer", "ddp", "Expected to have finished reduction"),
    Proof(
        "deepspeed-dropped-group",
        TF457,
        "cell",
        Cell(trainer="hf_own_optimizer", engine="zero2"),
        r"zip\(\) argument 2 is longer",
    ),
    # Batches.
    Proof(
        "batches-without-images",
        TF457,
        "cell",
        mixed.mixed("llava", "zero3", "full"),
        "^error: |off",
    ),
    Proof("minicpmv-slice-groups", TF457, "mixed", "slices:minicpmv", "^error: "),
    Proof(
        "zero-uneven-gradients", TF457, "cell", zero(2, "alternating"), "^error: ", hidden_by=NO_BLANK_IMAGE
    ),
    Proof("zero3-stale-gradients", TF457, "cell", zero(3, "text-step"), " off", hidden_by=NO_BLANK_IMAGE),
    Proof("zero2-lost-micro-batches", TF457, "cell", zero(2, "images", 2), " off"),
    Proof(
        "zero2-offload-lost-micro-batches",
        TF457,
        "cell",
        zero(2, "images", 4, zero={"offload_optimizer": {"device": "cpu"}}),
        " off",
    ),
    Proof("accumulation-scaled-twice", "torch2100", "cell", zero(2, "images", accumulation=2), " off"),
    Proof(
        "zero-lost-backwards",
        TF523,
        "cell",
        zero(2, "images", scenario="two-backwards", forwards=2),
        " off",
    ),
    # ZeRO-3's own.
    Proof(
        "zero3-recompute-release",
        TF457,
        "cell",
        Cell(engine="zero3", checkpointing="nonreentrant"),
        "have different metadata",
    ),
    Proof(
        "zero3-repeated-reduction",
        TF457,
        "cell",
        Cell(engine="zero3", tuning="full", forwards=2, checkpointing="reentrant"),
        "AssertionError",
    ),
    Proof(
        "zero3-modules-to-save",
        TF457,
        "cell",
        Cell(engine="zero3", tuning="lora_saved", checkpointing="off"),
        "ds_grads_remaining",
    ),
    Proof(
        "zero3-copied-whole",
        "peft082",
        "outside",
        "modules-to-save-of-a-partitioned-model",
        "AssertionError: {'id'",
    ),
    Proof("zero3-checkpoint-wrapper", TF457, "field", field.WRAPPED_ZERO3, field.DS_STATE),
    Proof(
        "zero3-uneven-calls",
        TF457,
        "gathers",
        Run(kind="blocks", checkpointing="nonreentrant", patched=True, steps=1, scenario="uneven", limit=60),
        "Connection closed by peer|exit code -9",
        "blocks.0.norm.weight on rank 0, blocks.1.norm.weight on rank 1",
    ),
    Proof(
        "zero3-sparse-experts",
        TF457,
        "cell",
        Cell("glm4v_moe", "zero3", "full", compared=1),
        "^error: ",
    ),
    Proof(
        "fsdp2-sparse-experts",
        TF457,
        "cell",
        Cell("qwen3_moe", "fsdp2", "full", compared=2),
        "^error: ",
    ),
    Proof(
        "zero3-leaf-inputs",
        TF457,
        "cell",
        Cell("qwen3_moe", "zero3", "lora_experts", compared=1, checkpointing="off", input_grads=False),
        "size of tensor a \\(0\\)",
    ),
    Proof(
        "zero3-save-on-every-rank",
        TF457,
        "gathers",
        Run(kind="blocks", checkpointing="off", patched=True, steps=1, scenario="save_alone", limit=45),
        "ended with exit code -9",
        "was called on rank 0 and not on rank 1",
    ),
    # ZeRO-3 outside the engine.
    Proof("zero3-initialised-whole", TF457, "outside", "made-from-scratch", "index 0 is out of bounds"),
    Proof(
        "zero3-loaded-whole",
        TF457,
        "outside",
        "loaded-afterwards",
        r"current model is torch\.Size\(\[0\]\)",
    ),
    Proof("zero3-called-whole", TF457, "outside", "called-before-the-engine", "weight should have at least"),
    Proof("zero3-saved-whole", TF457, "outside", "saved-by-the-script", "would be written empty"),
    Proof(
        "trainer-saves-once",
        TF457,
        "outside",
        "trainer-ignoring",
        "save_pretrained of BertForSequenceClassification was called on rank 0 and not on rank 1",
    ),
    Proof(
        "zero3-adapter-saved-whole", TF457, "outside", "adapter-saved-by-the-script", "would be written empty"
    ),
    Proof("zero3-empty-saves", TF457, "outside", "state-dict-saved", "differing"),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.alone")
    parser.add_argument("patches", nargs="*", help="all of them when none is named")
    asked = parser.parse_args()
    out = Path(tempfile.mkdtemp(prefix="alone-"))
    wanted = [proof for proof in PROOFS if not asked.patches or proof.patch in asked.patches]
    for number, group in enumerate(groups(wanted)):
        place = out / str(number)
        with_all = perform(group, place / "all")
        for proof in group:
            without = perform([proof], place / proof.patch, without=proof.patch)
            pairs = ((proof.with_all, with_all), (proof.without, without))
            ok = all(fits(expected, endings[proof.name]) for expected, endings in pairs)
            print(f"{'ok   ' if ok else 'WRONG'} {proof.id}", flush=True)
            for word, endings in (("all", with_all), ("without", without)):
                print(f"      {word:8}{' '.join(endings[proof.name].split())[:400]}", flush=True)


if __name__ == "__main__":
    main()
