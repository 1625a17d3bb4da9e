"""What ``explain`` makes of a log: one failure, the first real cause, or silence."""

from __future__ import annotations

import io
import json
import random
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.model import Entry
from vlmpatch.catalog.read import read
from vlmpatch.tools import cli
from vlmpatch.tools.explain import answer_page, answers, failures
from vlmpatch.tools.explain.diagnose import Diagnosis, diagnose, printable
from vlmpatch.tools.explain.logs import PIECE, Reader, occurring
from vlmpatch.tools.view.language import Words

KNOWN = failures.read(default_path())
OURS = read(default_path())
READY = (
    "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the following "
    "Parameter at index 9 with name base_model.model.layers.3.mlp.lora_B.default.weight has been marked"
)
TRACE = """Traceback (most recent call last):
  File "/x/train.py", line 9, in <module>
    trainer.train()
  File "/x/site-packages/torch/autograd/graph.py", line 823, in _engine_run_backward
"""
WATCHDOG = (
    "[rank{0}]:[E1122 10:00:00.000000001 ProcessGroupNCCL.cpp:629] [Rank {0}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=9, OpType=_ALLGATHER_BASE, NumelIn=4, Timeout(ms)=600000) ran"
)
TORN = """Traceback (most recent call last):
  File "/x/site-packages/deepspeed/runtime/zero/stage3.py", line 2341, in backward
    self.loss_scaler.backward(loss.float(), retain_graph=retain_graph)
  File "/x/site-packages/torch/autograd/graph.py", line 979, {}
    return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
RuntimeError: The size of tensor a (0) must match the size of tensor b (4) at non-singleton dimension 1"""
TORN_LEAF = TORN.format("in _engine_run_backward")
TORN_AGAIN = TORN_LEAF.replace(
    "RuntimeError",
    """  File "/x/site-packages/torch/autograd/function.py", line 311, in apply
    return user_fn(self, *args)
  File "/x/site-packages/torch/utils/checkpoint.py", line 320, in backward
    outputs = ctx.run_function(*detached_inputs)
  File "/x/site-packages/transformers/models/qwen3_moe/modeling_qwen3_moe.py", line 240, in forward
    return weight * hidden
RuntimeError""",
)
CHILD = TRACE + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n====\ntrain.py FAILED\n"


def of(text: str | bytes) -> Diagnosis:
    return diagnose(io.BytesIO(text if isinstance(text, bytes) else text.encode()), KNOWN)


def said(text: str | bytes) -> str | None:
    hit = of(text).hit
    return hit.failure.id if hit and not hit.failure.foreign else None


def test_the_failures_of_our_own_catalog_are_sound() -> None:
    assert KNOWN.problems == ()
    named = {id_ for failure in KNOWN.known.values() for each in failure.symptoms for id_ in each.patches}
    assert named <= OURS.entries.keys()


@pytest.mark.parametrize("entry", OURS.entries.values(), ids=lambda entry: entry.id)
def test_what_a_patch_ends_has_a_file_of_failures(entry: Entry) -> None:
    missing = set(entry.failures) - KNOWN.known.keys()
    assert not missing, f"write a file of failures/ for each of these: {missing}"


PREFIXES = [
    "[rank3]: {}",
    "3: {}",
    " 12: {}",
    "[default3]:{}",
    "[1,3]<stderr>:{}",
    "worker-1: {}",
    "(RayTrainWorker pid=92234, ip=172.19.24.110) {}",
    "(WorkerDict pid=7) [rank3]: {}",
    "2025-11-22T10:00:00.123456789Z stderr F {}",
    "[2025-11-22 10:00:00,123] {}",
    "2025-11-22 10:00:00.123 | {}",
    "trainer-1  | {}",
    "[pod/train-0/main] {}",
    "\x1b[31m{}\x1b[0m",
    "> {}",
    '{{"log":"{}\\n","stream":"stderr","time":"2025-11-22T10:00:00.123Z"}}',
    "Nov 22 10:00:00 gpu-node-3 train[1234]: {}",
]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_launchers_put_before_a_line_changes_nothing(prefix: str) -> None:
    text = "\n".join(prefix.format(line) for line in (TRACE + READY).splitlines())
    assert said(text) == "F3"
    seen = of(text).hit
    assert seen is not None
    assert seen.message.line.startswith("RuntimeError: Expected to mark")
    assert of("\n".join(prefix.format(line) for line in f"{TRACE}KeyError: 'image'".splitlines())).first


