"""Symptoms of single failures: what they claim, and the ordinary errors that look alike."""

from __future__ import annotations

import json

import pytest

from tests.unit.test_explain import READY, TRACE, of, said

MIXED_TENSORS = (
    'File "/x/transformers/models/glm4v/modeling_glm4v.py", line 198, in forward\n'
    "RuntimeError: aten.grid_sampler_2d.default got mixed torch.Tensor and DTensor, need to convert all"
)
SECOND = "RuntimeError: Trying to backward through the graph a second time (or directly access saved tensors"
NO_GRAPH = "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn"
CHECKPOINT = 'File "/x/site-packages/torch/utils/checkpoint.py", line 320, in backward\n'
TRAINER = 'File "/x/site-packages/transformers/trainer.py", line 2325, in train\n'
FSDP = 'File "/x/site-packages/torch/distributed/fsdp/fully_sharded_data_parallel.py", line 864, in forward\n'
APART = (
    "CheckpointError: torch.utils.checkpoint: Recomputed values for the following tensors have different\n"
    "saved metadata: {{'shape': torch.Size([{}]), 'dtype': torch.bfloat16}}\n"
    "recomputed metadata: {{'shape': torch.Size([{}]), 'dtype': torch.bfloat16}}"
)
UNUSED = (
    "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. "
    "This error indicates that your module has parameters that were not used in producing loss."
)
FINISHED = (
    "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
)
IDLE = (
    "ValueError: expected to be in states [<TrainingState.IDLE: 1>] but current state is TrainingState.IDLE"
)
TWICE = "RuntimeError: Expected to mark a variable ready only once."
REUSED = (
    TWICE
    + " This error is caused by one of the following reasons: 2) Reused parameters in multiple reentrant "
    "backward passes."
)
LEAF = "RuntimeError: a view of a leaf Variable that requires grad is being used in an in-place operation."
HEAD = "size mismatch, got input (2), mat (2x4096), vec (65667072)"
LIGER = 'File "/x/liger_kernel/ops/fused_linear_cross_entropy.py", line 59, in forward\n'
ONE_ROW = (
    "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following "
    "tensors have different metadata than during the forward pass.\ntensor at position 30:\n"
    "saved metadata: {'shape': torch.Size([412]), 'dtype': torch.int32}\n"
    "recomputed metadata: {'shape': torch.Size([413]), 'dtype': torch.int32}"
)
ONE_ELEMENT = (
    "RuntimeError: Error(s) in loading state_dict for Bart:\n\tsize mismatch for q.weight: copying a param "
    "with shape torch.Size([1]) from checkpoint, the shape in current model is torch.Size([768, 768])."
)
ALLGATHER = (
    "  what():  [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=98947, "
    "OpType=_ALLGATHER_BASE, NumelIn=16384000, NumelOut=131072000, Timeout(ms)=1800000) ran for 1800437 "
    "milliseconds before timing out."
)
DEQUE = "IndexError: pop from an empty deque"
VIEW = (
    "RuntimeError: Output 0 of SliceBackward0 is a view and is being modified inplace. This view was created "
    "inside a custom Function (or because an input was returned as-is)"
)
MASK_OF_NOTHING = (
    "IndexError: The shape of the mask [64] at index 0 does not match the shape of the indexed tensor [0] at"
)
EXPLICIT = (
    "ValueError: torch.utils.checkpoint: please pass in use_reentrant=True or use_reentrant=False explicitly."
)
NO_IMAGES = "torch.cat(): expected a non-empty list of Tensors"
INVALID = "returned an invalid gradient at index 0 - got [{}] but expected shape compatible with [256]"
EXPANDED = (
    "The expanded size of the tensor (3584) must match the existing size ({}) at non-singleton dimension 0."
)


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        (TRACE + CHECKPOINT + SECOND, "F36"),
        ("gradient_checkpointing: true\n" + TRACE + TRAINER + SECOND, "F36"),
        (TRACE + TRAINER + SECOND, None),
        (SECOND, None),
        ("model: Llama-3.2-11B-Vision-Instruct\n" + SECOND, "F36"),
        (
            "IndexError: index 0 is out of bounds for dimension 0 with size 0\n\n"
            '[rank5]:   File "/x/modeling_utils.py", line 2984, in initialize_weights',
            "F23",
        ),
        ("RuntimeError: none of output has requires_grad=True, this checkpoint() is not necessary", "F5"),
        (LIGER + "RuntimeError: " + HEAD, "F39"),
        ("RuntimeError: " + HEAD, None),
        ("FSDP\nRuntimeError: setStorage: sizes [896] are out of bounds for storage of size 0", "F39"),
        (ONE_ROW, None),
        ("Qwen3.5 MoE, its router\n" + ONE_ROW, "F45"),
        (ONE_ELEMENT, None),
        ("ZeRO-3\n" + ONE_ELEMENT, "F25"),
        (
            "to resume\nThere were missing keys in the checkpoint model loaded: ['model.visual.w'",
            "F44",
        ),
        (TWICE, None),
        ("gradient_checkpointing: true\n" + TWICE, "F3"),
        (TWICE + "\nParameter at index 9 with name base_model.model.layers.3.lora_B.weight", "F3"),
        (TWICE + "\nParameter at index 157 with name img_backbone.layer4.2.bn3.weight", None),
        ('E   File "basicsr/train.py", line 286, in main\n' + TWICE, None),
        (TWICE + " DDP does not support such use cases yet.", None),  # torch 1, older than every gate
        ("RF-DETR under DDP\n" + TWICE, None),
        (REUSED, "F3"),
        (REUSED + "\nParameter at index 157 with name img_backbone.layer4.2.bn3.weight", None),
        (LEAF, None),
        ("gears_model.train(epochs=20)\n" + LEAF, None),
        ("text_encoder.get_input_embeddings().weight = MyFunction(weight)\n" + LEAF, None),
        ("inputs_embeds[image_mask] = image_embeds\n" + LEAF, "F13"),
        ("Qwen2-VL, ms-swift\n" + LEAF, "F13"),
        ("zero3 training hangs with a mixed multimodal dataset", "F11"),
        ("多模态与纯文本混合训练会卡住", "F11"),
        ("the loader hangs with a mixed dataset of sounds", None),
        ("--freeze_vision_model\n" + FINISHED, "F19"),
        (IDLE, "F41"),
        ('File "/fairscale/nn/data_parallel/fully_sharded_data_parallel.py", line 9, in f\n' + IDLE, None),
        ("E[:, 0::2] = torch.FloatTensor(sines)\n" + LEAF, None),
        ("LoraConfig(target_modules=['dense']), using accelerate\n" + UNUSED, "F19"),
        ("train_dreambooth_lora_sdxl.py\n" + UNUSED, None),
        ("a crash in the trained save and evaluation, deepspeed_zero3\n" + ALLGATHER, "F12"),
        ("a crash after ten steps, deepspeed_zero3\n" + ALLGATHER, "F11"),
        ('File "/x/unsloth_compiled_cache/T.py", line 53, in wrapper\n' + TRACE + SECOND, "F37"),
        ("use_reentrant=True under unsloth\n" + SECOND, "F37"),
        ("ValueError: Must flatten tensors with uniform `requires_grad` when `use_orig_params=False`", "F38"),
        ("Must flatten tensors with uniform requires_grad when use_orig_params=False", "F38"),
        (
            "ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32",
            "F73",
        ),
        (TRACE + FSDP + "RuntimeError: 'weight' must be 2-D", "F39"),
        ("accelerate, distributed_type: FSDP\nRuntimeError: 'weight' must be 2-D", "F39"),
        ("zero3, no FSDP here\nRuntimeError: 'weight' must be 2-D", "F26"),
        ("FSDP, and not zero3\nRuntimeError: 'weight' must be 2-D", "F39"),
        ("zero3 was tried too. distributed_type: FSDP\nRuntimeError: 'weight' must be 2-D", "F39"),
        ("RuntimeError: 'weight' must be 2-D", "F26"),
        (
            "accelerate: setStorage: sizes [4096, 8], strides [1, 4096], storage offset 0, and itemsize 4 "
            "requiring a storage size of 131072 are out of bounds for storage of size 0",
            "F39",
        ),
        ("AttributeError: 'Trainer' object has no attribute 'optimizer'", None),
        ("ValueError: Could not find the transformer layer class Qwen2VLVisionBlock in the model.", "F40"),
        ("Exception: Could not find the transformer layer class to wrap in the model.", "F40"),
        (
            'File "/x/fsdp_utils.py", line 66, in get_fsdp_wrap_policy\n'
            "Exception: Cannot find Qwen2VLDecoderLayer in pretrained model.",
            "F40",
        ),
        ('File "/x/load.py", line 6, in f\nKeyError: Cannot find bias in pretrained model.', None),
        (
            "ValueError: expected to be in states [<TrainingState.FORWARD_BACKWARD: 2>] but current state is "
            "TrainingState.IDLE",
            "F41",
        ),
        (
            "RuntimeError: Missing key in checkpoint state_dict:\n  app.optimizers.state.model.tower.w.step.",
            "F42",
        ),
        ("RuntimeError: Missing key in checkpoint state_dict: model.head.weight.", None),
        (
            "RuntimeError: Error(s) in loading state_dict for PeftModelForCausalLM:\n\tMissing key(s) in "
            'state_dict: "base_model.model.model.embed_tokens.weight"',
            "F43",
        ),
        (
            'RuntimeError: Error(s) in loading state_dict for Net:\n Missing key(s) in state_dict: "fc.w"',
            None,
        ),
        (
            "There were missing keys in the checkpoint model loaded: ['model.language_model.embed_tokens.w'\n"
            "There were unexpected keys in the checkpoint model loaded: ['model.embed_tokens.w']",
            "F44",
        ),
        ("There were missing keys in the checkpoint model loaded: ['lm_head.weight'].", None),
        (APART.format("965, 5120", "964, 5120"), "F45"),
        (APART.format("4, 320", "128, 320"), None),
        (APART.format("8, 965, 64", "8, 964, 64"), None),
        (
            'File "/x/deepspeed/runtime/zero/stage_1_and_2.py", line 1100, in reduce_ipg_grads\n'
            "    self.average_tensor(bucket.buffer[bucket.index].narrow(0, 0, bucket.elements), comm_dtype)\n"
            "IndexError: list index out of range",
            "F46",
        ),
        ("AttributeError: 'DeepSpeedZeroOptimizer' object has no attribute 'ipg_index'", "F46"),
        ('File "/x/lora.py", line 9, in train_lora\n' + NO_GRAPH, None),
        ("diffusers, from peft import LoraConfig\n" + NO_GRAPH, None),
        ("from peft import get_peft_model\n" + NO_GRAPH, "F5"),
        ("I set use_checkpoint to True\n" + NO_GRAPH, "F5"),
        ("--gradient_checkpointing true --lora_rank 0\n" + NO_GRAPH, None),
        (UNUSED, None),
        (UNUSED + "\nWe train on text-only samples beside images.", "F19"),
        ("torch.OutOfMemoryError: CUDA out of memory.\nskipped\n" + TRACE + UNUSED, "F49"),
        ("CUDA out of memory in step 7, skipped\n" + UNUSED, "F49"),
        (UNUSED + " You can enable unused parameter detection by (1) passing the keyword argument", None),
        ('File "/x/mmf/trainers/core/training_loop.py", line 33, in training_loop\n' + UNUSED, None),
        (TRACE + 'File "/x/torch/nn/parallel/distributed.py", line 1775, in _pre_forward\n' + UNUSED, "F19"),
        (
            "RuntimeError: still have inflight params [{'id': 8, 'status': 'AVAILABLE', 'numel': 65536}]",
            "F70",
        ),
        (TRACE + 'File "/x/zero/partitioned_param_coordinator.py", line 2, in f\n' + DEQUE, "F70"),
        (TRACE + 'File "/x/service/queue.py", line 2, in take\n' + DEQUE, None),
        ("GRPO under ZeRO-3\n" + DEQUE, "F70"),
        (DEQUE + " in run_grpo.py\n" + TRACE + TRAINER, "F70"),
        (DEQUE + "\n" + TRACE + TRAINER, None),
        (
            "AssertionError: no_sync context manager is incompatible with gradient partitioning logic of",
            "F71",
        ),
        (
            "A different number of tensors was saved during the original forward and recomputation.",
            "F72",
        ),
        ("RuntimeError: Your training graph has changed in this iteration, e.g., one parameter", "F74"),
        (TRACE + 'File "/x/qwen3_vl/modeling_qwen3_vl.py", line 1, in f\n' + VIEW, "F75"),
        (TRACE + 'File "/x/unet/blocks.py", line 1, in f\n' + VIEW, None),
        (VIEW + "\nIt comes with the hooks that draw a heat map.", None),
        ("LoRA on Qwen3-VL\n" + VIEW, "F75"),
        ("AttributeError: 'Parameter' object has no attribute 'ds_numel'", "F76"),
        ("image_features = torch.cat(images)\nRuntimeError: " + NO_IMAGES, "F77"),
        ("RuntimeError: " + NO_IMAGES, None),
        ("zero3\nRuntimeError: Function SumBackward0 " + INVALID.format(0), "F26"),
        ("zero3\nRuntimeError: " + EXPANDED.format(0), "F26"),
        ("RuntimeError: " + EXPANDED.format(0), None),
        ("zero3\nRuntimeError: " + EXPANDED.format(7), None),
        ("Qwen2-VL, some samples are text-only; after 40 steps the run halts.", "F11"),
        ("A video of text-only slides; playback halts.", None),
        ("With zero2 and a mixed-modality set of images, training ends in an NCCL timeout", "F16"),
        ("We train on text-only and image samples by FSDP: it freezes", "F11"),
        (
            "The exchange of images in a mixed dataset works; training is changed",
            None,
        ),  # `hang` begins no word
        ("Saving checkpoint hangs when using DeepSpeed", "F12"),
        ("DeepSpeed: 保存模型的时候卡住了", "F12"),
        ("Saving checkpoint hangs under DDP", None),
        ("gradient_checkpointing\nRuntimeError: element 0 of variables does not require grad", "F5"),
        ("    loss.backward(retain_graph=True)\n" + CHECKPOINT + SECOND, None),
        (MIXED_TENSORS, "F39"),
        ("RuntimeError: aten._foreach_mul_ got mixed torch.Tensor and DTensor, in clip_grads.py", None),
        ("training with DeepSpeed\nRuntimeError: 'weight' must be 2-D\nUse a launcher for FSDP", "F26"),
        ("zero3\nRuntimeError: Function SumBackward0 " + INVALID.format(7), None),
        ("It works with zero2 and fails with zero3:\nRuntimeError: " + EXPANDED.format(0), "F26"),
        ("It works with FSDP and fails with zero2:\nRuntimeError: " + EXPANDED.format(0), None),
        ("zero3\n" + MASK_OF_NOTHING, "F26"),
        (MASK_OF_NOTHING, None),
        (EXPLICIT, "F6"),
        (
            "CheckpointError\nNumber of tensors saved during forward: 27\nNumber of tensors saved during "
            "recomputation: 8",
            "F72",
        ),
        ("FSDP\nRuntimeError: The tensor has a non-zero number of elements, but its data is not", "F39"),
        (
            "# TypeError: WhisperForConditionalGeneration.forward() got an unexpected keyword argument "
            "'num_items_in_batch'\n" + TRACE,
            None,
        ),
        (
            '  File "/x/site-packages/deepspeed/runtime/engine.py", line 2634, in load_module_state_dict\n'
            "RuntimeError: Error(s) in loading state_dict for PeftModelForCausalLM:\n"
            "        Missing key(s) in state_dict:",
            "F43",
        ),
        ("A detector of cars (multimodal), on kitti\n" + FINISHED, None),
        ("Lora\nRuntimeError: " + NO_GRAPH + "\nmodel.enable_input_require_grads()", "F5"),
        ("用LoRA微调\n" + TWICE, "F3"),
    ],
)
def test_texts(text: str, id_: str | None) -> None:
    assert said(text) == id_


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        ("{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1e-08, 'epoch': 0.01}", "nan"),
        (
            "None of the inputs have requires_grad=True.\n{'loss': 0.0, 'grad_norm': nan, 'epoch': 0.01}",
            "nan",
        ),
        ("lora_r=0\nUserWarning: None of the inputs have requires_grad=True.", "nothing-trained"),
        (
            'File "/x/trl/models/utils.py", line 140, in remove_hooks\n'
            "AttributeError: 'Qwen2ForCausalLM' object has no attribute 'optimizer'",
            "trl-hooks",
        ),
        ("trainable params: 0 || all params: 9\n" + NO_GRAPH, "nothing-trained"),
        ('File "/x/mmf/trainers/core/training_loop.py", line 33, in f\n' + UNUSED, "unused-parameters"),
        (
            "[rank0]: See https://github.com/pytorch/pytorch/issues/166926 for more details and\n"
            "[rank0]: workaround examples.\n",
            "recompute-end",
        ),
        (
            "Tip: To see a more detailed error message, either pass `debug=True` to\n"
            "`torch.utils.checkpoint.checkpoint(...)` or wrap the code block\n",
            "recompute-end",
        ),
        ("RuntimeError: Expected all tensors to be on the same device, but found two", "device-map"),
        (
            "../aten/src/ATen/native/cuda/IndexKernel.cu:93: operator(): block: [0,0,0], thread: [0,0,0] "
            "Assertion `index < sizes[i]` failed.",
            "cuda",
        ),
        ("RuntimeError: mat1 and mat2 must have the same dtype, but got Float and BFloat16", "dtype"),
        ("RuntimeError: Input type (float) and bias type (c10::BFloat16) should be the same", "dtype"),
        ("RuntimeError: x has been modified by an inplace operation: [torch.FloatTensor [4]]", "in-place"),
        ("RuntimeError: Caught StopIteration in replica 1 on device 1.", "data-parallel"),
        ("pod sft-0: command terminated with exit code 137", "killed"),
        ("train.sh: line 3: 12345 Killed                  python finetune.py --bf16 true", "killed"),
        (
            "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2025-07-12T10:11:12 DUE TO TIME LIMIT ***",
            "stopped",
        ),
        ("Received Signals.SIGHUP death signal, shutting down workers", "stopped"),
        ("SignalException: Process 12 got signal: 1", "stopped"),
        ("SignalException: Process 12 got signal: 15", "peers"),
        ("Loading checkpoint shards:   0%|          | 0/3 [00:00<?, ?it/s]Killed", "killed"),
        ("AssertionError: Check batch related parameters. train_batch_size is not", "configuration"),
        (
            "ValueError: Target modules {'x'} not found in the base model. Please check the target modules",
            "lora-targets",
        ),
        (
            "RuntimeError: Some tensors share memory, this will lead to duplicate memory on disk",
            "shared-tensors",
        ),
        ("transformers\nAttributeError: 'InternForCausalLM' object has no attribute 'generate'", "versions"),
        ("ImportError: cannot import name 'Qwen9VLImageProcessor' from 'transformers'", "versions"),
        (TRAINER + "TypeError: forward() got an unexpected keyword argument 'cache_position'", "versions"),
        (
            "AttributeError: 'Qwen2ForCausalLM' object has no attribute 'save_checkpoint'",
            "launcher",
        ),
        (
            "size mismatch for lm_head.weight: copying a param with shape torch.Size([49954, 4096]) from "
            "checkpoint, the shape in current model is torch.Size([32000, 4096]).",
            "mismatched-weights",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/out/tmp-checkpoint-9' -> "
            "'/out/checkpoint-9'",
            "staging",
        ),
        ("ValueError: You can't train a model that has been loaded in 8-bit precision", "quantized"),
        ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", "broken-file"),
        (
            "AttributeError: module 'transformers_modules.x.tokenization_x' has no attribute 'XTokenizer'",
            "broken-file",
        ),
        ("OSError: x is not a local folder and is not a valid model identifier listed on", "hub"),
        ("RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error.", "shared-memory"),
        ("RuntimeError: Error building extension 'cpu_adam'", "extension"),
        ("A small model of pictures is always getting OOM, yet a larger one works!", "out-of-memory"),
        ('It says "torch._dynamo.exc.Unsupported: hasattr ConstDictVariable to"', "compiled"),
        ("RuntimeError: CUDA error: invalid device ordinal", "devices"),
        (
            "ValueError: loaded state dict contains a parameter group that doesn't match the size of "
            "optimizer's group",
            "optimizer-groups",
        ),
        (
            "[ERROR] [launch.py:320:sigkill_handler] ['python3', 'train.py'] exits with return code = 1",
            "peers",
        ),
        ("AssertionError: backward pass is invalid for module in evaluation mode", "evaluation-mode"),
        ("ValueError: XyzChatModel does not support gradient checkpointing.", "no-checkpointing"),
        (
            "RuntimeError: shape mismatch: value tensor of shape [3, 2253] cannot be broadcast to indexing "
            "result of shape [3, 2244]",
            "data",
        ),
        (
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (44x6656 and 1x22151168)",
            "quantized",
        ),
        (
            ONE_ROW.replace("413", "412").replace("int32", "float32", 1).replace("int32", "bfloat16"),
            "recompute-dtype",
        ),
        (
            "We fine-tune the vision encoder, but its forward is decorated with @torch.no_grad().",
            "no-grad",
        ),
    ],
)
def test_causes_of_others_are_named_and_promise_no_import(text: str, id_: str) -> None:
    hit = of(text).hit
    assert hit is not None
    assert (hit.failure.id, hit.failure.foreign) == (id_, True)


