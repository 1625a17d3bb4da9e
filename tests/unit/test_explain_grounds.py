"""An error that no symptom knows: what its class, its words and the part it ends in say, and must not say."""

from __future__ import annotations

import io

import pytest

from tests.generate.failures import CATALOG
from tests.unit.test_explain import of
from vlmpatch.tools.explain import answer_page, answers, failures, grounds
from vlmpatch.tools.view.language import Words

ROOT = "/opt/env/lib/python3.11/site-packages"
TRAIN = f'  File "{ROOT}/transformers/trainer.py", line 2240, in train\n    return inner_training_loop(\n'
FETCH = f'  File "{ROOT}/torch/utils/data/_utils/fetch.py", line 54, in fetch\n    data = self.dataset[i]\n'


def traceback(*frames: str, last: str) -> str:
    return "\n".join(("Traceback (most recent call last):", *(each.rstrip("\n") for each in frames), last))


def frame(path: str, function: str) -> str:
    return f'  File "{path}", line 7, in {function}\n    x()'


def page(text: str) -> str:
    """The page that ``text`` leads to, by a symptom or else by its kind."""
    found = of(text)
    other = found.hit.failure if found.hit else found.ground
    return other.id if other else ""


NONE = "TypeError: 'NoneType' object is not subscriptable"
KINDS = [
    # By the part that the deepest known frame belongs to.
    (traceback(TRAIN, FETCH, frame("/w/my.py", "__getitem__"), last="KeyError: 'depth'"), "data"),
    (traceback(TRAIN, FETCH, frame("/w/my.py", "load"), last="AssertionError"), "data"),
    (traceback(frame(f"{ROOT}/wandb/sdk/x.py", "init"), last="UsageError: not logged in"), "tracker"),
    (traceback(frame(f"{ROOT}/vllm/engine/x.py", "step"), last="RuntimeError: engine dead"), "server"),
    (
        traceback(frame(f"{ROOT}/triton/compiler/x.py", "compile"), last="CompilationError: at 1:1"),
        "extension",
    ),
    (
        traceback(
            frame(f"{ROOT}/deepspeed/utils/zero_to_fp32.py", "get_fp32_state_dict_from_zero_checkpoint"),
            last="ValueError: Unable to find 'latest' file at /w/out/latest",
        ),
        "no-state",
    ),
    ("OSError: Failed to load tokenizer.", "tokenizer"),
    ("Qwen2.5-VL-3B OOM\n\nOn eight A100.", "out-of-memory"),
    (traceback(frame("/tmp/torchinductor_me/x/y.py", "call"), last="AssertionError: wrong"), "compiled"),
    (
        traceback(frame(f"{ROOT}/torch/utils/cpp_extension.py", "load"), last="RuntimeError: no such"),
        "extension",
    ),
    (
        traceback(frame(f"{ROOT}/omegaconf/base.py", "x"), last="omegaconf.errors.ConfigKeyError: k"),
        "configuration",
    ),
    (traceback(frame(f"{ROOT}/requests/api.py", "get"), last="OSError: it broke off"), "hub"),
    (traceback(frame(f"{ROOT}/jinja2/x.py", "x"), last="jinja2.exceptions.UndefinedError: 'x'"), "tokenizer"),
    # By the class, or by what it says.
    ("ImportError: this needs another thing", "environment"),
    ("RuntimeError: Passing `frobs` is not allowed if an engine is on.", "configuration"),
    ("TypeError: train() argument after ** must be a mapping, not NoneType", "missing"),
    ("TypeError: train() argument after ** must be a mapping, not list", "other-type"),
    ("NameError: name 'tokenizre' is not defined", "script"),
    ('  File "a.py", line 3\nIndentationError: unexpected indent', "script"),
    ("TypeError: forward() got multiple values for 'frobnicate'", "versions"),
    ("PermissionError: [Errno 13] Permission denied: '/mnt/out'", "files"),
    ("urllib3.exceptions.NameResolutionError: it has no address", "hub"),
    ("KeyError: 'LOCAL_RANK'", "launcher"),
    ("KeyError: 'eval_accuracy'", "configuration"),
    ("KeyError: 'question'", "data"),
    ("ValueError: `--frobs` must be set beside `--nobs`", "configuration"),
    ("RuntimeError: CUSOLVER_STATUS_INTERNAL_ERROR in a call", "cuda"),
    ("TypeError: 'NoneType' object is not callable", "missing"),
    ("RuntimeError: The size of tensor a (7) must match the size of tensor b (11)", "shapes"),
    ("AssertionError: Find unsupported keys in checkpoint: ['output_layer.weight']", "mismatched-weights"),
    ("AssertionError: (torch.Size([]), 0, 77856768)", "shapes"),
    ("ValueError: size shape must match input shape. Input is 2D, size is 3", "shapes"),
    (
        traceback(
            '  File "/w/my.py", line 7, in x\n    assert meta is not None, f"{name} is not supported."',
            last="AssertionError: Quux-3 is not supported.",
        ),
        "configuration",
    ),
    ("Converting weights\nthe bugs are about no such file or directory: model.*.safetensors", "files"),
    ("NotImplementedError: Unsloth: Quux-3 is not supported in your current Unsloth version!", "versions"),
    ("RuntimeError: `quux_dict` can only be used when weights are flat", "configuration"),
    (
        "ValueError: this requires you to pass at least one dataloader, or alternatively set a size",
        "configuration",
    ),
    ("# SFT 时出现 StopIteration\n命令行方式", "data"),
    # By the class alone.
    ("# 2d5 finetune type error\nWe met the same problem.", "other-type"),
    ("KeyError: 'nonesuch'", "absent-key"),
    ("IndexError: list index out of range", "absent-key"),
    ("TypeError: string indices must be integers, not 'str'", "other-type"),
    (traceback(frame("/w/my.py", "run"), last="AssertionError"), "check"),
    ("AttributeError: QUUX3. Did you mean: 'QUUX2'?", "versions"),
    # By the line of code that raised it, where the exception says nothing of its own.
    (
        traceback('  File "/w/my.py", line 7, in x\n    n = image_sizes[0]\n        ~~~~~~~^^^', last=NONE),
        "data",
    ),
    (traceback('  File "/w/my.py", line 7, in x\n    y = self.processor.size', last=NONE), "tokenizer"),
    (traceback('  File "/w/my.py", line 7, in x\n    a = self.rope_scaling["type"]', last=NONE), "versions"),
    (traceback('  File "/w/my.py", line 7, in x\n    a = self.quux[1]', last=NONE), "missing"),
    ("│ /w/my.py:9 in x │\n│ ❱ 593 │   │   a = pixel_values[0]  │\n" + NONE, "data"),
    ("/w/my.py in x(a)\n----> 1 a = messages[0]\n\n" + NONE, "data"),
    (
        traceback('  File "/w/my.py", line 7, in x\n    assert a is not None', last="AssertionError"),
        "missing",
    ),
    (
        traceback('  File "/w/my.py", line 7, in x\n    assert len(images) == n', last="AssertionError"),
        "data",
    ),
    # Quoted by a person, in a title or in a line of prose.
    ('# RuntimeError "Some tensors share memory" when saving\nMy versions', "shared-tensors"),
    ("# Key error exception when finetuning Qwen models\nwith LoRA", "absent-key"),
    ("# Error with target_modules\non two cards", "lora-targets"),
    ("# DataCollator stopped working\nThere is no token of an image", "data"),
    ("# offloading-killing-process-9-error\nwith deepspeed zero", "killed"),
    ("ValueError: Target module Quux() is not supported here", "lora-targets"),
    ("ValueError: the processor has no attribute and was not found", "tokenizer"),
    ("# Getting IndexErrors on my own dataset\nwith two cards", "absent-key"),
    ("# assert len(images) == 3\nWhat does it want?", "data"),
    ("My run stops\nThe ModuleNotFoundError goes on whatever I install", "environment"),
    ("Exception has occurred: AssertionError\nAssertionError: ", "check"),
    ("My run stops\n'NoneType' object has no attribute 'quux'", "missing"),
    ('It looks like vla model has no attribute "module" in my run.', "versions"),
    ("My run stops\nassert self.token_id is not None\nwhy?", "missing"),
    ("My run stops\nit says that 'dict' object is not callable, why?", "other-type"),
    ("# 训练报错KeyError: 'question'\n使用两张卡", "data"),
    ("My run stops\nIt says `NameError: name 'x' is not defined`, why?", "script"),
    ("Some frobs are not supported yet\nHow do I go on?", "configuration"),
]