@pytest.mark.parametrize("width", [20, 37, 80, 119])
def test_a_message_wrapped_anywhere_is_the_same_message(width: int) -> None:
    whole = f"[rank0]: {READY}"
    assert said("\n".join(whole[at : at + width] for at in range(0, len(whole), width))) == "F3"


def test_another_ranks_exception_comes_before_what_the_others_print() -> None:
    others = "\n".join(WATCHDOG.format(rank) for rank in range(8))
    assert said(f"'zero3' {others}\n{CHILD}") == "F11"
    assert said(f"'zero3'\n[rank5]: KeyError: 'image'\n{others}\n{CHILD}") is None
    assert said(f"'zero3'\n{others}\n[rank5]: {READY}\n{CHILD}") == "F3"


def test_a_caught_exception_is_not_the_cause() -> None:
    steps = "{'loss': 1.0, 'epoch': 0.1}\n" * 3
    assert said(f"zero3\n{TRACE}KeyError: 'image'\n{steps}{WATCHDOG.format(1)}") == "F11"


def test_a_warning_is_an_answer_only_where_nothing_failed() -> None:
    warning = "/x/checkpoint.py:31: UserWarning: None of the inputs have requires_grad=True. Gradients\n"
    assert said(warning) == "F5"
    assert said(warning + TRACE + "ValueError: something else") is None
    assert said(warning + TRACE + READY) == "F3"


RECOMPUTED = (
    "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following "
    "tensors have different metadata than during the forward pass.\ntensor at position 16:\n"
    "saved metadata: {{'shape': torch.Size([{}]), 'dtype': torch.float32}}\n"
    "recomputed metadata: {{'shape': torch.Size([{}]), 'dtype': torch.float32}}\n"
)