@pytest.mark.parametrize(
    "text",
    [
        "AttributeError: 'NoneType' object has no attribute 'shape'",
        "transformers\nAttributeError: 'NoneType' object has no attribute 'shape'",
        "AttributeError: 'DetectionModel' object has no attribute 'fuse'",
        "TypeError: plot() got an unexpected keyword argument 'colour'",
        ONE_ROW.replace("413", "412"),
        "the evaluation runs under torch.no_grad()",
    ],
)
def test_what_many_programs_print_is_left_alone(text: str) -> None:
    assert of(text).hit is None


def test_what_a_person_says_of_a_save_tells_whose_timeout_it_is() -> None:
    timeout = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1)"
    assert said("saving the model: NCCL timeout\n" + timeout) == "F12"
    assert said("the log is saved in /out, then it hangs\n" + timeout) is None


# As ms-swift prints its arguments, whatever a run is under.
PRINTED = "SftArguments(\nfsdp=[],\nfsdp_config=None,\nresume_from_checkpoint=None,\nsave_only_model=True)\n"
GRAPH = "AssertionError: wrong number of dimensions1 for op: input"
STAGE3 = 'File "/x/site-packages/deepspeed/runtime/zero/stage3.py", line 2341, in backward\n'


def test_printed_arguments_are_no_sign_of_what_they_name() -> None:
    assert not of(PRINTED + "AssertionError: of the script's own").perhaps
    assert said(PRINTED + TRACE + STAGE3 + "RuntimeError: self must be a matrix") == "F9"
    assert said(TRACE + STAGE3 + "RuntimeError: self must be a matrix") == "F9"
    assert said("RuntimeError: self must be a matrix") is None
    hit = of(PRINTED + TRACE + GRAPH).hit
    assert hit is not None
    assert hit.failure.id == "compiled"