@pytest.mark.parametrize(("text", "leads"), KINDS)
def test_the_kind_of_an_error_leads_to_a_page(text: str, leads: str) -> None:
    assert page(text) == leads


FORMS = [
    '  File "/w/dataset.py", line 9, in __getitem__\n',
    "  File “/w/dataset.py”, line 9, in __getitem__\n",
    "│ /w/dataset.py:9 in __getitem__                      │\n",
    "File /w/dataset.py:9, in Frames.__getitem__(self, i)\n",
    "/w/dataset.py in __getitem__(self, i)\n",
    "[/w/dataset.py](https://localhost:8080/#) in __getitem__(self, i)\n",
    '  File "C:\\w\\Dataset.py", line 9, in __getitem__\n',
]


@pytest.mark.parametrize("printed", FORMS)
def test_a_frame_is_read_as_each_program_prints_it(printed: str) -> None:
    assert page(f"Traceback (most recent call last):\n{printed}ZeroDivisionError: division by zero") == "data"


def test_the_deepest_part_decides() -> None:
    inner, outer = frame(f"{ROOT}/wandb/sdk/x.py", "log"), frame("/w/dataset.py", "__getitem__")
    assert page(traceback(outer, inner, last="ValueError: odd")) == "tracker"
    assert page(traceback(inner, outer, last="ValueError: odd")) == "data"


