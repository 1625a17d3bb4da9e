"""What libraries print for a failure, on each release that differs, however it is quoted: the same answer.

The messages are those of the sources: torch 2.1 to 2.15, DeepSpeed 0.12.6 to 0.19.8, transformers 4.37 to
5.24, PEFT 0.9 to 0.21, accelerate 0.34 to 1.15. What torch prints of a weight without elements was printed
by its functions, given one.
"""

from __future__ import annotations

import pytest

from tests.unit.test_explain import of, said

PRINTED = [
    ("F1", "", "AssertionError", "The parameter 323 has already been reduced."),
    ("F1", "", "AssertionError", "The parameter model.visual.blocks.0.qkv.weight has already been reduced."),
    ("F1", "", "AssertionError", "Gradient computed twice for this partition."),
    ("F3", "LoRA", "RuntimeError", "Expected to mark a variable ready only once."),
    (
        "F3",
        "",
        "RuntimeError",
        "Parameter at index 63 with name base_model.model.model.layers.31.self_attn.qkv_proj.lora_B.default."
        "weight has been marked as ready twice.",
    ),
    (
        "F4",
        "",
        "torch.utils.checkpoint.CheckpointError",
        "torch.utils.checkpoint: Recomputed values for the following tensors have different metadata than "
        "during the forward pass.\ntensor at position 4:\nsaved metadata: {'shape': torch.Size([8])}\n"
        "recomputed metadata: {'shape': torch.Size([0])}",
    ),
    (
        "F5",
        "get_peft_model(model, config)",
        "RuntimeError",
        "element 0 of tensors does not require grad and does not have a grad_fn",
    ),
    (
        "F5",
        "",
        "AssertionError",
        "loss must be a scalar tensor with grad_fn. For non-scalar tensors, use tensor.backward(grad)",
    ),
    ("F5", "", "RuntimeError", "none of output has requires_grad=True, this checkpoint() is not necessary"),
    ("F9", "", "AttributeError", "'ModulesToSaveWrapper' object has no attribute 'ds_grads_remaining'"),
    (
        "F13",
        "Qwen2-VL",
        "RuntimeError",
        "a leaf Variable that requires grad is being used in an in-place operation.",
    ),
    (
        "F13",
        "Qwen2-VL",
        "RuntimeError",
        "a view of a leaf Variable that requires grad is being used in an in-place operation.",
    ),
    (
        "F20",
        "",
        "RuntimeError",
        "The expanded size of the tensor (46) must match the existing size (23) at non-singleton dimension 3",
    ),
    ("F23", "zero3", "IndexError", "index 151643 is out of bounds for dimension 0 with size 0"),
    (
        "F23",
        "zero3",
        "ValueError",
        "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions",
    ),
    (
        "F24",
        "",
        "RuntimeError",
        "size mismatch for visual.merger.ln_q.weight: copying a param with shape torch.Size([1280]) from "
        "checkpoint, the shape in current model is torch.Size([0]).",
    ),
    (
        "F24",
        "",
        "ValueError",
        "Trying to set a tensor of shape torch.Size([1280]) in 'weight' (which has shape torch.Size([0])), "
        "this looks incorrect.",
    ),
    (
        "F24",
        "",
        "RuntimeError",
        "visual.norm.weight | MISMATCH | Reinit due to size mismatch - ckpt: torch.Size([8]) vs "
        "model:torch.Size([0])",
    ),
    (
        "F25",
        "",
        "RuntimeError",
        "size mismatch for base_model.lora_A.weight: copying a param with shape torch.Size([0]) from "
        "checkpoint, the shape in current model is torch.Size([8, 64]).",
    ),
    (
        "F25",
        "",
        "RuntimeError",
        "norm.weight | MISMATCH | Reinit due to size mismatch - ckpt: torch.Size([0]) vs "
        "model:torch.Size([8])",
    ),
    (
        "D",
        "",
        "TypeError",
        "MyTrainer.compute_loss() got an unexpected keyword argument 'num_items_in_batch'",
    ),
    (
        "F30",
        "",
        "IndexError",
        "The shape of the mask [198] at index 0 does not match the shape of the indexed tensor [197] at "
        "index 0",
    ),
    (
        "F36",
        "use_reentrant=True",
        "RuntimeError",
        "Trying to backward through the graph a second time (or directly access saved tensors after they "
        "have already been freed).",
    ),
    (
        "F38",
        "",
        "ValueError",
        "Must flatten tensors with uniform `requires_grad` when `use_orig_params=False`",
    ),
    (
        "F38",
        "",
        "ValueError",
        "layers.0 has both parameters with requires_grad=True and False. FSDP does not support wrapping "
        "such modules when use_orig_params=False.",
    ),
    ("F40", "", "ValueError", "Could not find the transformer layer class Qwen2VLBlock in the model."),
    (
        "F41",
        "",
        "AssertionError",
        "expected to be in states [<TrainingState.IDLE: 1>] but current state is TrainingState.FORWARD",
    ),
    (
        "F42",
        "",
        "RuntimeError",
        "Missing optimizer state for parameter 'visual.w' in checkpoint. The parameter requires gradients "
        "but has no saved optimizer state.",
    ),
    ("F46", "", "AttributeError", "'DeepSpeedZeroOptimizer' object has no attribute 'ipg_index'"),
    ("F70", "", "RuntimeError", "still have inflight params [{'id': 8, 'status': 'AVAILABLE'}]"),
    ("F70", "", "RuntimeError", "tracing error at step 41:  module id: 9, training: True"),
    (
        "F71",
        "",
        "AssertionError",
        "no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage 2",
    ),
    (
        "F72",
        "",
        "torch.utils.checkpoint.CheckpointError",
        "torch.utils.checkpoint: A different number of tensors was saved during the original forward and "
        "recomputation.",
    ),
    ("F73", "", "ValueError", "Must flatten tensors with uniform dtype but got torch.bfloat16"),
    ("F74", "", "RuntimeError", "Your training graph has changed in this iteration, e.g., one parameter"),
    ("F76", "", "AttributeError", "'Parameter' object has no attribute 'ds_numel'"),
    ("F76", "", "AttributeError", "'Tensor' object has no attribute 'ds_id'"),
]
EMPTY_ALONE = [
    "'weight' must be 2-D",
    "weight should have at least three dimensions",
    "index_select(): self indexing axis dim should be positive",
    "Given weight of size [4, 3, 2, 2], expected bias to be 1-dimensional with 4 elements, but got bias of "
    "size [0] instead",
    "Expected weight to be of same shape as normalized_shape, but got weight of shape [0] and "
    "normalized_shape = [8]",
    "weight should contain 4 elements not 0",
]
EMPTY_UNDER = [
    "Padding_idx must be within num_embeddings",
    "size mismatch, got input (10), mat (10x8), vec (0)",
    "addmm: mat2 must be a matrix, got 1-D tensor",
    "mat2 must be a matrix, got 1-D tensor",
    "mm: mat1 and mat2 shapes cannot be multiplied (1x0 and 5x8)",
    "inconsistent tensor size, expected tensor [8] and src [0] to have the same number of elements",
    "The size of tensor a (8) must match the size of tensor b (0) at non-singleton dimension 2",
    "shape '[4, 8]' is invalid for input of size 0",
    "index is out of bounds for dimension with size 0",
]
PRINTED += [("F26", "", "RuntimeError", message) for message in EMPTY_ALONE]
PRINTED += [("F26", "deepspeed zero3", "RuntimeError", message) for message in (*EMPTY_ALONE, *EMPTY_UNDER)]
PRINTED += [("F39", "FSDP", "RuntimeError", message) for message in (*EMPTY_ALONE, *EMPTY_UNDER)]
QUOTED = {
    "printed": "{error}: {message}",
    "of a rank": "[rank3]: {error}: {message}",
    "by pytest": "E           {error}: {message}",
    "with Chinese marks": "训练时报错：{error}：{message}",
    "in bold": "**{error}**: {message}",
    "in a page": "<p>It ends in <b>{error}: {message}</b></p><br>",
    "in a sentence": "After some steps we get `{message}`, how can I solve it?",
    "as a title": "# [BUG] {error}: {message}\n\n### 是否已有关于该错误的issue或讨论？\n\n- [x] yes",
    "in a string": '{{"level": "error", "msg": "{error}: {message}"}}',
    "by a logger": "2025-07-03 04:54:34,137 - ERROR - {error}: {message}",
}


@pytest.mark.parametrize("quoted", QUOTED)
@pytest.mark.parametrize(("id_", "beside", "error", "message"), PRINTED)
def test_what_is_printed_has_one_answer_however_it_is_quoted(
    id_: str, beside: str, error: str, message: str, quoted: str
) -> None:
    assert said(f"{beside}\n{QUOTED[quoted].format(error=error, message=message)}\n") == id_


@pytest.mark.parametrize("message", EMPTY_UNDER)
def test_a_weight_without_elements_is_no_failure_where_nothing_partitions_weights(message: str) -> None:
    assert of(f"RuntimeError: {message}").hit is None