@pytest.mark.parametrize(
    ("saved", "recomputed", "id_"),
    [("3584", "0", "F4"), ("1, 2, 16, 16", "1, 2, 32, 16", "F20"), ("256, 32", "4, 8, 201, 201", None)],
)
def test_recomputed_values_are_told_apart_by_their_shapes(
    saved: str, recomputed: str, id_: str | None
) -> None:
    assert said(RECOMPUTED.format(saved, recomputed)) == id_


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        (
            "RuntimeError: The expanded size of the tensor (46) must match the existing size (23) at non",
            "F20",
        ),
        ("RuntimeError: The expanded size of the tensor (46) must match the existing size (22) at non", None),
        (
            "The shape of the mask [9] at index 0 does not match the shape of the indexed tensor [8]",
            "F30",
        ),
        ("RuntimeError: Connection closed by peer [127.0.0.1]:10895", None),
        ("data fetch error, image start token != image end tokens", None),
        ("AttributeError: 'LLaDAModelLM' object has no attribute 'all_tied_weights_keys'", None),
        ("AttributeError: 'MiniCPMV' object has no attribute 'all_tied_weights_keys'", "D"),
        ("Invalidate trace cache @ step 3: expected module 1614, but got module 3", "F11"),
        ("Invalidate trace cache @ step 0 and module 2619: cache has only 0 modules", None),
        (TRACE + "IndexError: index 0 is out of bounds for dimension 0 with size 0", None),
        (
            "VLM\nRuntimeError：a leaf Variable that requires grad is being used in an in-place operation.",
            "F13",
        ),
        (WATCHDOG.format(0) + "\nfsdp", None),
        (WATCHDOG.format(0) + "\ndistributed_type: FSDP, and not zero3", None),
        (WATCHDOG.format(0) + "\nzero3 model-30B-A3B", "F27"),
        ("微调进度100%后报错 Watchdog caught collective operation timeout: WorkNCCL", "F12"),
        (
            "size mismatch for a.b: copying a param with shape torch.Size([0]) from checkpoint, the shape",
            "F25",
        ),
        (
            "v: found shape torch.Size([8]) in the checkpoint and torch.Size([0]) in the model instantiated",
            "F24",
        ),
        ("v: torch.Size([8]) in the checkpoint and torch.Size([0]) in the model instantiated", None),
        (
            "ValueError: Attention mask should be of size (2, 1, 93, 186), but is torch.Size([2, 1, 93, 93])",
            "F20",
        ),
        (
            "RuntimeError: The size of tensor a (61) must match the size of tensor b (62) "
            "at non-singleton dimension 2",
            "F30",
        ),
        ("in masked_mean: The size of tensor a (25) must match the size of tensor b (24)", None),
        (
            "RuntimeError: The size of tensor a (61) must match the size of tensor b (77) "
            "at non-singleton dimension 2",
            None,
        ),
        ("TypeError: MyTrainer._get_train_sampler() takes 1 positional argument but 2 were given", "D"),
        ("TypeError: CPMTrainer.training_step() takes 3 positional arguments but 4 were given", "D"),
        ("TypeError: M._set_gradient_checkpointing() got an unexpected keyword argument 'enable'", "D"),
        ("RuntimeError: Expected to have finished reduction in the prior iteration before starting", None),
        (
            "LoRA + several GPUs\n"
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting",
            "F19",
        ),
        ("RuntimeError: No space left on device", None),
        (
            "saved metadata: {'shape': torch.Size([128]), 'dtype': torch.bfloat16}\n"
            "recomputed metadata: {'shape': torch.Size([0]), 'dtype': torch.bfloat16}",
            "F4",
        ),
        (
            TRACE.replace("autograd/graph", "nn/modules/sparse")
            + "    self.weight[self.padding_idx].fill_(0)\n"
            + "IndexError: index 0 is out of bounds for dimension 0 with size 0",
            None,
        ),
        (
            'File "/x/mmdet/apis/train.py", line 102, in train\n'
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting",
            None,
        ),
        (
            TRACE + "TypeError: Qwen2Audio.forward() got an unexpected keyword argument 'num_items_in_batch'",
            None,
        ),
        (
            'File "/x/modeling_align.py", line 1189, in _init_weights\n'
            "ValueError: Fan in and fan out can not be computed for tensor with fewer than 2 dimensions",
            "F23",
        ),
        (
            "File ~/yolov5/models/yolo.py:150, in Model.biases(self)\n"
            "RuntimeError: a view of a leaf Variable that requires grad is being used in an in-place "
            "operation.",
            None,
        ),
        (
            "~/transformers/models/gemma3/modeling_gemma3.py in forward(self, inputs_embeds)\n"
            "RuntimeError: a view of a leaf Variable that requires grad is being used in an in-place "
            "operation.",
            "F13",
        ),
        ("training_step() takes 3 positional arguments but 4 were given", None),
        ("UserWarning: Found missing adapter keys while loading the checkpoint: ['a.vision.lora_A']", "F31"),
        (
            "model.layers.0.q.lora_A.default.weight | UNEXPECTED\n"
            "language_model.layers.0.q.lora_A.default.weight | MISSING",
            "F31",
        ),
        (
            "in _initialize_biases: RuntimeError: a view of a leaf Variable that requires grad is being used "
            "in an in-place operation.",
            None,
        ),
        (
            "AssertionError: {'id': 9, 'status': 'NOT_AVAILABLE', 'numel': 0, 'ds_numel': 0, 'shape': (0,)}",
            "PEFT",
        ),
        ("assert param.ds_status == ZeroParamStatus.AVAILABLE, param.ds_summary()", None),
        (
            'File "/x/modeling_bert.py", line 9, in forward\nRuntimeError: The expanded size of the tensor '
            "(1024) must match the existing size (512) at non-singleton dimension 1.",
            None,
        ),
        ("The expanded size of the tensor (3) must match the existing size (864) at non-singleton d", None),
        (
            "ValueError: Attention mask should be of size (1, 1, 1, 24), but is torch.Size([1, 1, 1, 25])",
            None,
        ),
        (
            'File "/x/generation/utils.py", line 9, in generate\nRuntimeError: The size of tensor a (577) '
            "must match the size of tensor b (576) at non-singleton dimension 1",
            None,
        ),
        (
            'File "/x/auto_factory.py", line 604, in load\n    return model_class.from_pretrained(\n'
            "IndexError: index 0 is out of bounds for dimension 0 with size 0",
            "F23",
        ),
        ("IndexError: index 1 is out of bounds for dimension 0 with size 0\nds_config: zero.Init", "F23"),
        ("RuntimeError: The size of tensor a (4) must match the size of tensor b (0) at non-singleton", None),
        (TORN_LEAF, "F26"),  # nothing says that a leaf is in it
        ("modeling_qwen3_moe.py\n" + TORN_LEAF, "F35"),
        ("UserWarning: … since no inputs require gradients\n" + TORN_LEAF, "F35"),
        ("modeling_qwen3_moe.py\n" + TORN.format("in forward"), "F26"),
        ("modeling_qwen3_moe.py, stage3\n" + TORN_LEAF.split("\n")[-1], "F26"),
        (TORN_AGAIN, "F26"),  # within a backward, in a forward
        ("NameError: name 'Optional' is not defined", None),
        ("class CPMTrainer(Trainer)\nNameError: name 'Dict' is not defined", "D"),
        ("RecursionError: maximum recursion depth exceeded\n  File my_dataset.py", None),
        ("weights.bin\nlayers.0.q.lora_B.weight: torch.Size([0])\nadapter_model", "F25"),
        ("layers.0.q.lora_B.weight: torch.Size([0])", None),
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 2 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE), but Rank 3: OpType=GATHER",
            None,
        ),
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 2 is running collective: "
            "CollectiveFingerPrint(SequenceNumber=3, OpType=_ALLGATHER_BASE, TensorShape=[2048])",
            "F11",
        ),
        (
            "hidden = expert_layer(hidden)\nRuntimeError: Detected mismatch between collectives on ranks.",
            "F27",
        ),
        (WATCHDOG.format(0) + "\nzero3, when saving", "F12"),
        ("[rank0] ALLREDUCE SeqNum=41 NumelIn=1\n[rank1] ALLREDUCE SeqNum=41 NumelIn=402653184", "F16"),
        ("[rank0] ALLREDUCE SeqNum=41 NumelIn=1\n[rank1] ALLREDUCE SeqNum=41 NumelIn=1", None),
        (
            "RuntimeError: Expected to have finished reduction in the prior iteration before starting\n"
            'Traceback (most recent call last):\n  File "/x/mmdet/apis/train.py", line 102, in train',
            None,
        ),
        (
            "RuntimeError: a view of a leaf Variable that requires grad is being used in an in-place "
            "operation.\nlayer.output.dense.weight[:, 3] -= embedding",
            None,
        ),
        (
            "train.py --cfg yolo.yaml\na leaf Variable that requires grad is being used in an in-place op",
            None,
        ),
        (
            'File "/x/deepspeed/runtime/lr_schedules.py", line 296, in step\n'
            "ValueError: zip() argument 2 is longer than argument 1",
            "D",
        ),
        (
            "assert param.ds_status == ZeroParamStatus.AVAILABLE, param.ds_summary()\n"
            "AssertionError: {'id': 249, 'status': 'NOT_AVAILABLE', 'ds_shape': (0,), 'persist': True}",
            "F32",
        ),
        (
            "assert param.ds_status == ZeroParamStatus.AVAILABLE, param.ds_summary()\n"
            "AssertionError: {'id': 4, 'status': 'INFLIGHT', 'numel': 64, 'ds_shape': (8, 8)}",
            None,
        ),
        (
            'File "/x/unsloth_zoo/gradient_checkpointing.py", line 589, in backward\n'
            "    torch.autograd.backward(outputs_with_grad, args_with_grad)\n"
            "RuntimeError: Expected to mark a variable ready only once.",
            "F33",
        ),
    ],
)
def test_texts(text: str, id_: str | None) -> None:
    assert said(text) == id_