def test_a_message_that_many_programs_print_is_named_only() -> None:
    assert [failure.id for failure in of(SECOND).perhaps] == ["F36"]
    assert [failure.id for failure in of(TRACE + TRAINER + SECOND).perhaps] == ["F36"]


CUT = TRACE + '  File "/x/site-packages/torch/autograd/graph.py", line 823, in _engine_run_backward\n'


def test_a_loss_without_a_graph_under_lora_is_named_only() -> None:
    assert [failure.id for failure in of("the lora code\n" + NO_GRAPH).perhaps] == ["F5"]
    assert not of(NO_GRAPH).perhaps


def test_a_traceback_without_its_exception_is_cut_and_says_what_it_could_be() -> None:
    found = of(CUT)
    assert found.hit is None
    assert found.first is not None
    assert found.first.cut
    assert found.first.line.endswith("in _engine_run_backward")
    assert "F3" in [failure.id for failure in of(CUT + "    return x.run_backward(").perhaps]
    assert not of(CUT).perhaps
    assert said(CUT + READY) == "F3"
    assert said("UserWarning: None of the inputs have requires_grad=True.\n" + CUT) is None


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        (
            TRACE
            + '  File "/x/site-packages/accelerate/accelerator.py", line 973, in no_sync\n'
            + '  File "/x/site-packages/deepspeed/runtime/engine.py", line 1997, in no_sync\n',
            "F71",
        ),
        (
            TRACE
            + '  File "/x/site-packages/deepspeed/runtime/zero/partitioned_param_coordinator.py", line 316, '
            + "in fetch_sub_module\nAssertionError: {'id': 4, 'status': 'INFLIGHT', 'ds_shape': (8, 8)}\n",
            "F70",
        ),
        (
            TRACE
            + "fully_shard(model)\nRuntimeError: aten.mm.default: got mixed torch.Tensor and DTensor, need\n",
            "F39",
        ),
        (
            "swift sft --deepspeed zero3\n"
            + TRACE
            + '  File "/x/site-packages/torch/nn/modules/conv.py", line 456, in _conv_forward\n    return\n',
            "F26",
        ),
    ],
)
def test_where_a_traceback_is_cut_says_what_it_could_be(text: str, id_: str) -> None:
    assert [failure.id for failure in of(text).perhaps] == [id_]