def test_an_error_raised_in_a_model_is_not_about_who_called_it() -> None:
    model = frame(f"{ROOT}/transformers/models/x/modeling_x.py", "forward")
    assert page(traceback(frame("/w/dataset.py", "__getitem__"), model, last="ValueError: odd")) == ""


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 7",
        "RuntimeError: a thing that nobody has seen",
        "Everything went well\nThe run ended.",
        "A title without an error\nand a line of prose about ValueError and KeyError",
    ],
)
def test_nothing_is_said_without_a_ground(text: str) -> None:
    assert page(text) == ""


def test_it_does_not_speak_against_what_may_be_ours() -> None:
    text = (
        "Traceback (most recent call last):\n"
        f'  File "{ROOT}/deepspeed/runtime/zero/stage3.py", line 1, in x\n'
        "RuntimeError: Detected a disagreement on list length between rank0 and rank7: "
    )
    found = of(text)
    assert (found.hit, found.ground) == (None, None)
    assert "F27" in {each.id for each in found.perhaps}


def test_what_follows_an_exception_is_not_what_it_says() -> None:
    echo = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1)"
    found = of(f"zero3\nQuuxError: a thing that nobody has seen\n{echo}\nmore")
    assert found.hit is None
    assert found.first is not None
    assert found.first.error == "QuuxError"


def test_a_warning_is_no_answer_where_a_traceback_has_begun() -> None:
    warning = "Invalidate trace cache @ step 343: expected module 343, but got module 684\n"
    assert of(f"zero3\n{warning}").hit is not None
    assert of(f"zero3\n{warning}[rank0]: Traceback (most recent call las").hit is None


CUT = "Training stops\nTraceback (most recent call last):\n" + TRAIN


def test_what_came_of_a_cut_traceback_came_from_within_its_last_frame() -> None:
    found = of(CUT + FETCH)
    assert found.ground is not None
    assert found.ground.id == "data"
    assert found.first is not None
    assert found.first.cut
    assert of(CUT).ground is None
    assert of(CUT + FETCH + frame(f"{ROOT}/transformers/models/x/modeling_x.py", "forward")).ground is None


def test_the_lines_of_an_engine_that_generates_are_read_as_its_traceback() -> None:
    head = "(EngineCore_DP0 pid=576349) ERROR 10-04 06:08:01 [core.py:720] "
    cut = f"A run\n{head}Traceback (most recent call last):\n{head}" + frame(f"{ROOT}/vllm/v1/x.py", "step")
    found = of(cut.replace("\n    x", f"\n{head}    x"))
    assert found.ground is not None
    assert found.ground.id == "server"