@pytest.mark.parametrize(
    ("sizes", "seen", "id_"),
    [
        ((1, 402653184), '"stage": 2', "F16"),
        ((4096, 4096), '"stage": 2', None),
        ((1, 402653184), "DDP", None),
        ((1, 402653184), 'distributed/fsdp, "stage": 2 before', None),
    ],
)
def test_ranks_in_different_collectives_of_one_number_are_told_from_a_late_one(
    sizes: tuple[int, int], seen: str, id_: str | None
) -> None:
    lines = [
        f"[rank{rank}]:[E1122 10:00:00.1 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum=4176, OpType=ALLREDUCE, NumelIn={size}, NumelOut={size})"
        for rank, size in enumerate(sizes)
    ]
    assert said("\n".join([seen, *lines])) == id_


def test_a_line_cut_at_the_edge_of_a_terminal_goes_on_without_its_prefix() -> None:
    log = WATCHDOG.format(7)
    cut = log.index("collective") + 5
    assert said(f"mixing pure text data\n{log[:cut]}\n{log[cut:]}") == "F11"
    shape = "[rank3]: size mismatch for m: copying a param with shape torch.Size("
    assert said(f"{shape:<90}\n[0]) from checkpoint, the shape in current model is torch.Size([8]).") == "F25"


def test_a_message_without_its_traceback_is_said_to_prove_little() -> None:
    def page(text: str) -> str:
        given_ = answers.answer(io.BytesIO(text.encode()), OURS, Words("en"), None)
        return " ".join(answer_page.page(given_, Words("en")).text().split())

    alone = "IndexError: index 0 is out of bounds for dimension 0 with size 0"
    frame = 'Traceback (most recent call last):\n  File "/x/modeling_utils.py", line 9, in _init_weights\n'
    assert "Its traceback would tell" in page(alone)
    assert "Its traceback would tell" not in page(frame + alone)