def test_someone_who_tells_of_a_doubled_length_is_told_what_it_could_be() -> None:
    told = (
        "CheckpointError: the recomputed tensors have different metadata, a length is doubled; perhaps the "
        "KV cache is on."
    )
    assert [failure.id for failure in of(told).perhaps] == ["F20"]


NARROW = 80


def cut(text: str) -> str:
    return "\n".join(line[:NARROW] for line in text.split("\n"))


GENERATED = "    position_ids, rope_deltas = self.get_rope_index(\n"
MASK = (
    "IndexError: The shape of the mask [588] at index 0 does not match the shape of the indexed tensor [587]"
)


def test_a_pattern_with_numbers_is_known_by_what_is_left_of_a_line() -> None:
    assert said(cut(TRACE + GENERATED + MASK + " index 0")) == "F30"
    assert said(cut(TRACE + MASK + " index 0")) is None  # which numbers they were decides then
    rotated = "    q_embed = (q * cos) + (rotate_half(q) * sin)\n"
    apart = "RuntimeError: The size of tensor a (30) must match the size of tensor b (31) at non-singleton"
    assert said(TRACE + rotated + apart + " dimension 2") == "F30"
    rope = TRACE + "    outputs = model.generate(**inputs)\n"
    assert said(cut(rope + apart + " dimension 2")) == "F30"
    assert said(cut(rope + apart.replace("31", "63") + " dimension 2")) is None
    assert said(cut(TRACE + rotated + "[rank1]: [rank1]: " + apart)) is None
    assert said(cut("zero3\nRuntimeError: " + EXPANDED.format(7))) is None
    doubled = APART.format("1, 12, 171, 128", "1, 12, 342, 128").replace("{{", "{").replace("}}", "}")
    assert said(cut(doubled)) == "F20"