def test_a_warning_is_no_answer_where_the_title_says_that_something_else_fails() -> None:
    warning = "UserWarning: None of the inputs have requires_grad=True. Gradients will be None"
    log = f"We use two cards.\n{warning}\n"
    assert of(f"# Training fails with several GPUs\n{log}").hit is not None
    assert of(f"# A warning of checkpoint.py is an error in the latest release?\n{log}").hit is not None
    found = of(f"# The script no longer works with the latest revision of the model\n{log}")
    assert found.hit is None
    assert "F5" in {each.id for each in found.perhaps}


@pytest.mark.parametrize(
    "line",
    [
        'and it reports TypeError: quux() got an unexpected keyword argument "x"',
        'the model has no attribute "quux"',
        "then an OutOfMemoryError, every time",
    ],
)
def test_the_line_that_names_the_exception_is_the_one_shown(line: str) -> None:
    first = of(f"# My training stops\n\nAfter some steps\n{line}\nand that is all").first
    assert first is not None
    assert first.line == line


def test_what_ends_while_an_adapter_is_made_is_about_its_targets_and_a_forward_is_not() -> None:
    made = "Tuning of the tower\n" + frame(f"{ROOT}/peft/mapping.py", "get_peft_model")
    run = "Tuning of the tower\n" + frame(f"{ROOT}/peft/peft_model.py", "forward")
    assert page(made) == "lora-targets"
    assert page(run) == ""


@pytest.mark.parametrize(
    ("line", "id_"),
    [
        ("batch_samples, n = self.get_batch_samples(epoch_iterator, n_batches, args.d", "data"),
        ("model = get_peft_model(model", "lora-targets"),
        ("outputs = model(**inputs", ""),
        ("train_loss = self.step", ""),
    ],
)
def test_the_last_line_of_code_says_what_came_next_where_a_traceback_is_cut(line: str, id_: str) -> None:
    assert page(CUT.rpartition("    return")[0] + f"    {line}") == id_


@pytest.mark.parametrize(
    ("path", "function"),
    [
        ("hydra/_internal/utils.py", "_run_app"),
        ("fire/core.py", "_CallAndUpdateTrace"),
        ("click/core.py", "invoke"),
    ],
)
def test_what_runs_a_program_does_not_read_its_settings(path: str, function: str) -> None:
    assert page(CUT + frame(f"{ROOT}/{path}", function)) == ""
    assert (
        page(traceback(frame(f"{ROOT}/{path}", function), last="RuntimeError: a thing nobody has seen")) == ""
    )


@pytest.mark.parametrize(
    ("path", "function", "id_"),
    [
        ("transformers/hf_argparser.py", "parse_args_into_dataclasses", "configuration"),
        ("torch/distributed/rendezvous.py", "_create_c10d_store", "network"),
        ("bitsandbytes/nn/modules.py", "to", "quantized"),
        ("transformers/models/auto/configuration_auto.py", "__getitem__", "versions"),
        ("swift/llm/train/tuner.py", "get_multimodal_target_regex", "lora-targets"),
        ("deepspeed/utils/zero_to_fp32.py", "get_fp32_state_dict_from_zero_checkpoint", "no-state"),
    ],
)
def test_more_parts_say_what_a_traceback_that_is_cut_in_them_is_about(
    path: str, function: str, id_: str
) -> None:
    assert page(CUT + frame(f"{ROOT}/{path}", function)) == id_


def test_a_title_that_may_be_ours_does_not_hide_the_part_that_a_traceback_is_cut_in() -> None:
    title = (
        "# processing_some IndexError: index 0 is out of bounds for dimension 0 with size 0\n\nwe see this\n"
    )
    cut = "Traceback (most recent call last):\n" + TRAIN
    inside = frame(f"{ROOT}/transformers/models/some/processing_some.py", "__call__").rstrip("\n")
    assert page(title + cut + inside) == "data"
    assert of(title).hit is None


def test_a_line_that_raises_says_what_it_raises() -> None:
    """Quoted in a title, or the last line of a traceback that is cut; not where a script is shown."""
    line = 'raise ValueError(f"do not find {name}, it must be one of {known}")'
    assert page(f"# [rank0]: {line}\n\nMy own data set.") == "configuration"
    assert page(traceback(TRAIN, frame("/w/model.py", "pick"), last=f"    {line}")) == "configuration"
    assert page(f"# It does not run\n\nThe script:\n    {line}\n") == ""