def test_a_line_that_others_print_too_is_named_and_not_claimed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text("IndexError: index 0 is out of bounds for dimension 0 with size 0\n")
    assert cli.main(["explain", str(log), "--lang", "en"]) == 1
    out = capsys.readouterr().out
    assert "Perhaps a failure that vlmpatch knows" in out
    assert "F23 · " in out
    assert "python -m vlmpatch explain F23" in out
    assert cli.main(["explain", str(log), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["failure"], data["perhaps"], data["patches"]) == (None, "F23", [])
    log.write_text('Traceback (most recent call last):\n  File "a.py", line 1, in f\n' + log.read_text())
    assert cli.main(["explain", str(log), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["perhaps"] is None


def test_versions_of_the_log_decide_which_patches_apply() -> None:
    text = f"- `transformers` version: 5.1.0\n- PyTorch version (GPU?): 2.9.1+cu128 (True)\n{TRACE}{READY}"
    given_ = answers.answer(io.BytesIO(text.encode()), OURS, Words("en"), None)
    verdicts = {each.id: each.verdict for each in given_.patches}
    assert given_.diagnosis.versions == {"transformers": "5.1.0", "torch": "2.9.1+cu128"}
    assert verdicts["gradient-checkpointing-default"] == "not here"
    assert verdicts["torch-checkpoint-default"] == "applies"
    assert of('"transformers_version": "4.41.2"').versions == {}


def test_nothing_of_a_log_reaches_the_terminal_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"\x1b]0;title\x07\x1b[2J [bold]\u202e {READY}\x07\x9b31m\n")
    assert cli.main(["explain", str(log), "--lang", "en"]) == 0
    out = capsys.readouterr().out
    assert all(sign.isprintable() or sign == "\n" for sign in out)
    assert printable("a\x00b\x1b[31m\nc") == "a b [31m c"


def test_as_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"[rank1]: {READY}\n")
    assert cli.main(["explain", str(log), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["failure"], data["ranks"], data["line"]) == (1, "F3", ["rank1"], 1)


@given(
    st.lists(st.sampled_from([TRACE, READY, CHILD, WATCHDOG, "\r", "\n", "\x1b[", "[rank1]:", "é\xff", '"']))
)
def test_any_mixture_has_an_answer(parts: list[str]) -> None:
    assert answer_page.page(
        answers.answer(io.BytesIO("".join(parts).encode()), OURS, Words("en"), None), Words("en")
    ).text()


def test_a_long_log_is_read_in_pieces_and_the_cause_found_in_its_middle() -> None:
    rng = random.Random(1)
    lines = [f"[rank{rng.randrange(8)}]: step {n} {{'loss': {rng.random()}}}" for n in range(120_000)]
    lines[70_000:70_000] = [f"[rank5]: {line}" for line in (TRACE + READY).splitlines()]
    found = of("\n".join(lines))
    assert found.hit is not None
    assert (found.hit.failure.id, found.hit.message.at, found.ranks) == ("F3", 70_005, ("rank5",))


def test_a_warning_in_a_long_log_without_any_error_is_found() -> None:
    line = "[rank0]: INFO all is well\n"
    warning = "None of the inputs have requires_grad=True. Gradients will be None\n"
    assert said(line * 40_000 + warning + line * 40_000) == "F5"


@pytest.mark.parametrize("beside", ["LoRA", "lora.", "lora）", "用LoRA微调", "'lora'", "lora\r\n", "lora: 8"])
def test_a_word_asked_for_ends_where_the_log_has_its_end(beside: str) -> None:
    assert said(f"RuntimeError: Expected to mark a variable ready only once\n{beside}") == "F3"


@pytest.mark.parametrize("beside", ["Loranthus", "LoRaWAN", "lora2", "lora_x"])
def test_a_longer_word_is_another(beside: str) -> None:
    assert said(f"RuntimeError: Expected to mark a variable ready only once\n{beside}") is None


@pytest.mark.parametrize(("after", "found"), [("", True), ("\n", True), ("nthus", False)])
def test_a_word_ends_or_goes_on_where_a_piece_of_a_log_does(after: str, found: bool) -> None:
    log = ("." * (PIECE - len("lora")) + "lora" + after).encode()
    reader = Reader(lambda message: None, facts=[b"lora "])
    reader.read(io.BytesIO(log))
    assert bool(reader.facts) == bool(occurring(io.BytesIO(log), [b"lora "])) == found


def test_a_line_without_end_is_no_trouble() -> None:
    assert said(b"\r 10%|# " * 300_000 + READY.encode()) == "F3"
    assert said(b"x" * 3_000_000) is None


@pytest.mark.parametrize("between", ["\nRuntimeError: ", " "])
def test_two_megabytes_of_what_patterns_begin_with_take_no_more_than_others(between: str) -> None:
    symptoms = [symptom for failure in KNOWN.known.values() for symptom in failure.symptoms]
    patterns = {pattern for each in symptoms for pattern in (*each.every, *each.some)}
    heads = sorted(pattern.head for pattern in patterns if pattern.rest)
    bait = between.join(heads)
    plain = "\nRuntimeError: x"
    assert work(bait) < 10 * work(plain)  # at most twice on a quiet machine; it has been a hundred times


def work(text: str) -> float:
    """Seconds of this process for two megabytes of ``text``, whatever else wants the processor."""
    started = time.process_time()
    of(text * (2_000_000 // len(text)))
    return time.process_time() - started