LOADED = (
    "RuntimeError: Error(s) in loading state_dict for Qwen2VLForConditionalGeneration\n"
    "\tsize mismatch for visual.blocks.3.mlp.up_proj.bias: copying a param with shape torch.Size([8]) from "
    "checkpoint, the shape in current model is torch.Size([{}])."
)


def test_what_was_cut_before_it_decides_is_named_only() -> None:
    found = of(cut(TRACE + LOADED.format(0)))
    assert found.hit is None
    assert [failure.id for failure in found.perhaps] == ["F24", "F25"]
    assert said(TRACE + LOADED.format(0)) == "F24"
    assert not of(TRACE + LOADED.format(9)).perhaps


@pytest.mark.parametrize(
    ("line", "ids"),
    [
        (
            "[rank2]: RuntimeError: The expanded size of the tensor (46) must match the existing size (23)",
            ["F20"],
        ),
        (
            "ValueError: Trying to set a tensor of shape torch.Size([1280]) in 'weight' (which has shape "
            "torch.Size([0])), this looks incorrect.",
            ["F24"],
        ),
        (
            "RuntimeError: Expected weight to be of same shape as normalized_shape, but got weight of shape",
            ["F26"],
        ),
        (
            "RuntimeError: The size of tensor a (3) must match the size of tensor b (4) at non-singleton dim",
            [],
        ),
        ("ValueError: Must be one of what is listed in the documentation of this function, and not this", []),
    ],
)
def test_a_line_cut_before_it_decides_says_what_it_could_be(line: str, ids: list[str]) -> None:
    found = of(cut(TRACE + line))
    assert found.hit is None
    assert [failure.id for failure in found.perhaps] == ids