def test_an_exception_of_which_the_name_is_cut_is_what_the_line_above_raises() -> None:
    line = 'raise AttributeError(f"{kind!r} object has no attribute {name!r}")'
    inside = frame(f"{ROOT}/torch/nn/parameter.py", "pick") + f"    {line}\n"
    assert page(traceback(TRAIN, inside, last="Attrib")) == "versions"
    assert page(traceback(TRAIN, inside, last="Then it goes on")) == ""


def test_an_exception_of_a_rank_is_known_by_its_name_without_the_head_of_its_traceback() -> None:
    frames = '[rank0]:   File "/w/data/loader.py", line 269, in read\n[rank0]:     next(iter(dataset))\n'
    chained = "[rank0]: During handling of the above exception, another exception occurred:\n"
    again = '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/w/launcher.py", line 23, in <mod'
    assert (
        page(f"Traceback (most recent call last):\n{frames}[rank0]: StopIteration\n{chained}{again}")
        == "data"
    )


def test_a_disk_is_no_part_of_a_program() -> None:
    assert page(traceback(frame("/data/me/proj/src/steps.py", "run"), last="ZeroDivisionError: by 0")) == ""
    assert page(traceback(frame("/me/proj/data/steps.py", "run"), last="ZeroDivisionError: by 0")) == "data"


def test_a_key_is_read_without_what_a_person_goes_on_to_say() -> None:
    assert page("KeyError: 'nonesuch' when training qwen on my own image dataset") == "absent-key"
    assert page("KeyError: 'qwen9_vl' when training") == "versions"


def test_every_ground_leads_to_a_foreign_page_by_a_part_that_is_known() -> None:
    read, known = grounds.read(), failures.every(CATALOG).known
    for each in read.listed:
        assert known[each.page].foreign
        assert set(each.part) <= {*read.parts, ""}
        assert each.error or each.says or each.told or each.part
    assert set(read.within) <= set(read.parts)
    assert all(known[page].foreign for page in read.within.values())
    assert not {sign for signs in read.parts.values() for sign in signs if sign != sign.lower()}


def test_the_page_says_by_what_it_knows() -> None:
    text = b"NameError: name 'tokenizre' is not defined"
    given = answers.answer(io.BytesIO(text), CATALOG, Words("en"), None)
    made = answer_page.page(given, Words("en")).text()
    assert "The message is not known here" in made
    data = answer_page.data(given, Words("en"))
    assert (data["ground"], data["instead"], data["failure"]) == ("script", None, None)


def by_hand(line: str, last: str, path: str = "deepspeed/runtime/engine.py") -> str:
    """The page of a check that ``path`` holds, and that says ``last``."""
    return page(traceback(TRAIN, f'  File "{ROOT}/{path}", line 7, in quux\n    {line}', last=last))


@pytest.mark.parametrize(
    ("line", "last", "id_"),
    [
        ("raise ValueError(", "ValueError: the frob is odd", "configuration"),
        ("raise NotImplementedError(", "NotImplementedError: 4 is no stage", "configuration"),
        ('assert ok, "x"', "AssertionError: the frob is odd", "check"),
        ("raise RuntimeError(", "RuntimeError: the frob was never made", "check"),
        ("raise TypeError(", "TypeError: frob must be a list, got 3", "other-type"),
        ("raise TypeError(", "TypeError: frobs of the two", "configuration"),
        ("raise ValueError(", "ValueError: mask shape (3, 4) does not match (3, 5)", "shapes"),
        ("assert a == b, (", "AssertionError: all params must have the same dtype", "dtype"),
        ("raise RuntimeError(", "RuntimeError: Unable to import quux", "environment"),
        ("raise RuntimeError(", "RuntimeError: API has changed, call it otherwise", "versions"),
        (
            "raise RuntimeError(",
            "RuntimeError: No executable batch size found, reached zero.",
            "out-of-memory",
        ),
        ("out = self.frob(x)", "RuntimeError: the frob was never made", ""),
        ("out = self.frob(x)", "ValueError: the frob is odd", ""),
    ],
)
def test_what_a_check_written_by_hand_refuses_is_told_by_its_class_and_its_words(
    line: str, last: str, id_: str
) -> None:
    assert by_hand(line, last) == id_


