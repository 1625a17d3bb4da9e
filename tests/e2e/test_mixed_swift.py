"""Real ms-swift 4.6.0, full tuning, on rows of which every third has no image: ZeRO-2, ZeRO-3 and DDP.

Its template for LLaVA leaves the tower out where a batch has no image, so ZeRO ends or is wrong without us.
The one for Qwen2-VL runs the tower on a picture of its own there and trains without us: with us it prints the
same. What is right is what DDP prints that looks for unused parameters. Rows are taken in their order. It is
not LoRA, which begins with other random numbers under ZeRO-3.
"""

from __future__ import annotations

import functools

import pytest

from tests.e2e import mixed_frameworks
from tests.e2e.mixed_frameworks import Train, bare_is_right, launched
from tests.e2e.test_launchers import LIMIT, ON_CPU, SWIFT, Training
from tests.lab import envs, launch

pytestmark = pytest.mark.slow
STACK = "swift460"
IN_ORDER = "--dataset_shuffle false --train_dataloader_shuffle false"
ENGINES = {
    "ddp": f"--ddp_find_unused_parameters true {ON_CPU}",
    "zero2": "--deepspeed zero2",
    "zero3": "--deepspeed zero3",
}
MODELS = {"llava1_5_hf": "llava_files", "qwen2_vl": "qwen2_vl"}  # by ms-swift's name, ours
OWN_IMAGE = ("qwen2_vl",)
HANGS = 120.0  # seconds after which a bare run has ended for us


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Run ms-swift once on a model under an engine."""

    @functools.cache
    def run(kind: str, engine: str, *, patched: bool) -> Training:
        stack, folder = envs.read_stacks()[STACK], tmp_path_factory.mktemp("mixed")
        envs.make(stack)
        model = launch.checkpoint(stack, MODELS[kind])
        rows, said = mixed_frameworks.rows(model, folder), SWIFT.replace("qwen2_vl", kind)
        words = f"swift sft --tuner_type full --dataset {rows} {ENGINES[engine]} {IN_ORDER} {said}".split()
        command = [word.replace("MODEL", str(model)) for word in words]
        command += ["--output_dir", str(folder / "out"), "--max_steps", "4"]
        limit = LIMIT if patched or kind in OWN_IMAGE else HANGS
        environ = {"USE_HF": "1"}
        return launched(STACK, command, folder / "out", engine, environ, patched=patched, limit=limit)

    return run


@pytest.mark.parametrize("engine", ["zero2", "zero3"])
@pytest.mark.parametrize("kind", MODELS)
def test_mixed_rows_print_what_ddp_prints(kind: str, engine: str, train: Train) -> None:
    right, bare = bare_is_right(train, kind, engine)
    assert right == (kind in OWN_IMAGE), str(bare.finished)