def test_a_line_that_ends_in_dots_was_cut() -> None:
    left = "RuntimeError: Expected to have finished reduction in the prior it"
    assert said(f"LoRA\n{left}...") == "F19"
    assert said(f"LoRA\n{left}") is None


def test_a_number_at_the_end_of_a_pattern_decides() -> None:
    apart = (
        "RuntimeError: The size of tensor a (30) must match the size of tensor b (31) at non-singleton dim"
    )
    generated = 'File "/x/generate.py", line 9, in _sample\n'
    assert said(TRACE + generated + apart + "ension 2") == "F30"
    assert said(f"{apart}ension 2"[:80]) is None


def test_a_line_that_goes_on_was_broken_and_not_cut() -> None:
    other = MASK.replace("[587]", "[1, 6]")
    assert said(TRACE + "    x = model.generate(\n" + MASK.replace("[587]", "[1]")) == "F30"
    broken = f"{other[:NARROW]}\n{other[NARROW:]}"
    assert said(TRACE + "    x = model.generate(\n" + broken) is None


def test_frames_are_known_in_typographic_quotes() -> None:
    found = of(CUT.replace('"', "”"))
    assert found.first is not None
    assert found.first.cut


def test_an_exception_that_begins_a_string_of_json_is_printed() -> None:
    error = "TypeError: Bert.forward() got an unexpected keyword argument 'num_items_in_batch'"
    found = of(json.dumps({"body": error + "\nin Trainer.compute_loss(self)"}))
    assert found.hit is None
    assert found.first is not None
    assert found.first.line == error