def test_a_check_written_by_hand_where_samples_are_read_is_about_the_data() -> None:
    path = "transformers/image_transforms.py"
    assert by_hand("raise TypeError(", "TypeError: it has to be an array", "datasets/table.py") == "data"
    assert by_hand("raise NotImplementedError", "NotImplementedError: role", path) == "data"


@pytest.mark.parametrize(
    ("path", "function", "last", "id_"),
    [
        ("/usr/lib64/python3.9/os.py", "__getitem__", "KeyError: 'LOCAL_RANK'", "launcher"),
        ("<frozen os>", "__getitem__", "KeyError: 'QUUX_HOME'", "configuration"),
        (f"{ROOT}/torch/nn/modules/container.py", "__getitem__", "KeyError: 'nonesuch'", "absent-key"),
        (
            f"{ROOT}/torch/distributed/checkpoint/utils.py",
            "x",
            "AssertionError: Expected key 'quux'",
            "no-state",
        ),
        (f"{ROOT}/trl/extras/vllm_client.py", "x", "Exception: Server 3 failed: odd", "server"),
        (f"{ROOT}/unsloth_zoo/vllm_utils.py", "load_vllm", "RuntimeError: AoT scheduling", "server"),
        (
            f"{ROOT}/accelerate/utils/modeling.py",
            "get_balanced_memory",
            "ZeroDivisionError: integer division or modulo by zero",
            "device-map",
        ),
    ],
)
def test_more_parts_lead_to_their_pages(path: str, function: str, last: str, id_: str) -> None:
    assert page(traceback(TRAIN, frame(path, function), last=last)) == id_


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        ("KeyError: 'param_groups'", "no-state"),
        ("TorchRuntimeError: The size of tensor a (1280) must match (s4)", "compiled"),
        ("ValueError: NaN values found in loss_gen_all", "nan"),
        ("RuntimeError: gradients are non-finite", "nan"),
        ("ValueError: it must be called on an instantiated object", "configuration"),
        ("AttributeError: 'Params4bit' object has no attribute 'absmax'", "quantized"),
        ("AssertionError: fp8e4nv data type is not supported on CUDA arch < 89", "old-gpu"),
        (
            "OSError: The safetensors archive passed at /w/x does not contain the valid metadata.",
            "broken-file",
        ),
        ("RuntimeError: PytorchStreamWriter failed writing file data/3: file write failed", "disk"),
        ("OSError: Error no file named model.safetensors found in directory /w/x.", "hub"),
        ("OSError: [Errno 95] Operation not supported", "files"),
        ("RuntimeError: HCCL function error: HcclCommInitRootInfo(numRanks), error code is 2", "network"),
        ("RuntimeError: EZ9999: Inner Error!", "cuda"),
        ("RuntimeError: Placeholder storage has not been allocated on MPS device!", "device-map"),
        ("ValueError: GRPO is not compatible with `device_map`.", "configuration"),
        (
            "RuntimeError: Unsloth: No or negligible GPU memory available for fused cross entropy.",
            "out-of-memory",
        ),
        ("ValueError: The model did not return a loss from the inputs, only the following keys: x.", "data"),
        ("# The model did not return a loss from the inputs\n我的脚本如下", "data"),
        ("RuntimeError: Unsloth: You must specify a `formatting_func`", "data"),
        (
            "# 微调报错 ValueError: The `eos_token` ('x') is not found in the vocabulary\n用两张卡",
            "tokenizer",
        ),
        (
            "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 19166976 vs 19166864",
            "disk",
        ),
        ("_pickle.UnpicklingError: Weights only load failed. This file can still be loaded", "versions"),
        ("_pickle.PicklingError: Can't pickle <class 'a.B'>: it's not the same object as a.B", "versions"),
        (
            "_pickle.PicklingError: Can't pickle <function f at 0x7f>: attribute lookup failed",
            "spawned-workers",
        ),
        ("AttributeError: Can't pickle local object 'f.<locals>.g'", "spawned-workers"),
        ("ValueError: attempted relative import beyond top-level package", "script"),
        ("RuntimeError: dictionary changed size during iteration", "script"),
        ("RuntimeError: FlashAttention is only supported on CUDA 11.6 and above", "environment"),
        ("RuntimeError: FlashAttention only support fp16 and bf16 data type", "dtype"),
        ("RuntimeError: FlashAttention only supports head dimensions up to 256", "old-gpu"),
        ("**RuntimeError: No executable batch size found, reached zero.**", "out-of-memory"),
        ("IndexError: boolean index did not match indexed array along dimension 0; dimension is 9", "shapes"),
        ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 98304", "cuda"),
        ("ValueError: The following `model_kwargs` are not used by the model: ['_data']", "versions"),
        ("ValueError: model.layers.0.q_proj.weight doesn't have any device set.", "device-map"),
        ("RuntimeError: NCCL initialization failed", "network"),
        ("KeyError: 'CUDA_VISIBLE_DEVICES'", "configuration"),
        ("RuntimeError: Inference tensors cannot be saved for backward.", "no-grad"),
        ("# 训练报错 RuntimeError: CUDA graph capture failed\n两张卡", "cuda"),
        ("# 保存时报错 RuntimeError: PytorchStreamWriter failed writing file data/3\n单机", "disk"),
    ],
)
def test_more_of_what_is_said_leads_to_its_page(text: str, id_: str) -> None:
    assert page(text) == id_


def test_a_traceback_that_is_cut_where_an_attribute_is_looked_up_lacks_that_attribute() -> None:
    assert page(CUT + frame(f"{ROOT}/torch/nn/modules/module.py", "__getattr__")) == "versions"
    assert page(CUT + frame(f"{ROOT}/torch/nn/modules/module.py", "_call_impl")) == ""


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        ("ValueError: no model of that name. Supported model names: llava, llava_sglang", "configuration"),
        ("ValueError: sglang could not start", "server"),
        ("# Vision finetuning error (Unsupported: hasattr ConstDictVariable to)\nwith two cards", "compiled"),
        (
            "TypeError: Expected parameter x of type torch.Tensor, but got <class 'float'> instead.",
            "other-type",
        ),
        ("My run stops\nRuntimeError: Expected is_sm80 to be true, but got false.", "old-gpu"),
        ("# DPO errors out (Assertion `srcIndex < srcSelectDimSize` failed)\nTraceback:", "cuda"),
    ],
)
def test_what_threads_quote_leads_to_its_page(text: str, id_: str) -> None:
    assert page(text) == id_


WARNINGS = (
    "`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`...\n"
    "/x/torch/utils/data/dataloader.py:557: UserWarning: This DataLoader will create 16 worker processes.\n"
)
LAUNCHER = (
    "failed (exitcode: 1) local_rank: 0 (pid: 123) of binary: /usr/bin/python\n"
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
)


def test_what_every_run_prints_does_not_hide_what_a_title_names() -> None:
    title = "# KeyError: 'zzz' when LoRA trains it\n\n"
    assert page(title) == "absent-key"
    assert page(title + WARNINGS) == "absent-key"
    assert page(title + WARNINGS + LAUNCHER) == "absent-key"


def test_what_a_launcher_says_is_not_how_a_traceback_ends_that_is_cut() -> None:
    inside = frame(f"{ROOT}/transformers/models/some/processing_some.py", "__call__")
    cut = "Traceback (most recent call last):\n" + TRAIN + inside
    assert page(cut) == page(cut + LAUNCHER) == "data"
    assert page(TRAIN + inside + "\n".join(("", "same here", "+1", "any news?", ""))) == "data"


def test_a_title_says_what_is_none_and_what_is_not_found() -> None:
    assert page("# The vision tower is None after loading\n\nsee above\n") == "missing"
    assert page("it ends in ValueError: Not find vision tower: zoo/clip\n") == "hub"