def test_a_line_is_as_wide_as_its_characters() -> None:
    text = "训练时报错:The parameter 255 has already been reduced. Gradient computed twice for this partition"
    assert said(cut(text)) == "F1"


def test_two_ranks_on_one_line_are_two() -> None:
    assert said(APART.format("965, 5120", "964, 5120") + "[rank13]: " + TRACE) == "F45"


UNRELATED = [
    "KeyError: 'lora_config'",
    "ValueError: invalid literal for int() with base 10: 'lora'",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x12 and 10x2)",
    "RuntimeError: The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 1",
    "RuntimeError: expected scalar type Half but found Float",
    "RuntimeError: Expected all tensors to be on the same device, but found cuda:0 and cpu!",
    SECOND,
    NO_GRAPH,
    "RuntimeError: Given groups=1, weight of size [64, 3, 7, 7], expected input[1, 1, 8, 8]",
    "IndexError: list index out of range",
    "IndexError: index 5 is out of bounds for dimension 0 with size 5",
    "RuntimeError: one of the variables needed for gradient computation has been modified inplace",
    "RuntimeError: Sizes of tensors must match except in dimension 1. Expected size 3 but got size 4",
    "TypeError: forward() got an unexpected keyword argument 'attention_mask'",
    "AttributeError: 'NoneType' object has no attribute 'shape'",
    "ImportError: cannot import name 'x' from 'transformers'",
    'RuntimeError: Error(s) in loading state_dict for Net:\n\tUnexpected key(s) in state_dict: "fc.weight".',
    "AssertionError: Torch not compiled with CUDA enabled",
    "RecursionError: maximum recursion depth exceeded in comparison",
    "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.",
    "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
    "FileNotFoundError: [Errno 2] No such file or directory: 'checkpoint-500/optimizer.pt'",
    "ValueError: Cannot find reader in pretrained model zoo",
    "RuntimeError: shape '[2, 8, 64]' is invalid for input of size 0",
]
ORDINARY = """Traceback (most recent call last):
  File "/home/u/gan/train_lora.py", line 88, in <module>
    loss.backward()
  File "/opt/py/lib/python3.10/site-packages/torch/_tensor.py", line 522, in backward
    torch.autograd.backward(
"""