TITLES = [
    ("VLM training error: the number of images differs from the number of tokens\n\nSee above.", "data"),
    ("Unknown vision tower: /ckpt/clip\n\nIt is there.", "hub"),
    ("[Bug] ValueError: Error occurred while reading dataset demo\n\nWhy?", "data"),
    ("A model\n\nIt fails (NotImplementedError: Phi-9 is not supported yet).\nvLLM, too?", "versions"),
    ("IndexError: Invalid key: 7 is out of bounds for size 0", "data"),
    ("lib.errors.CompatibilityError: The dataset is in another format", "versions"),
    ("ValueError: Frames should be in the range of 2 to 8", "data"),
    ("ValueError: Unknown role: narrator", "data"),
    ("AssertionError: Failed to find an engine's checkpoint", "no-state"),
    ("wandb.errors.UsageError: api_key not configured", "tracker"),
    ("requests.exceptions.ConnectionError: HTTPConnectionPool(host='0.0.0.0', port=8000)", "server"),
    ("einops.EinopsError: Error while processing a pattern", "shapes"),
    ("RuntimeError: Inner:x.ts:2 OPS function error: Conv3D, error code is 5", "cuda"),
    (
        f"{CUT}{frame('/w/my.py', 'f')}    raise ValueError('x')\nValueError: Make sure it is a list",
        "other-type",
    ),
]


LINES = [
    (
        "Value error, Tensor parallel size (16) cannot be larger than the number of available GPUs (8)",
        "configuration",
    ),
    (
        "  Value error, User-specified max_model_len (9) is greater than the derived max_model_len (8)",
        "configuration",
    ),
    ("{'loss': 0.0, 'epoch': 0.1}\nwarning: sizes, input_embeds[selected].shape=torch.Size([1, 8])", "data"),
    ("I merged the LoRA of LLaVA; loading it, I met many mismatched parameters", "mismatched-weights"),
    (
        "ERROR: Cannot install a and b because these package versions have conflicting dependencies.",
        "environment",
    ),
    (
        "The conflict is caused by:\n    a 1.0 depends on torch==2.1\n    b 2.0 depends on torch==2.2",
        "environment",
    ),
    ("'/lib64/libstdc++.so.6: version `CXXABI_1.3.9' not found'", "environment"),
    ("Error locating target 'my.data.Set', set env var HYDRA_FULL_ERROR=1 to see more", "environment"),
    ("The torch 2.1 that you name does not support sm_120\n\nWhat now, for Qwen2-VL?", "old-gpu"),
]


@pytest.mark.parametrize(("text", "id_"), LINES)
def test_what_stands_in_lines_without_an_exception_is_named(text: str, id_: str) -> None:
    assert page(text) == id_


def test_a_method_that_lacks_the_batch_was_called_without_self() -> None:
    text = "TypeError: Trainer.prediction_step() missing 1 required positional argument: 'inputs'"
    assert page(text) == "versions"


@pytest.mark.parametrize(("text", "id_"), TITLES)
def test_a_title_says_what_an_error_says_and_a_bracket_holds_no_more(text: str, id_: str) -> None:
    assert page(text) == id_


def test_the_title_stands_before_what_ranks_print() -> None:
    text = "Deploying ends in EZ9999: Inner Error\nSee:\n[rank0]: pip install x\n[rank0]: It stops.\n"
    assert page(text) == "cuda"


def test_a_communication_timeout_is_what_the_watchdog_says_of_others() -> None:
    watchdog = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)"
    assert page(f"An NCCL communication timeout was reported\n\n[rank2]: {watchdog}\n") != "network"


def test_a_traceback_that_is_cut_while_a_module_is_imported() -> None:
    """A module that is not the program itself runs when it is imported, and what it lacks is installed."""
    program = '  File "/w/train.py", line 3, in <module>\n    from quux import frob\n'
    module = f'  File "{ROOT}/transformers/modeling_quux.py", line 48, in <module>\n'
    run = '  File "/opt/env/lib/python3.11/runpy.py", line 86, in _run_code\n    exec(code, run_globals)\n'
    begun = "Traceback (most recent call last):\n"
    assert page(begun + program + module) == "environment"
    assert page(begun + run + program) == ""
    assert page(begun + program) == ""
    assert page(begun + program + begun + program) == ""  # of two ranks


def test_a_traceback_that_is_cut_in_an_installer() -> None:
    build = f'  File "{ROOT}/setuptools/build_meta.py", line 473, in get_requires\n    return self.run()\n'
    made = '  File "<string>", line 95, in\n'
    assert page(f"Traceback (most recent call last):\n{build}{made}") == "environment"