@pytest.mark.parametrize("error", UNRELATED)
def test_ordinary_errors_of_python_and_torch_are_not_claimed(error: str) -> None:
    assert said(ORDINARY + error) is None


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: Detected a disagreement on list length between rank0 and rank7:",
        "RuntimeError: disagreement between rank0 and rank1: rank0: [[4, 7]], rank1: [[4, 8]]",
    ],
)
def test_ranks_that_disagree_are_those_of_experts_where_the_log_has_them(message: str) -> None:
    hit = of("model: Qwen3.5-35B-A3B, deepspeed zero3\n" + message).hit
    assert hit is not None
    assert hit.failure.id == "F27"
    found = of(message)
    assert found.hit is None
    assert {failure.id for failure in found.perhaps} == {"F11", "F27"}


LACKING = "AttributeError: 'SegmentHead' object has no attribute '_supports_flash'"


def test_an_attribute_that_is_not_there_is_another_releases_where_a_person_speaks_of_releases() -> None:
    told = "It worked before transformers was upgraded to the latest version.\n"
    hit = of("LLaVA, fine-tuning\n" + told + LACKING).hit
    assert hit is not None
    assert hit.failure.id == "versions"
    assert of("LLaVA, fine-tuning\n" + LACKING).hit is None


@pytest.mark.parametrize(
    ("message", "id_"),
    [
        ("AttributeError: 'DeepSpeedEngine' object has no attribute 'generate'", "wrapped-model"),
        ("AttributeError: 'LlamaForCausalLM' object has no attribute 'optimizer'", "trl-hooks"),
        ("AttributeError: 'GPT2LMHeadModel' object has no attribute 'backward'", "launcher"),
        ("RuntimeError: CUDA error: named symbol not found", "cuda"),
        ("RuntimeError: CUDA error: invalid device ordinal", "devices"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "old-gpu"),
        ("ValueError: Can't find a valid checkpoint at out/checkpoint-1500", "no-state"),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970", "network"),
        ("RuntimeError: Cannot re-initialize CUDA in forked subprocess.", "forked-cuda"),
        ("RuntimeError: Could not load libtorchcodec. Likely causes:", "environment"),
        (
            "AttributeError: Can't pickle local object 'DeepSpeedEngine._hook.<locals>._post_hook'",
            "spawned-workers",
        ),
        (
            "requests.exceptions.ChunkedEncodingError: ('Connection broken: IncompleteRead(2 bytes read)')",
            "hub",
        ),
        ("AttributeError: 'PreTrainedTokenizerFast' object has no attribute 'image_processor'", "tokenizer"),
        ("AssertionError: CPUAdam param is on cuda:0 and must be 'cpu'", "configuration"),
        ("E0617 api.py:874] failed (exitcode: -11) local_rank: 0 (pid: 5) of binary: python", "crash"),
        ("(WorkerDict pid=5) *** SIGABRT received at time=1773825404 on cpu 49 ***", "crash"),
        ("Invalid handle. Cannot load symbol cublasLtGetVersion", "environment"),
        ("python: aio_common.cpp:125: int _do_io_complete(): Assertion `n >= m' failed.", "crash"),
        ("ERROR:validation:Invalid access pattern: 24 ShardedObject are missing.", "mismatched-weights"),
        ("ValueError: Integer parameters are unsupported", "quantized"),
        ("ValueError: There is no module or parameter named 'base_model' in Qwen2ForCausalLM", "server"),
    ],
)
def test_what_is_none_of_ours_has_its_family(message: str, id_: str) -> None:
    hit = of("Qwen2-VL is fine-tuned after an upgrade to the latest version.\n" + message).hit
    assert hit is not None
    assert hit.failure.id == id_


def test_a_reader_of_videos_that_is_replaced_by_another_is_no_sample_that_cannot_be_used() -> None:
    assert (
        of("video_reader_backend decord error, use torchvision as default, msg: nframes: got 0").hit is None
    )


PLACES = (
    "RuntimeError: shape mismatch: value tensor of shape [256, 576] "
    "cannot be broadcast to indexing result of shape "
)


@pytest.mark.parametrize("places", ["[192, 576]", "[0, 576]"])
def test_parts_of_a_picture_that_have_other_places_are_a_samples(places: str) -> None:
    hit = of(PLACES + places).hit
    assert hit is not None
    assert hit.failure.id == "data"


def test_a_group_without_a_parameter_that_deepspeed_flattens_is_told_as_perhaps() -> None:
    found = of(
        "    return self.flatten(align_dense_tensors(tensor_list, alignment))\n"
        "RuntimeError: torch.cat(): expected a non-empty list of Tensors"
    )
    assert found.hit is None
    assert "nothing-trained" in {failure.id for failure in found.perhaps}
