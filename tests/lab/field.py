"""What users' threads describe, as cells: each scenario trains by its own means and measures itself.

The measure of every scenario is the plain run: the same model without checkpointing and without an engine,
in this one process, over the samples of all ranks. What differs from it is raised as ``Wrong``, so that a
cell's error says what a user would not see. Runs in a rank.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import importlib
import itertools
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import transformers

from tests.families._shared.files import SHAREGPT
from tests.families._shared.sizes import IMAGE, LINEAR, MROPE, QWEN3_VISION, QWEN_IDS, TEXT
from tests.lab import flash, saving, sixteen_bits, whole_sequences
from vlmpatch_lab import collectives, compare, engines, loading, recording, samples
from vlmpatch_lab.cell import WORLD, Cell
from vlmpatch_lab.patience import stretched

TOLERANCE = 1e-5
LARGE = 26  # patches along the side of an image; Idefics3 has as many
RATE = 4096.0  # of one step that says the gradient: what the weight was before is rounded away
TEXTS = 8  # that LLaMA-Factory packs
BEHIND_SPECIAL = 60  # token ids of texts alone, whatever stands for an image
KINDS = 3  # of rows, for a head that tells them apart
SMOOTHED = {"label_smoothing_factor": 0.1}
Gradients = dict[str, torch.Tensor]
Batch = dict[str, torch.Tensor]
Make = Callable[[Cell], Any]  # a model, before anything trains it
Right = Callable[[list[list[Batch]]], tuple[Gradients, float]]  # of the batches of every rank, and their loss
Feed = Callable[[Any, Batch], Batch]  # what a template makes of a batch, with the model's help


class Wrong(Exception):
    """A run that ended, with something other than what the plain run has."""


def train(cell: Cell, folder: Path, out: Path) -> dict[str, Any]:
    """Run the scenario that ``cell.trainer`` names; its gradients go to ``out``."""
    if cell.engine == "zero3":
        collectives.wait_for_every_collective()
    torch.save(SCENARIOS[cell.trainer](cell, folder), out)
    return {"losses": [], "digest": None, "measured": True}


def plain(
    cell: Cell,
    folder: Path,
    feed: Feed = lambda model, batch: batch,
    make: Callable[[Cell, Path], Any] = loading.prepare,
) -> Gradients:
    """The gradients of the plain run: the mean over all ranks' batches."""
    model = make(dataclasses.replace(cell, checkpointing="off", variant=""), folder)
    batches = [samples.make_batches(cell, folder, rank) for rank in range(WORLD)]
    for batch in (batch for own in batches for batch in own):
        loading.forget(model)
        (model(**feed(model, batch)).loss / WORLD).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def check(got: Gradients, right: Gradients) -> None:
    """Raises ``Wrong`` unless ``got`` are the gradients of the plain run."""
    if absent := compare.missing(got, right):
        raise Wrong(f"{len(absent)} of {len(right)} parameters have no gradient, {absent[0]} among them")
    difference, where = compare.difference(got, right)
    if not difference <= TOLERANCE:
        raise Wrong(f"gradients are {difference:.2g} off, at {where}")


def one_step(
    cell: Cell,
    folder: Path,
    model: Any,
    engine: Any,
    feed: Feed = lambda model, batch: batch,
    trained: Callable[[str], bool] = lambda name: True,
    make: Callable[[Cell, Path], Any] = loading.prepare,
) -> Gradients:
    """Forward and backward over this rank's batches; the gradients must be those of the plain run."""
    batches = samples.make_batches(cell, folder, dist.get_rank())
    losses = [engine.forward(feed(model, batch)) for batch in batches]
    engine.backward(torch.stack(losses).sum())
    found = recording.gradients(engine, model)
    right = plain(cell, folder, feed, make)
    check(found, {name: gradient for name, gradient in right.items() if trained(name)})
    return found


# --- rows spread over ranks --------------------------------------------------------------------------


def spread_by_trainer(cell: Cell, folder: Path) -> Gradients:
    """HF Trainer with ``sp_size`` 2."""
    found, right = whole_sequences.by_trainer(cell, _llama)
    check(found, right)
    return found


def spread_by_trainer_of_a_checkpoint(cell: Cell, folder: Path) -> Gradients:
    """The same of the family that the cell names, on texts."""
    found, right = whole_sequences.by_trainer(cell, lambda: loading.load(cell, folder))
    check(found, right)
    return found


def spread_over_epochs(cell: Cell, folder: Path) -> Gradients:
    """HF Trainer with ``sp_size`` 2, every step of two epochs."""
    found, right = whole_sequences.over_epochs(cell, _llama)
    check(found, right)
    return found


def spread_and_resumed(cell: Cell, folder: Path) -> Gradients:
    """The same, stopped within an epoch, where a rank's batch is half used, and resumed."""
    return whole_sequences.resumed_at(cell, _llama, whole_sequences.ROWS - 1)


def spread_and_resumed_between(cell: Cell, folder: Path) -> Gradients:
    """The same, stopped at the end of an epoch."""
    return whole_sequences.resumed_at(cell, _llama, whole_sequences.ROWS)


def spread_by_script(cell: Cell, folder: Path) -> Gradients:
    """The loop of ALST's tutorial."""
    found, right = whole_sequences.by_script(cell, _llama)
    check(found, right)
    return found


# --- activations saved by other means -------------------------------------------------------------


def selective(cell: Cell, folder: Path) -> Gradients:
    """Matrix products are kept over the recompute."""
    return _saved(cell, folder, saving.selective)


def forward_between(cell: Cell, folder: Path) -> Gradients:
    """What the model says without its adapter, asked for between a forward and its backward."""
    model = loading.prepare(cell, folder)
    engine = engines.ENGINES[cell.engine](cell, model)
    (batch,) = samples.make_batches(cell, folder, dist.get_rank())
    loss = engine.forward(batch)
    with torch.no_grad(), model.disable_adapter():
        engine.forward(batch)
    engine.backward(loss)
    with engine.gathered():
        found = recording.gradients(engine, model)
    check(found, plain(cell, folder))
    return found


def adapter_of_units(cell: Cell, folder: Path) -> Gradients:
    """The adapter as PEFT saves it is that of the model before it was wrapped, and is found again."""
    peft = importlib.import_module("peft")
    model = loading.prepare(cell, folder)
    right = {name: value.clone() for name, value in peft.get_peft_model_state_dict(model).items()}
    engine: Any = engines.ENGINES[cell.engine](cell, model)
    (batch,) = samples.make_batches(cell, folder, dist.get_rank())
    engine.backward(engine.forward(batch))
    _check_saved(engine.model, right)
    with torch.no_grad():
        for parameter in engine.trainable:
            parameter.zero_()
    with _whole(
        engine.model, rank0_only=True
    ):  # as accelerate resumes: only the first has a state to compare with
        peft.set_peft_model_state_dict(engine.model, right)
    _adapter_of_flat_units(cell, folder)
    return _check_saved(engine.model, right)


def _adapter_of_flat_units(cell: Cell, folder: Path) -> None:
    """An adapter that is loaded comes out again, where all parameters of a unit are one tensor."""
    peft, fsdp = importlib.import_module("peft"), importlib.import_module("torch.distributed.fsdp")
    model = loading.prepare(cell, folder)
    right = {name: 2 * value for name, value in peft.get_peft_model_state_dict(model).items()}
    policy = importlib.import_module("peft.utils.other").fsdp_auto_wrap_policy(model)
    wrapped = fsdp.FullyShardedDataParallel(
        model, auto_wrap_policy=policy, use_orig_params=False, device_id=torch.device("cpu")
    )
    with _whole(wrapped, rank0_only=True):
        peft.set_peft_model_state_dict(wrapped, dict(right))
    _check_saved(wrapped, right)


def _check_saved(model: Any, right: Gradients) -> Gradients:
    with _whole(model, rank0_only=False):
        found: Gradients = importlib.import_module("peft").get_peft_model_state_dict(model)
    if found.keys() != right.keys():
        raise Wrong(f"{len(found)} of {len(right)} tensors are saved")
    check(found, right)
    return found


def _whole(model: Any, rank0_only: bool) -> contextlib.AbstractContextManager[Any]:
    """Within it the state of ``model`` is that of all shards."""
    fsdp = importlib.import_module("torch.distributed.fsdp")
    said = fsdp.FullStateDictConfig(rank0_only=rank0_only, offload_to_cpu=False)
    kind = fsdp.StateDictType.FULL_STATE_DICT
    context: contextlib.AbstractContextManager[Any] = fsdp.FullyShardedDataParallel.state_dict_type(
        model, kind, said
    )
    return context


def tiled(cell: Cell, folder: Path) -> Gradients:
    """DeepSpeed's ``TiledMLP`` in every block of the language model."""
    return _saved(cell, folder, saving.tiled)


def _saved(cell: Cell, folder: Path, save: Callable[[Any], None]) -> Gradients:
    model = _biased(cell, folder)
    save(model)
    engine = engines.ENGINES[cell.engine](cell, model)
    (batch,) = samples.make_batches(cell, folder, dist.get_rank())
    right = plain(cell, folder, make=_biased)
    for _ in range(2):  # of steps, at a rate of 0: what is learnt in the first one counts in the second
        engine.backward(engine.forward(batch))
        check(found := recording.gradients(engine, model), right)
        engine.step()
    return found


def _biased(cell: Cell, folder: Path) -> Any:
    """The model with biases as training leaves them: those of a new one are zero."""
    model = loading.prepare(cell, folder)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.constant_(parameter, 0.1)
    return model


# --- generate() while checkpointing is on ---------------------------------------------------------


class _Interrupted(Exception):
    pass


def generate(cell: Cell, folder: Path) -> Gradients:
    """A completion in training mode, as GRPO makes them, then a step of training."""
    model = loading.prepare(cell, folder)
    engine = engines.ENGINES[cell.engine](cell, model)
    flags = _flags(model)
    without = loading.prepare(dataclasses.replace(cell, checkpointing="off"), folder)
    right = _completion(without, cell, folder)
    for name, got in {
        "a call": _completion(model, cell, folder),
        "a nested call": _completion(model, cell, folder, lambda: _completion(model, cell, folder)),
        "calls in threads": _in_threads(lambda: _completion(model, cell, folder)),
    }.items():
        if not torch.equal(got, right):
            raise Wrong(f"{name} gave the tokens {got[0, -6:].tolist()}, not {right[0, -6:].tolist()}")
    with contextlib.suppress(_Interrupted):
        _completion(model, cell, folder, _interrupt)
    if _flags(model) != flags:
        raise Wrong("checkpointing is not as it was before generate()")
    return one_step(cell, folder, model, engine)


def generate_more(cell: Cell, folder: Path) -> Gradients:
    """Completions of two rows at once, then a step on one whose trainer passes no ``mm_token_type_ids``."""
    model = loading.prepare(cell, folder)
    engine = engines.ENGINES[cell.engine](cell, model)
    prompt = dict(samples.make_batches(cell, folder, dist.get_rank())[0])
    twice = {name: torch.cat([value, value]) for name, value in prompt.items() if name != "labels"}
    with torch.no_grad():
        model.generate(**twice, max_new_tokens=2, do_sample=False)

    def untyped(model: Any, batch: Batch) -> Batch:
        return {name: value for name, value in batch.items() if name != "mm_token_type_ids"}

    return one_step(cell, folder, model, engine, untyped)


def generate_in_step(cell: Cell, folder: Path) -> Gradients:
    """A completion without a cache, where the rank that has finished waits for the other, as under ZeRO-3."""
    model = loading.prepare(cell, folder)
    model.generation_config.use_cache = False  # as it is where the configuration says so
    engine = engines.ENGINES[cell.engine](cell, model)
    right = _completion(loading.prepare(dataclasses.replace(cell, checkpointing="off"), folder), cell, folder)
    kept = right.shape[1] - (4 if dist.get_rank() == 0 else 0)
    got = _completion(model, cell, folder, stop_at=kept, synced_gpus=True)
    if not torch.equal(got, right[:, :kept]):
        raise Wrong(f"got the tokens {got[0, -6:].tolist()}, not {right[0, -6:].tolist()}")
    return one_step(cell, folder, model, engine)


def _flags(model: Any) -> list[bool]:
    return [
        module.gradient_checkpointing
        for module in model.modules()
        if "gradient_checkpointing" in vars(module)
    ]


def _interrupt() -> None:
    raise _Interrupted


def _completion(
    model: Any,
    cell: Cell,
    folder: Path,
    during: Callable[[], Any] | None = None,
    stop_at: int = 0,
    **said: Any,
) -> torch.Tensor:
    """The prompt and six tokens; ``during`` is called after the second, at length ``stop_at`` it ends."""
    batch = samples.make_batches(cell, folder, dist.get_rank())[0]
    prompt = {name: value for name, value in batch.items() if name != "labels"}

    class During(transformers.StoppingCriteria):  # type: ignore[misc]
        def __call__(self, ids: Any, scores: Any, **kwargs: Any) -> torch.Tensor:
            if during is not None and ids.shape[1] == prompt["input_ids"].shape[1] + 2:
                during()
            return torch.full((len(ids),), ids.shape[1] == stop_at)

    tokens: torch.Tensor = model.generate(
        **prompt,
        **(said or {"use_cache": True}),
        do_sample=False,
        min_new_tokens=6,
        max_new_tokens=6,
        stopping_criteria=transformers.StoppingCriteriaList([During()]),
    )
    return tokens


def _in_threads(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    made: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: made.append(make())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(made) != len(threads) or not torch.equal(made[0], made[1]):
        raise Wrong("two threads that call generate() got different tokens")
    return made[0]


# --- image features written into the embeddings ---------------------------------------------------


def leaf(cell: Cell, folder: Path) -> Gradients:
    """A template in ms-swift's manner: it looks the embeddings up and writes into them."""
    model = loading.prepare(cell, folder)
    return one_step(cell, folder, model, engines.ENGINES[cell.engine](cell, model), _write_features)


def leaf_own_hook(cell: Cell, folder: Path) -> Gradients:
    """The same with the hook that LLaVA's scripts bring along, from before transformers had one."""
    model = loading.prepare(dataclasses.replace(cell, input_grads=False), folder)

    def make_inputs_require_grad(module: Any, input: Any, output: Any) -> None:
        output.requires_grad_(True)

    model.get_input_embeddings().register_forward_hook(make_inputs_require_grad)
    return one_step(cell, folder, model, engines.ENGINES[cell.engine](cell, model), _write_features)


def _write_features(model: Any, batch: Batch) -> Batch:
    embeddings = model.get_input_embeddings()(batch["input_ids"])
    width = embeddings.shape[-1]
    places = torch.tensor([[1], [2]]).repeat(1, width)
    features = torch.arange(2 * width, dtype=embeddings.dtype).reshape(2, width) / (2 * width)
    embeddings[0].scatter_(0, places, features)  # MiniCPM-V's way: into a view
    embeddings += 0.01
    kept = {name: batch[name] for name in ("attention_mask", "labels")}
    return {"inputs_embeds": embeddings, **kept}


def asked_device(cell: Cell, folder: Path) -> Gradients:
    """A forward of the script's own that asks the tower where it lies, as 2U1's for a batch of text.

    Every rank asks here, and so none waits; that a weight was gathered for the answer is what goes wrong.
    """
    model = loading.prepare(cell, folder)
    base = next(module for module in model.modules() if isinstance(module, transformers.PreTrainedModel))

    def ask(module: Any, *given: Any) -> None:
        tower = next(part for part in module.modules() if hasattr(part, "get_device"))
        weights = dict(tower.blocks[0].mlp.fc2.named_parameters()).values()
        before = [weight.numel() for weight in weights]
        if (tower.get_device().type, tower.get_dtype()) != ("cpu", torch.float32):
            raise Wrong("the tower says something else of itself")
        if before != [weight.numel() for weight in weights]:
            raise Wrong("a weight was gathered to say where it lies")

    base.register_forward_pre_hook(ask)
    return one_step(cell, folder, model, engines.ENGINES[cell.engine](cell, model))


# --- checkpointing that transformers knows nothing of ---------------------------------------------


def wrapped(cell: Cell, folder: Path) -> Gradients:
    """torch's ``checkpoint_wrapper`` on the decoder layers, as FSDP's activation checkpointing puts it."""
    parts = importlib.import_module("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")
    kind = parts.CheckpointImpl.REENTRANT if _reentrant(cell) else parts.CheckpointImpl.NO_REENTRANT

    def wrap(layer: Any) -> Any:
        return parts.checkpoint_wrapper(layer, checkpoint_impl=kind)

    return _checkpointed(cell, folder, wrap)


def own_calls(cell: Cell, folder: Path) -> Gradients:
    """A decoder layer that calls torch's ``checkpoint`` itself, as remote code does."""

    def wrap(layer: Any) -> Any:
        forward = layer.forward

        def checkpointed(*args: Any, **kwargs: Any) -> Any:
            function = functools.partial(forward, **kwargs)
            return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=_reentrant(cell))

        layer.forward = checkpointed
        return layer

    return _checkpointed(cell, folder, wrap)


def _reentrant(cell: Cell) -> bool:
    return cell.checkpointing == "reentrant"


def _checkpointed(cell: Cell, folder: Path, wrap: Callable[[Any], Any]) -> Gradients:
    model = loading.prepare(dataclasses.replace(cell, checkpointing="off"), folder)
    for config in (model.config, getattr(model.config, "text_config", model.config)):
        config.use_cache = True  # nobody said otherwise
    for name, holder in list(model.named_modules()):
        if name.endswith("layers") and not any(tower in name for tower in ("visual", "vision")):
            for number, layer in enumerate(holder):
                holder[number] = wrap(layer)
    engine = engines.ENGINES[cell.engine](cell, model)
    batches = samples.make_batches(cell, folder, dist.get_rank())
    engine.backward(torch.stack([engine.forward(batch) for batch in batches]).sum())
    inner = "_checkpoint_wrapped_module."
    found = {name.replace(inner, ""): g for name, g in recording.gradients(engine, model).items()}
    check(found, plain(cell, folder))
    return found


@dataclasses.dataclass
class _Answer:
    loss: torch.Tensor


def own_answer(cell: Cell, folder: Path) -> Gradients:
    """A model that answers with an object of a class of its own, as research code does."""
    model = loading.prepare(cell, folder)
    base: Any = type(model)

    def forward(self: Any, **batch: Any) -> _Answer:
        return _Answer(base.forward(self, **batch).loss)

    model.__class__ = type(base.__name__, (base,), {"forward": forward})
    return one_step(cell, folder, model, engines.ENGINES[cell.engine](cell, model))


def keyword_blocks(cell: Cell, folder: Path) -> Gradients:
    """A tower whose blocks are called by keyword, as Llama 4's are."""
    model = loading.prepare(cell, folder)
    for module in model.modules():
        if type(module).__name__.endswith("EncoderLayer"):
            module.__class__ = _called_by_keyword(type(module))
    return one_step(cell, folder, model, engines.ENGINES[cell.engine](cell, model))


def _called_by_keyword(base: Any) -> Any:
    def __call__(self: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        named = dict(zip(("attention_mask", "causal_attention_mask"), args, strict=False))
        return base.__call__(self, hidden_states=hidden_states, **named, **kwargs)

    return type(base.__name__, (base,), {"__call__": __call__})


def routers_loss(cell: Cell, folder: Path) -> Gradients:
    """The routers' loss beside that of the texts, as LLaMA-Factory's ``moe_aux_loss_coef`` asks for it."""
    model = _with_routers_loss(cell, folder)
    return one_step(cell, folder, model, engines.ENGINES[cell.engine](cell, model), make=_with_routers_loss)


def _with_routers_loss(cell: Cell, folder: Path) -> Any:
    model = loading.prepare(cell, folder)
    model.config.output_router_logits = True
    getattr(model, "get_base_model", lambda: model)().router_aux_loss_coef = 0.5
    for module in model.modules():
        if hasattr(module, "top_k"):  # a token sees every expert: none is left out, which is another failure
            module.top_k = 8
    return model


def sharded_base(cell: Cell, folder: Path) -> Gradients:
    """A base model sharded by itself, as accelerate shards an AutoModel; its loss is one of hidden states."""
    own = samples.make_batches(cell, folder, dist.get_rank())
    model = loading.prepare(cell, folder).model
    sharded = copy.deepcopy(model)
    engine = engines.ENGINES[cell.engine](cell, sharded)
    for rank in range(WORLD):
        for batch in samples.make_batches(cell, folder, rank):
            (_of_a_layer(model, batch) / WORLD).backward()
    right = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    engine.backward(torch.stack([_of_a_layer(sharded, batch) for batch in own]).sum())
    found = recording.gradients(engine, sharded)
    check(found, right)
    return found


def _of_a_layer(model: Any, batch: Batch) -> torch.Tensor:
    outputs = model(input_ids=batch["input_ids"], output_hidden_states=True, use_cache=False)
    loss: torch.Tensor = outputs.hidden_states[1].pow(2).mean() + outputs.last_hidden_state[..., 0].mean()
    return loss


def own_reentrant(cell: Cell, folder: Path) -> Gradients:
    """Remote code that says ``use_reentrant=True`` itself, whatever it was told."""
    model = loading.prepare(cell, folder)
    for module in model.modules():
        if type(module).__name__ == "Encoder":
            module.forward = functools.partial(_reentrantly, module)
    return one_step(cell, folder, model, engines.ENGINES[cell.engine](cell, model))


def _reentrantly(encoder: Any, hidden: torch.Tensor) -> torch.Tensor:
    for layer in encoder.layers:
        hidden = torch.utils.checkpoint.checkpoint(layer, hidden, use_reentrant=True)
    return hidden


def attention_chosen(cell: Cell, folder: Path) -> Gradients:
    """The script says which attention SDPA takes, around the forward alone."""
    attention = importlib.import_module("torch.nn.attention")
    model = loading.prepare(cell, folder)
    engine = engines.ENGINES[cell.engine](cell, model)
    batches = samples.make_batches(cell, folder, dist.get_rank())
    with attention.sdpa_kernel(attention.SDPBackend.MATH):
        losses = [engine.forward(batch) for batch in batches]
    engine.backward(torch.stack(losses).sum())
    found = recording.gradients(engine, model)
    check(found, plain(cell, folder))
    return found


def ends_in_script(cell: Cell, folder: Path) -> Gradients:
    """Blocks whose last linear layer is inside of a scripted function, as fused ones are."""

    last = torch.jit.script(_linear)

    def linear(mlp: Any, hidden: torch.Tensor) -> Any:
        inner = mlp.act_fn(mlp.gate_proj(hidden)) * mlp.up_proj(hidden)
        return last(inner, mlp.down_proj.weight)

    return _scripted(cell, folder, linear)


def scripted_activation(cell: Cell, folder: Path) -> Gradients:
    """Blocks that call a scripted function, new to TorchScript, for what two linear layers make."""
    activation = torch.jit.script(_gated)

    def mlp(mlp: Any, hidden: torch.Tensor) -> Any:
        return mlp.down_proj(activation(mlp.gate_proj(hidden), mlp.up_proj(hidden)))

    return _scripted(cell, folder, mlp)


def _scripted(cell: Cell, folder: Path, forward: Callable[[Any, torch.Tensor], Any]) -> Gradients:
    def make(cell: Cell, folder: Path) -> Any:
        model = loading.prepare(cell, folder)
        for module in model.modules():
            if hasattr(module, "down_proj"):
                module.forward = functools.partial(forward, module)
        return model

    model = make(cell, folder)
    engine = engines.ENGINES[cell.engine](cell, model)
    batches = samples.make_batches(cell, folder, dist.get_rank())
    engine.backward(torch.stack([engine.forward(batch) for batch in batches]).sum())
    found = recording.gradients(engine, model)
    check(found, plain(cell, folder, make=make))
    return found


def _linear(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(hidden, weight)


def _gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    shifted = gate + 1.0
    return torch.nn.functional.gelu(shifted) * torch.sigmoid(shifted) * up


def failed_and_kept(cell: Cell, folder: Path) -> Gradients:
    """A forward that raises inside of a block, its exception kept, as a notebook does; then a step."""
    model = loading.prepare(cell, folder)
    engine = engines.ENGINES[cell.engine](cell, model)
    last = [module for module in model.modules() if hasattr(module, "down_proj")][-1]
    kept = []
    handle = last.register_forward_pre_hook(_raises)
    try:
        engine.forward(samples.make_batches(cell, folder, dist.get_rank())[0])
    except InterruptedError as error:
        kept.append(error)
    handle.remove()
    found = one_step(cell, folder, model, engine)
    if not kept:
        raise Wrong("nothing was raised")
    return found


def _raises(module: Any, inputs: Any) -> None:
    raise InterruptedError("in a block")


def causal_task(cell: Cell, folder: Path) -> Gradients:
    """LoRA with a ``task_type``, as ms-swift and LLaMA-Factory say it, on a model with code of its own."""
    model = loading.add_lora(loading.load(cell, folder), vision=True, task="CAUSAL_LM")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return one_step(cell, folder, model, engines.ENGINES[cell.engine](cell, model))


# --- rows packed into one ------------------------------------------------------------------------


def packed(cell: Cell, folder: Path) -> Gradients:
    """Rows behind one another, told apart by positions that begin again; nothing is said of a cache."""
    return _told_apart(cell, lambda: _llama().train(), 0)


def packed_texts(cell: Cell, folder: Path) -> Gradients:
    """The same of a model that has positions along three axes, its tower frozen."""

    def make() -> Any:
        model = loading.load(cell, folder)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("visual" not in name and "vision" not in name)
        return model

    return _told_apart(cell, make, BEHIND_SPECIAL)


def packed_linear(cell: Cell, folder: Path) -> Gradients:
    """The same of Qwen3.5, most of whose layers are of linear attention."""
    return _told_apart(cell, _qwen3_5, BEHIND_SPECIAL)


def packed_linear_next(cell: Cell, folder: Path) -> Gradients:
    """The same of Qwen3-Next, whose layers hold their convolution themselves before transformers 5.16."""
    return _told_apart(cell, _qwen3_next, BEHIND_SPECIAL)


def packed_linear_said(cell: Cell, folder: Path) -> Gradients:
    """Boundaries are said too, as newer TRL does; the packages whose kernels take them are not there."""
    return _told_apart(cell, _qwen3_5, BEHIND_SPECIAL, _boundaries)


def packed_linear_masked(cell: Cell, folder: Path) -> Gradients:
    """A mask of every query and key tells the texts apart, as of LLaMA-Factory's ``neat_packing``."""
    return _told_apart(cell, _qwen3_5, BEHIND_SPECIAL, _masked)


def packed_linear_next_masked(cell: Cell, folder: Path) -> Gradients:
    """The same of Qwen3-Next."""
    return _told_apart(cell, _qwen3_next, BEHIND_SPECIAL, _masked)


def packed_convolved(cell: Cell, folder: Path) -> Gradients:
    """The same of LFM3, some of whose layers are short convolutions."""
    return _told_apart(cell, _lfm3, BEHIND_SPECIAL)


def flash_along_axes(cell: Cell, folder: Path) -> Gradients:
    """One row a rank by flash attention, whose kernels have stand-ins, held against SDPA."""
    make = functools.partial(_attending, cell, folder)
    first = [_rows(cell, rank)[0][0] + BEHIND_SPECIAL for rank in range(WORLD)]
    with flash.stood_in():
        model = make("flash_attention_2")
        engine = engines.ENGINES[cell.engine](cell, model)
        row = first[dist.get_rank()]
        engine.backward(engine.forward({"input_ids": row, "labels": row}))
        found = recording.gradients(engine, model)
    right = make("sdpa")
    for row in first:
        (right(input_ids=row, labels=row, use_cache=False).loss / WORLD).backward()
    check(found, {name: p.grad for name, p in right.named_parameters() if p.grad is not None})
    return found


def flash_packed(cell: Cell, folder: Path) -> Gradients:
    """Packed rows by flash attention, held against each row by SDPA."""
    kinds = iter(("flash_attention_2", "sdpa"))
    with flash.stood_in():
        return _told_apart(cell, lambda: _attending(cell, folder, next(kinds)), BEHIND_SPECIAL)


def _attending(cell: Cell, folder: Path, attention: str) -> Any:
    model = loading.load(cell, folder)
    flash.use(model, attention)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("visual" not in name and "vision" not in name)
    return model


def neat_packing(cell: Cell, folder: Path) -> Gradients:
    """LLaMA-Factory packs texts without an image, held against its batches of each by itself."""
    trainers = importlib.import_module("tests.lab.trainers")
    found = list[Gradients]()
    with (
        tempfile.TemporaryDirectory(prefix="texts-") as name,
        mock.patch.object(dist, "destroy_process_group"),  # the second is trained by the same ranks
    ):
        home = Path(name)
        told = {"dataset_dir": str(_texts(home)), "cutoff_len": 1024}
        told |= {"finetuning_type": "full", "freeze_vision_tower": True}
        for packed, steps in ((True, 1), (False, TEXTS // WORLD)):
            recorded = trainers.record(home / f"{steps}.pt")
            batches = {"packing": packed, "neat_packing": packed, "gradient_accumulation_steps": steps}
            trainers.llamafactory(cell, folder, home / "output", **told, **batches)
            found.append(torch.load(recorded[0]))
    check(found[0], found[1])
    return found[0]


def _texts(home: Path) -> Path:
    """Rows in LLaMA-Factory's words; each teaches as many tokens as any other."""
    asked = ("hello world", "a cat", "describe the user", "you are a helpful assistant")
    rows = [
        {"role": role, "content": content}
        for number in range(TEXTS)
        for role, content in (("user", asked[number % len(asked)]), ("assistant", "a cat hello "))
    ]
    lines = [json.dumps({"messages": rows[begin : begin + 2]}) for begin in range(0, len(rows), 2)]
    (home / "sft.jsonl").write_text("\n".join(lines))
    words = {**SHAREGPT, "columns": {"messages": "messages"}}
    (home / "dataset_info.json").write_text(json.dumps({"sft": {"file_name": "sft.jsonl", **words}}))
    return home


def _told_apart(
    cell: Cell,
    make: Callable[[], Any],
    first: int,
    said: Callable[[list[torch.Tensor]], Batch] = lambda _: {},
) -> Gradients:
    """Packed rows of token ids from ``first`` on, held against each row by itself.

    ``said`` makes what is said of packed rows besides their positions.
    """
    model = make()
    engine = engines.ENGINES[cell.engine](cell, model)
    packs = [[row + first for row in rows] for rows in _rows(cell, dist.get_rank())]
    losses = [engine.forward(_packed(rows) | said(rows)) for rows in packs]
    engine.backward(torch.stack(losses).sum())
    found = recording.gradients(engine, model)
    right = make()
    for rows in (rows for rank in range(WORLD) for rows in _rows(cell, rank)):
        learned = sum(row.shape[1] - 1 for row in rows)
        for row in (row + first for row in rows):
            share = (row.shape[1] - 1) / learned / WORLD
            (right(input_ids=row, labels=row, use_cache=False).loss * share).backward()
    check(found, {name: p.grad for name, p in right.named_parameters() if p.grad is not None})
    return found


def _rows(cell: Cell, rank: int) -> list[list[torch.Tensor]]:
    """Rows of token ids, each of shape [1, length], as they are packed for each forward of a rank."""
    chance = torch.Generator().manual_seed(rank)
    lengths = [(7, 9, 5), (4, 11, 6, 3)]
    return [
        [torch.randint(5, 60, (1, length), generator=chance) for length in lengths[(rank + forward) % 2]]
        for forward in range(cell.forwards)
    ]


def _packed(rows: list[torch.Tensor]) -> Batch:
    labels = [torch.cat([torch.full((1, 1), samples.IGNORED), row[:, 1:]], dim=1) for row in rows]
    positions = [torch.arange(row.shape[1])[None] for row in rows]
    parts = {"input_ids": rows, "labels": labels, "position_ids": positions}
    return {name: torch.cat(each, dim=1) for name, each in parts.items()}


def _boundaries(rows: list[torch.Tensor]) -> Batch:
    lengths = torch.tensor([row.shape[1] for row in rows])
    ends = torch.cat([torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).int()])
    longest = {f"max_length_{side}": int(lengths.max()) for side in "qk"}
    owner = torch.repeat_interleave(torch.arange(len(rows)), lengths).int()[None]
    return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "seq_idx": owner, **longest}


def _masked(rows: list[torch.Tensor]) -> Batch:
    """What LLaMA-Factory's collator makes of them."""
    seen = torch.block_diag(*(torch.ones(row.shape[1], row.shape[1]).tril() for row in rows))
    return {"attention_mask": torch.where(seen > 0, 0.0, torch.finfo(seen.dtype).min)[None, None]}


# --- layers that share keys and values -----------------------------------------------------------


def shared_layers(cell: Cell, folder: Path) -> Gradients:
    """Gemma 3n's language model, whose last layers share keys and values."""
    return _as_evaluated(cell, _gemma3n, use_cache=True)


def recurrent(cell: Cell, folder: Path) -> Gradients:
    """RecurrentGemma, which keeps on the module what a forward ended with, and has a cache of its own."""
    return _as_evaluated(cell, _recurrent_gemma, use_cache=False)


def umt5(cell: Cell, folder: Path) -> Gradients:
    """UMT5, whose stacks checkpoint their blocks."""
    return _as_evaluated(cell, _umt5)


def _as_evaluated(cell: Cell, make: Callable[[], Any], **told: bool) -> Gradients:
    """One step of what is made; right is what a new one evaluates, ``told`` so, row by row."""
    model = make().train()
    if cell.checkpointing != "off":
        said = () if cell.checkpointing == "default" else ({"use_reentrant": _reentrant(cell)},)
        model.gradient_checkpointing_enable(*said)
    engine = engines.ENGINES[cell.engine](cell, model)
    losses = [engine.forward(_labelled(row)) for row in _each(cell, dist.get_rank())]
    engine.backward(torch.stack(losses).sum())
    found = recording.gradients(engine, model)
    learned: Gradients = {}
    for row in (row for rank in range(WORLD) for row in _each(cell, rank)):
        right = make().eval()
        (right(**_labelled(row), **told).loss / WORLD).backward()
        for name, parameter in right.named_parameters():
            if parameter.grad is not None:
                learned[name] = learned.get(name, 0) + parameter.grad
    unused = [name for name, gradient in found.items() if name not in learned and gradient.any()]
    if unused:
        raise Wrong(f"{len(unused)} parameters learn that evaluation never uses, {unused[0]} among them")
    check(found, learned)
    return found


def _gemma3n() -> Any:
    transformers.set_seed(3)
    more = {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 6,
        "head_dim": 16,
        "laurel_rank": 4,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": TEXT["vocab_size"],
        "activation_sparsity_pattern": [0.0] * 4,
    }
    config = transformers.Gemma3nTextConfig(**{**TEXT, **more, "tie_word_embeddings": True})
    return transformers.Gemma3nForCausalLM(config)


def _recurrent_gemma() -> Any:
    transformers.set_seed(3)
    kinds = {"block_types": ("recurrent", "attention"), "attention_window_size": 32, "lru_width": 64}
    more = {"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, **kinds}
    config = transformers.RecurrentGemmaConfig(**{**TEXT, **more})
    return transformers.RecurrentGemmaForCausalLM(config)


def _umt5() -> Any:
    transformers.set_seed(3)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
    more = {"decoder_start_token_id": 0, "relative_attention_num_buckets": 4}
    config = transformers.UMT5Config(vocab_size=TEXT["vocab_size"], **sizes, **more)
    return transformers.UMT5ForConditionalGeneration(config)


def _each(cell: Cell, rank: int) -> list[torch.Tensor]:
    return [torch.cat(rows, dim=1) for rows in _rows(cell, rank)]


def _labelled(row: torch.Tensor) -> Batch:
    return {"input_ids": row, "labels": row}


# --- a frozen tower -------------------------------------------------------------------------------


def frozen_tower(cell: Cell, folder: Path) -> Gradients:
    """The vision tower is frozen, and its checkpointing switched off for that; nothing of it is kept."""
    model = loading.prepare(cell, folder)
    tower = getattr(model, "visual", None) or model.model.visual
    tower.requires_grad_(False)
    for module in tower.modules():
        if hasattr(module, "gradient_checkpointing"):
            module.gradient_checkpointing = False
    model.enable_input_require_grads()  # once more: frameworks call it too
    engine = engines.ENGINES[cell.engine](cell, model)
    kept = _kept_by(tower)
    found = one_step(cell, folder, model, engine, trained=lambda name: "visual" not in name)
    if kept:
        raise Wrong(f"the frozen tower keeps {sum(kept.values())} bytes for a backward")
    return found


def _kept_by(tower: Any) -> dict[int, int]:
    """The bytes that autograd keeps of the tower's forwards from now on, by where they lie; no weights."""
    kept: dict[int, int] = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in tower.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    tower.register_forward_pre_hook(lambda *_: hooks.__enter__())
    tower.register_forward_hook(lambda *_: hooks.__exit__())
    return kept


# --- accumulated losses ---------------------------------------------------------------------------


def accumulate(cell: Cell, folder: Path) -> Gradients:
    """HF Trainer with as many accumulated batches as the cell has forwards."""
    return _accumulated(cell, folder, _whole_model(folder), counted=False)


def accumulate_text(cell: Cell, folder: Path) -> Gradients:
    """The same with a language model alone, which divides its loss by the tokens of all batches."""
    return _accumulated(cell, folder, _llama, counted=True)


def accumulate_ignored(cell: Cell, folder: Path) -> Gradients:
    """The same with a trainer whose ``compute_loss`` is from before there was a count."""

    class Old(transformers.Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            kwargs.clear()
            outputs = model(**inputs)
            return (outputs.loss, outputs) if return_outputs else outputs.loss

    return _accumulated(cell, folder, _whole_model(folder), counted=False, base=Old)


def accumulate_loop(cell: Cell, folder: Path) -> Gradients:
    """A loop of one's own, by ``accelerator.accumulate`` under DeepSpeed; SGD's step says the gradient."""
    from accelerate import Accelerator, DeepSpeedPlugin

    plugin = DeepSpeedPlugin(zero_stage=int(cell.engine[-1]), gradient_accumulation_steps=cell.forwards)
    plugin.deepspeed_config |= {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.0}
    made = loading.prepare(cell, folder)
    before = {name: p.detach().clone() for name, p in made.named_parameters() if p.requires_grad}
    accelerator = Accelerator(gradient_accumulation_steps=cell.forwards, deepspeed_plugin=plugin)
    model, optimizer = accelerator.prepare(made, torch.optim.SGD(made.parameters(), lr=RATE))
    for batch in samples.make_batches(cell, folder, dist.get_rank()):
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
    right = plain(cell, folder)
    after = dict(made.named_parameters())
    found = {name: (before[name] - after[name].detach()) / RATE for name in right}
    check(found, {name: gradient / cell.forwards for name, gradient in right.items()})
    return found


def old_script(cell: Cell, folder: Path) -> Gradients:
    """A script of 2024: ``compute_loss`` takes no count, the trainer is built with ``tokenizer=``."""

    class Old(transformers.Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
            outputs = model(**inputs)
            return (outputs.loss, outputs) if return_outputs else outputs.loss

    named = {"tokenizer": transformers.AutoTokenizer.from_pretrained(folder)}
    return _accumulated(cell, folder, _whole_model(folder), counted=False, base=Old, named=named)


def rehearsed(cell: Cell, folder: Path) -> Gradients:
    """Beside each image a text, and one backward for both."""
    model = loading.prepare(cell, folder)
    engine = engines.ENGINES[cell.engine](cell, model)
    (batch,) = samples.make_batches(cell, folder, dist.get_rank())
    engine.backward(engine.forward(batch) + engine.forward(samples.without_image(batch)))
    found = recording.gradients(engine, model)
    measure = loading.prepare(dataclasses.replace(cell, checkpointing="off"), folder)
    for rank in range(WORLD):
        (batch,) = samples.make_batches(cell, folder, rank)
        (with_its_text(measure, batch) / WORLD).backward()
    check(found, {name: p.grad for name, p in measure.named_parameters() if p.grad is not None})
    return found


def rehearsed_by_trainer(cell: Cell, folder: Path) -> Gradients:
    """The same by HF Trainer."""

    class Rehearsing(transformers.Trainer):  # type: ignore[misc]
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            return with_its_text(model, inputs)

    whole = _whole_model(folder)
    return _accumulated(cell, folder, whole, counted=False, base=Rehearsing, loss=with_its_text)


def trained_again(cell: Cell, folder: Path) -> Gradients:
    """HF Trainer that trains twice, at a rate of zero, which ``cell`` has to name, too."""
    trainers = importlib.import_module("tests.lab.trainers")
    row, right = whole_sequences.row(), whole_sequences.right(_llama())
    found: Gradients
    with tempfile.TemporaryDirectory(prefix="again-") as place:
        said = {**trainers.arguments(cell, Path(place)), "learning_rate": 0.0}
        settings = transformers.TrainingArguments(**said, remove_unused_columns=False)
        data = [row] * WORLD
        trainer = transformers.Trainer(_llama(), settings, data_collator=lambda r: r[0], train_dataset=data)
        with trainers.summed() as found:
            trainer.train()
            trainer.train()
    check(found, {name: 2 * gradient for name, gradient in right.items()})
    return found


def short_window(cell: Cell, folder: Path) -> Gradients:
    """HF Trainer, a window of two micro-batches and one of one; ``cell`` names its rate of zero, too."""
    trainers = importlib.import_module("tests.lab.trainers")
    row, right = whole_sequences.row(), whole_sequences.right(_llama())
    found: Gradients
    with tempfile.TemporaryDirectory(prefix="short-") as place:
        windows = {"gradient_accumulation_steps": 2, "max_steps": 2}
        said = {**trainers.arguments(cell, Path(place)), **windows, "learning_rate": 0.0}
        said["deepspeed"] |= {"gradient_accumulation_steps": 2}
        settings = transformers.TrainingArguments(**said, remove_unused_columns=False)
        data = [row] * 3 * WORLD
        trainer = transformers.Trainer(_llama(), settings, data_collator=lambda r: r[0], train_dataset=data)
        with trainers.summed() as found:
            trainer.train()
    check(found, {name: 2 * gradient for name, gradient in right.items()})
    return found


def short_window_loop(cell: Cell, folder: Path) -> Gradients:
    """The same by ``accelerator.accumulate`` in a loop of one's own: every micro-batch counts a half."""
    from accelerate import Accelerator, DeepSpeedPlugin

    trainers = importlib.import_module("tests.lab.trainers")
    plugin = DeepSpeedPlugin(zero_stage=int(cell.engine[-1]), gradient_accumulation_steps=2)
    plugin.deepspeed_config |= {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.0}
    accelerator = Accelerator(gradient_accumulation_steps=2, deepspeed_plugin=plugin)
    made, right = _llama(), whole_sequences.right(_llama())
    rows: Any = [whole_sequences.row()] * 3 * WORLD
    data = torch.utils.data.DataLoader(rows, collate_fn=lambda rows: rows[0])
    model, optimizer, data = accelerator.prepare(made, torch.optim.SGD(made.parameters(), lr=0.0), data)
    found: Gradients
    with trainers.summed() as found:
        for row in data:
            with accelerator.accumulate(model):
                accelerator.backward(model(**row).loss)
                optimizer.step()
                optimizer.zero_grad()
    check(found, {name: 1.5 * gradient for name, gradient in right.items()})
    return found


def streamed_window(cell: Cell, folder: Path) -> Gradients:
    """HF Trainer over a stream of ten rows, a window of two micro-batches: the third has one of each rank."""
    said = {"gradient_accumulation_steps": 2, "max_steps": 6}
    return _trained_rows(cell, 10, True, [4, 4, 2], said)


def streamed_below_a_window(cell: Cell, folder: Path) -> Gradients:
    """The same where a pass over the data is shorter than one window."""
    each = {"dispatch_batches": False}  # a stream that has dried up cannot be handed out
    said = {"gradient_accumulation_steps": 4, "max_steps": 3, "accelerator_config": each}
    return _trained_rows(cell, 6, True, [6], said)


def counted_window(cell: Cell, folder: Path) -> Gradients:
    """HF Trainer over two epochs of sixteen rows: eight micro-batches, three a window."""
    said = {"gradient_accumulation_steps": 3, "max_steps": -1, "num_train_epochs": 2}
    return _trained_rows(cell, 16, False, [6, 6, 4], said)


def rounded_epochs(cell: Cell, folder: Path) -> Gradients:
    """The same over ten rows in windows of two, whose number of rows is even: an epoch has three steps."""
    said = {"gradient_accumulation_steps": 2, "max_steps": -1, "num_train_epochs": 2}
    return _trained_rows(cell, 10, False, [4, 4, 2], said)


def resumed_epoch(cell: Cell, folder: Path) -> Gradients:
    """HF Trainer over three epochs of twelve rows, stopped and resumed within the second."""
    said = {"max_steps": -1, "num_train_epochs": 3, "per_device_train_batch_size": 2}
    return _trained_rows(cell, 12, False, [4, 4, 4], said, stopped=4)


def resumed_stream(cell: Cell, folder: Path) -> Gradients:
    """HF Trainer over three passes of a stream of twelve rows, stopped and resumed within the second."""
    said = {"max_steps": 9, "per_device_train_batch_size": 2}
    return _trained_rows(cell, 12, True, [4, 4, 4], said, stopped=4)


def resumed_dispatch(cell: Cell, folder: Path) -> Gradients:
    """HF Trainer over two epochs of twelve rows that one rank hands out, resumed within the second."""
    said: dict[str, Any] = {"max_steps": -1, "num_train_epochs": 2, "per_device_train_batch_size": 2}
    said |= {"accelerator_config": {"dispatch_batches": True}}
    return _trained_rows(cell, 12, False, [4, 4, 4], said, stopped=4)


def resumed_groups(cell: Cell, folder: Path) -> Gradients:
    """HF Trainer over three epochs of rows grouped by length, resumed within the second."""
    named = importlib.import_module("tests.lab.rows").grouped()
    said = {"max_steps": -1, "num_train_epochs": 3, "per_device_train_batch_size": 2, **named}
    return _trained_rows(cell, 12, False, [4, 4, 4], said, stopped=4)


def resumed_unseeded(cell: Cell, folder: Path) -> Gradients:
    """The same with torch's own random sampler."""
    said: dict[str, Any] = {"max_steps": -1, "num_train_epochs": 3, "per_device_train_batch_size": 2}
    said |= {"accelerator_config": {"use_seedable_sampler": False}}
    return _trained_rows(cell, 12, False, [4, 4, 4], said, stopped=4)


def resumed_rebalanced(cell: Cell, folder: Path) -> Gradients:
    """The same with batches of even cost, which ranks make out by themselves."""
    said: dict[str, Any] = {"max_steps": -1, "num_train_epochs": 3, "per_device_train_batch_size": 2}
    said |= {"train_sampling_strategy": "batch_rebalance"}
    return _trained_rows(cell, 12, False, [4, 4, 4], said, stopped=4)


def _trained_rows(
    cell: Cell, count: int, streamed: bool, sizes: list[int], said: dict[str, Any], stopped: int = 0
) -> Gradients:
    """Which rows every step is made of; those of one pass are each trained once."""
    trainers, rows = (importlib.import_module(f"tests.lab.{name}") for name in ("trainers", "rows"))
    told = {**trainers.arguments(cell, Path()), **said}
    if "deepspeed" in told:
        told["deepspeed"] |= {"gradient_accumulation_steps": said.get("gradient_accumulation_steps", 1)}
    found = rows.trained(count, streamed, told, stopped)
    if not_so := rows.wrong(found, count, sizes):
        raise Wrong(not_so)
    return {f"step {number}": torch.tensor(sorted(step.values())) for number, step in enumerate(found)}


def swift_texts(cell: Cell, folder: Path) -> Gradients:
    """ms-swift, texts before rows with an image: streamed as when they are asked for one by one."""
    trainers = importlib.import_module("tests.lab.trainers")
    trainers.know_the_image(folder)
    rows, found = trainers.rows(folder, "sft"), list[Gradients]()
    for row in rows[:WORLD]:
        row["messages"][0]["content"] = row["messages"][0]["content"].removeprefix("<image>")
        row["images"] = []
    with tempfile.TemporaryDirectory(prefix="texts-") as name:
        place = Path(name)
        (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        told = {
            "dataset": str(place / "rows.jsonl"),
            "dataset_shuffle": False,
            "train_dataloader_shuffle": False,
            "dataloader_num_workers": 0,
        }
        for streaming in (False, True):
            recorded = trainers.record(place / f"{streaming}.pt")
            trainers.swift(cell, folder, place / str(streaming), streaming=streaming, **told)
            importlib.import_module("accelerate.state").AcceleratorState._reset_state()
            found.append(torch.load(recorded[0]))
    check(found[1], found[0])
    return found[1]


def swift_smoothed(cell: Cell, folder: Path) -> Gradients:
    """ms-swift that smooths labels, over accumulated batches: as over all the tokens that these teach."""
    trainers = importlib.import_module("tests.lab.trainers")
    trainers.know_the_image(folder)
    own, step = list[Batch](), transformers.Trainer.training_step

    def noting(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        own.append({name: inputs[name].clone() for name in SHOWN if inputs.get(name) is not None})
        return step(self, model, inputs, *args, **kwargs)

    transformers.Trainer.training_step = noting
    told = {"gradient_accumulation_steps": cell.forwards, "max_steps": 1, "freeze_aligner": False}
    told["average_tokens_across_devices"] = True
    with tempfile.TemporaryDirectory(prefix="smoothed-") as name:
        recorded = trainers.record(Path(name) / "gradients.pt")
        trainers.swift(cell, folder, Path(name) / "output", **told, **SMOOTHED)
        found: Gradients = torch.load(recorded[0])
    every: list[Any] = [None] * WORLD
    dist.all_gather_object(every, own)
    batches = [batch for seen in every for batch in seen]
    labels = [batch.pop("labels")[:, 1:].flatten() for batch in batches]
    tokens = sum(int((each != samples.IGNORED).sum()) for each in labels)
    model = _whole_model(folder)(dataclasses.replace(cell, checkpointing="off")).train()
    for batch, each in zip(batches, labels, strict=True):
        logits = model(**batch).logits[:, :-1].flatten(0, 1)
        (_entropy(logits, each, "sum") / tokens).backward()
    check(found, {name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    return found


SHOWN = ("input_ids", "attention_mask", "labels", "pixel_values", "image_grid_thw", "mm_token_type_ids")


def swift_spread(cell: Cell, folder: Path, **more: Any) -> Gradients:
    """ms-swift, a row on two ranks: learns what two rows on a rank each teach, and is evaluated alike."""
    trainers = importlib.import_module("tests.lab.trainers")
    trainers.know_the_image(folder)
    rows, gradients, losses = trainers.rows(folder, "sft"), list[Gradients](), list[float]()
    for row in rows:
        row["messages"][1]["content"] = "a cat " * 24  # which reaches over both ranks
    trainers.call(lambda: Evaluated(losses))
    with tempfile.TemporaryDirectory(prefix="spread-") as name:
        place = Path(name)
        data = place / "rows.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        told = {
            **{"dataset": str(data), "val_dataset": str(data), "attn_impl": "sdpa", "max_steps": 1},
            **{"dataset_shuffle": False, "train_dataloader_shuffle": False, "dataloader_num_workers": 0},
            **{"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 1},
        }
        for ranks in (1, WORLD):
            recorded = trainers.record(place / f"{ranks}.pt")
            spread = {"sequence_parallel_size": ranks, "gradient_accumulation_steps": ranks}
            trainers.swift(cell, folder, place / str(ranks), **told, **spread, **more)
            importlib.import_module("accelerate.state").AcceleratorState._reset_state()
            gradients.append(torch.load(recorded[0]))
    check(gradients[1], gradients[0])
    check_evaluated(losses)
    return gradients[1]


class Evaluated(transformers.TrainerCallback):  # type: ignore[misc]
    """Notes what each evaluation comes to."""

    def __init__(self, losses: list[float]) -> None:
        self.losses = losses

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.losses.append(kwargs["metrics"]["eval_loss"])


def check_evaluated(losses: list[float]) -> None:
    """The second of two is as the first, which is right."""
    right, found = losses
    if not abs(found - right) <= TOLERANCE * right:
        raise Wrong(f"evaluated to {found:.4f}, not {right:.4f}")


def swift_pairs(cell: Cell, folder: Path) -> Gradients:
    """ms-swift that trains embeddings of pairs over accumulated batches: as in one batch of all of them."""
    trainers = importlib.import_module("tests.lab.trainers")
    trainers.know_the_image(folder)
    found, losses = list[Gradients](), list[float]()
    trainers.call(lambda: Evaluated(losses))
    with tempfile.TemporaryDirectory(prefix="pairs-") as name:
        data = str(_pairs(trainers.rows(folder, "sft"), Path(name)))
        told = {
            **{"task_type": "embedding", "loss_type": "cosine_similarity", "max_steps": 1},
            **{"dataset": data, "val_dataset": data, "eval_strategy": "steps", "eval_steps": 1},
            "prediction_loss_only": True,  # the metrics of embeddings ask for scikit-learn
        }
        for together, steps in ((cell.forwards, 1), (1, cell.forwards)):
            recorded = trainers.record(Path(name) / f"{steps}.pt")
            batches = {"per_device_train_batch_size": together, "gradient_accumulation_steps": steps}
            trainers.swift(cell, folder, Path(name) / "output", **told, **batches)
            found.append(torch.load(recorded[0]))
    check(found[1], found[0])
    check_evaluated(losses)
    return found[1]


def _pairs(rows: list[dict[str, Any]], folder: Path) -> Path:
    """Every question beside its answer, every second of them as what it is not."""
    path = folder / "pairs.jsonl"
    with path.open("w") as out:
        for number, row in enumerate(rows[: 2 * WORLD]):
            asked, answer = row["messages"]
            other = [answer | {"role": "user"}]
            pair = {**row, "messages": [asked], "positive_messages": [other], "label": number % 2}
            out.write(json.dumps(pair) + "\n")
    return path


def swift_spread_smoothed(cell: Cell, folder: Path) -> Gradients:
    """The same, labels smoothed."""
    return swift_spread(cell, folder, **SMOOTHED)


def swift_spread_alone(cell: Cell, folder: Path) -> Gradients:
    """The same, where every row counts alike, whatever its tokens."""
    return swift_spread(cell, folder, average_tokens_across_devices=False)


def trl_images(cell: Cell, folder: Path) -> Gradients:
    """TRL's GRPO, an image on one rank and a text on the other: as where its log is shown no images."""
    trainers = importlib.import_module("tests.lab.trainers")
    home: Any = importlib.import_module("trl.trainer.grpo_trainer")
    gather, found = home.gather_object, list[Gradients]()

    def but_images(every: list[Any]) -> Any:
        return gather(every) if isinstance(every[0], str) else every

    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=stretched(20)))  # what waits waits for ever
    with tempfile.TemporaryDirectory(prefix="images-") as name:
        place = Path(name)
        for gathers in (but_images, gather):
            home.gather_object = gathers
            recorded = trainers.record(place / f"{len(found)}.pt")
            trainers.trl_grpo_mixed(cell, folder, place / "output")
            found.append(torch.load(recorded[0]))
    check(found[1], found[0])
    return found[1]


def trl_padded_right(cell: Cell, folder: Path) -> Gradients:
    """TRL's GRPO, prompts of two lengths, a processor that pads on the right: as one of the left."""
    trainers = importlib.import_module("tests.lab.trainers")
    found: dict[str, Gradients] = {}
    with tempfile.TemporaryDirectory(prefix="sides-") as name:
        for side in ("left", "right"):
            recorded = trainers.record(Path(name) / f"{side}.pt")
            trainers.trl_grpo_lengths(cell, folder, Path(name) / "output", side)
            found[side] = torch.load(recorded[0])
    check(found["right"], found["left"])
    return found["right"]


def texts_accumulated(cell: Cell, folder: Path) -> Gradients:
    """FSDP2, a dtype for the sums, windows of two micro-batches: texts alone, then a text and an image."""
    return _summed(cell, folder, ("text", "text"), ("text", "image"))


def image_after_text(cell: Cell, folder: Path) -> Gradients:
    """The same, after a window of images."""
    return _summed(cell, folder, ("image", "image"), ("text", "image"))


def _summed(cell: Cell, folder: Path, *windows: tuple[str, str]) -> Gradients:
    fsdp: Any = importlib.import_module("torch.distributed._composable.fsdp")
    mesh = importlib.import_module("torch.distributed.device_mesh").init_device_mesh("cpu", (WORLD,))
    model: Any = loading.prepare(cell, folder)
    said = {"mesh": mesh, "mp_policy": fsdp.MixedPrecisionPolicy(reduce_dtype=torch.float64)}
    for part in (*engines.blocks_of(model), model):
        fsdp.fully_shard(part, **said)
    rows, right, found = samples.Samples(cell, folder), loading.prepare(cell, folder), Gradients()
    for window in windows:
        for turn, kind in enumerate(window):
            batches = [samples.KINDS[kind](rows, 2 * rank + turn) for rank in range(WORLD)]
            model.set_requires_gradient_sync(turn == 1)
            (model(**batches[dist.get_rank()]).loss / 2).backward()
            for batch in batches:
                loading.forget(right)
                (right(**batch).loss / 2 / WORLD).backward()
        wanted = {name: p.grad for name, p in right.named_parameters() if p.grad is not None}
        whole = {name: p.grad.full_tensor() for name, p in model.named_parameters() if p.grad is not None}
        check({name: value for name, value in whole.items() if name in wanted}, wanted)
        found |= whole
        model.zero_grad()
        right.zero_grad()
    return found


def evaluated_first(cell: Cell, folder: Path) -> Gradients:
    """HF Trainer that evaluates before it trains, a row a rank."""
    return _evaluated_first(cell, lambda model: model)


def evaluated_without_adapter(cell: Cell, folder: Path) -> Gradients:
    """The same, where it is evaluated as it is and trained with a LoRA around it, by another Trainer."""
    return _evaluated_first(cell, lambda model: loading.add_lora(model, vision=False))


def _evaluated_first(cell: Cell, made: Callable[[Any], Any]) -> Gradients:
    trainers = importlib.import_module("tests.lab.trainers")
    data = [whole_sequences.row(number) for number in range(WORLD)]
    right = made(_llama())
    for row in data:
        (right(**row).loss / WORLD).backward()
    with tempfile.TemporaryDirectory(prefix="first-") as place:
        said = trainers.said_of(cell, Path(place))
        settings = transformers.TrainingArguments(**said, remove_unused_columns=False)
        told = {"args": settings, "data_collator": lambda rows: rows[0], "train_dataset": data}
        trainers.record(recorded := Path(place) / "gradients")
        model = _llama()
        trainer = transformers.Trainer(model, **told, eval_dataset=data)
        trainer.evaluate()
        trained = made(model)
        (trainer if trained is model else transformers.Trainer(trained, **told)).train()
        found: Gradients = torch.load(recorded)
    check(found, {name: p.grad for name, p in right.named_parameters() if p.grad is not None})
    return found


def best_at_end(cell: Cell, folder: Path) -> Gradients:
    """HF Trainer that ends with the best of its checkpoints, each of which rank 0 begins a moment later."""
    trainers = importlib.import_module("tests.lab.trainers")

    class Late(transformers.Trainer):  # type: ignore[misc]
        def _save(self, *args: Any, **kwargs: Any) -> None:
            time.sleep(0.3)
            super()._save(*args, **kwargs)

    class Asking(transformers.TrainerCallback):  # type: ignore[misc]
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            places: list[Any] = [None] * WORLD
            dist.all_gather_object(places, state.best_model_checkpoint)
            if len(set(places)) > 1:
                raise Wrong(f"ranks know different best checkpoints: {places}")
            if not str(places[0]).endswith(f"-{state.best_global_step}"):
                raise Wrong(f"step {state.best_global_step} was the best, and ranks know {places[0]}")

    with tempfile.TemporaryDirectory(prefix="best-") as place:
        shared = [place]
        dist.broadcast_object_list(shared)
        steps = {"max_steps": 3, "eval_steps": 1, "save_steps": 1, "learning_rate": 1e-2}
        often = {"eval_strategy": "steps", "save_strategy": "steps", "load_best_model_at_end": True}
        said = {**trainers.said_of(cell, Path(shared[0])), **steps, **often}
        settings = transformers.TrainingArguments(**said, remove_unused_columns=False)
        data = [whole_sequences.row()] * WORLD
        more = {"train_dataset": data, "eval_dataset": data, "callbacks": [Asking()]}
        trainer = Late(_llama(), settings, data_collator=lambda rows: rows[0], **more)
        trainer.train()
        dist.barrier()
    best = min(entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry)
    if (ended := trainer.evaluate()["eval_loss"]) != best:
        raise Wrong(f"the model at the end has a loss of {ended}, the best one had {best}")
    return {name: trainers.whole(p.detach()) for name, p in trainer.model.named_parameters()}


def own_head(cell: Cell, folder: Path) -> Gradients:
    """HF Trainer with a head of the model's that ``compute_loss`` calls itself."""

    class Scoring(transformers.Trainer):  # type: ignore[misc]
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            return with_its_score(model, inputs)

    def make(cell: Cell) -> Any:
        model = _whole_model(folder)(cell)
        torch.manual_seed(0)
        model.score = torch.nn.Linear(model.get_input_embeddings().weight.shape[1], 1)
        return model

    return _accumulated(cell, folder, make, counted=False, base=Scoring, loss=with_its_score)


def with_its_score(model: Any, batch: Batch) -> torch.Tensor:
    """Past what wraps the model, where something does."""
    outputs = model(**batch, output_hidden_states=True)
    score: torch.Tensor = getattr(model, "module", model).score(outputs.hidden_states[-1])
    loss: torch.Tensor = outputs.loss + score.square().mean()
    return loss


def with_its_text(model: Any, batch: Batch) -> torch.Tensor:
    """Two forwards, the second of which runs no tower."""
    loss: torch.Tensor = model(**batch).loss
    loading.forget(model)
    return loss + model(**samples.without_image(batch)).loss


def old_sampler(cell: Cell, folder: Path) -> Gradients:
    """A script whose trainer has a sampler from before the Trainer handed the data set to it."""

    class Old(transformers.Trainer):  # type: ignore[misc]
        def _get_train_sampler(self) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    return _accumulated(cell, folder, _whole_model(folder), counted=False, base=Old, ordered=True)


def own_accelerator(cell: Cell, folder: Path) -> Gradients:
    """A script whose trainer builds its accelerator, as LLaVA-NeXT's does."""
    accelerate = importlib.import_module("accelerate")

    class Own(transformers.Trainer):  # type: ignore[misc]
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            steps = accelerate.utils.GradientAccumulationPlugin(
                num_steps=self.args.gradient_accumulation_steps, sync_with_dataloader=False
            )
            self.accelerator = accelerate.Accelerator(
                dispatch_batches=False,
                split_batches=False,
                deepspeed_plugin=self.args.deepspeed_plugin,
                gradient_accumulation_plugin=steps,
            )
            if self.accelerator.dataloader_config.dispatch_batches is not False:
                raise Wrong("the accelerator was not told dispatch_batches=False")

    return _accumulated(cell, folder, _whole_model(folder), counted=False, base=Own)


def smoothed(cell: Cell, folder: Path) -> Gradients:
    """HF Trainer that smooths the labels of a model that is on no list of language models."""
    return _accumulated(cell, folder, _whole_model(folder), counted=False, loss=_smoothed, more=SMOOTHED)


def smoothed_windows(cell: Cell, folder: Path) -> Gradients:
    """The same of one that is, over accumulated batches."""
    return _accumulated(cell, folder, _llama, counted=True, loss=_smoothed, more=SMOOTHED)


def _smoothed(model: Any, batch: Batch) -> torch.Tensor:
    logits, labels = model(**batch).logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
    return _entropy(logits, labels)


def _entropy(logits: torch.Tensor, labels: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    smoothing = SMOOTHED["label_smoothing_factor"]
    return torch.nn.functional.cross_entropy(
        logits, labels, ignore_index=samples.IGNORED, reduction=reduction, label_smoothing=smoothing
    )


def classified(cell: Cell, folder: Path) -> Gradients:
    """HF Trainer over accumulated batches, of a head that says of which kind a row is."""
    more = {"average_tokens_across_devices": True}
    return _accumulated(cell, folder, _classifier, counted=False, more=more, fed=_kinds)


def _classifier(cell: Cell | None = None) -> Any:
    transformers.set_seed(3)
    kinds = {"num_labels": KINDS, "pad_token_id": 0, "problem_type": "single_label_classification"}
    return transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**{**TEXT, **kinds}))


def _kinds(batch: Batch) -> Batch:
    text = {name: batch[name] for name in ("input_ids", "attention_mask")}
    return {**text, "labels": batch["input_ids"].sum(dim=1) % KINDS}


def routed(cell: Cell, folder: Path) -> Gradients:
    """HF Trainer that counts tokens over ranks, of experts whose routers have a loss."""
    more = {"average_tokens_across_devices": True}
    return _accumulated(cell, folder, _experts, counted=True, more=more, right=_routed_right)


def _experts(cell: Cell | None = None) -> Any:
    transformers.set_seed(3)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    told = {"shared_expert_intermediate_size": 32, "output_router_logits": True, "router_aux_loss_coef": 0.5}
    return transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(**TEXT, **experts, **told))


def _routed_right(own: list[list[Batch]]) -> tuple[Gradients, float]:
    batches = [batch for of_a_rank in own for batch in of_a_rank]
    tokens = [int((batch["labels"][:, 1:] != samples.IGNORED).sum()) for batch in batches]
    model, total = _experts().train(), 0.0
    for batch, here in zip(batches, tokens, strict=True):
        outputs = model(**batch)
        routers = outputs.aux_loss * model.router_aux_loss_coef
        loss = (outputs.loss - routers) * here / sum(tokens) + routers / len(batches)
        loss.backward()
        total += loss.item()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, total


def static_graph(cell: Cell, folder: Path) -> Gradients:
    """DDP that was told so, over two windows of the same micro-batches."""
    right = plain(cell, folder)
    model = loading.prepare(cell, folder)
    ddp = torch.nn.parallel.DistributedDataParallel(model, static_graph=True)
    own = samples.make_batches(cell, folder, dist.get_rank())
    for _ in range(2):
        model.zero_grad()
        for batch in own:
            loading.forget(model)
            with contextlib.nullcontext() if batch is own[-1] else ddp.no_sync():
                ddp(**batch).loss.backward()
        found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        check(found, right)
    return found


def projected(cell: Cell, folder: Path) -> Gradients:
    """OSF, which projects its gradients; for FSDP may have new tensors in each, of a second step."""
    right = plain(cell, folder, make=_osf)
    model = _osf(cell, folder)
    engine = engines.ENGINES[cell.engine](cell, model)
    own = samples.make_batches(cell, folder, dist.get_rank())
    for _ in range(2):
        model.zero_grad()
        engine.backward(torch.stack([engine.forward(batch) for batch in own]).sum())
    with engine.gathered():
        found = recording.gradients(engine, model)
    check(found, right)
    return found


def _osf(cell: Cell, folder: Path) -> Any:
    peft: Any = importlib.import_module("peft")
    config = peft.OSFConfig(target_modules=["q_proj", "down_proj", "qkv"])
    return peft.get_peft_model(loading.prepare(cell, folder), config).train()


def prefix(cell: Cell, folder: Path) -> Gradients:
    """A prefix for a language model, by HF Trainer, which switches checkpointing on afterwards."""
    return _accumulated(cell, folder, _prefixed, counted=True)


def _whole_model(folder: Path) -> Make:
    return lambda cell: loading.prepare(cell, folder)


def _llama(cell: Cell | None = None) -> Any:
    transformers.set_seed(3)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT))


def _qwen3_next() -> Any:
    transformers.set_seed(3)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    sizes = {**TEXT, **LINEAR, **experts, "shared_expert_intermediate_size": 16}
    return transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(**sizes)).train()


def _qwen3_5() -> Any:
    """With a vision tower, which the texts do without."""
    transformers.set_seed(3)
    text = {**TEXT, **LINEAR, "rope_parameters": {**MROPE, "mrope_interleaved": True, "rope_theta": 1e4}}
    vision = {name: value for name, value in QWEN3_VISION.items() if name != "deepstack_visual_indexes"}
    config = transformers.Qwen3_5Config(text_config=text, vision_config=vision, **QWEN_IDS)
    model = transformers.Qwen3_5ForConditionalGeneration(config).train()
    model.model.visual.requires_grad_(False)
    return model


def _lfm3() -> Any:
    transformers.set_seed(3)
    layers = {"layer_types": ["conv", "full_attention"]}
    return transformers.Lfm3ForCausalLM(transformers.Lfm3Config(**{**TEXT, **layers})).train()


def _prefixed(cell: Cell) -> Any:
    peft: Any = importlib.import_module("peft")
    settings = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    return peft.get_peft_model(_llama(), settings)


def _accumulated(
    cell: Cell,
    folder: Path,
    make: Make,
    counted: bool,
    base: Any = None,
    named: Any = None,
    ordered: bool = False,
    loss: Callable[[Any, Batch], torch.Tensor] = lambda model, batch: model(**batch).loss,
    more: dict[str, Any] | None = None,
    right: Right | None = None,
    fed: Callable[[Batch], Batch] | None = None,
) -> Gradients:
    """A window of HF Trainer, or of ``base``; ``ordered`` where that takes the data in their order.

    ``more`` is told the Trainer, too; ``right`` says what is right, where it is no mean of ``loss``.
    ``fed`` makes of a batch what the model takes.
    """
    trainers = importlib.import_module("tests.lab.trainers")
    own = [samples.make_batches(cell, folder, rank) for rank in range(WORLD)]
    if fed:
        own = [[fed(batch) for batch in batches] for batches in own]
    if counted:
        text = ("input_ids", "attention_mask", "labels")
        own = [[{name: batch[name] for name in text} for batch in batches] for batches in own]
        for batch in (batch for batches in own for batch in batches):
            # No target of a shifted loss; the Trainer counts it as one, or since 5.23 does not.
            batch["labels"] = torch.cat([torch.full((1, 1), samples.IGNORED), batch["labels"][:, 1:]], dim=1)

    class InOrder(base or transformers.Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    with tempfile.TemporaryDirectory(prefix="accumulate-") as place:
        said = trainers.arguments(cell, Path(place) / "output")
        if "deepspeed" in said:
            said["deepspeed"]["gradient_accumulation_steps"] = cell.forwards
        # A mean over a rank's own tokens everywhere; 4.57 and later would weigh ranks by their tokens.
        if hasattr(transformers.TrainingArguments, "average_tokens_across_devices"):
            said["average_tokens_across_devices"] = False
        settings = transformers.TrainingArguments(
            **{**said, **(more or {})},
            gradient_accumulation_steps=cell.forwards,
            remove_unused_columns=False,
            logging_steps=1,
        )
        recorded = trainers.record(Path(place) / "gradients.pt")
        data = [batch for turn in zip(*own, strict=True) for batch in turn]
        trainer = (base if ordered else InOrder)(
            make(cell), settings, data_collator=lambda rows: rows[0], train_dataset=data, **(named or {})
        )
        trainer.train()
        found: Gradients = torch.load(recorded[0])
    wanted, mean = right(own) if right else _accumulated_right(cell, make, own, counted, loss)
    check(found, wanted)
    logged = next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry)
    if not abs(logged - mean) <= 1e-3 * mean:  # it is rounded to four digits
        raise Wrong(f"the logged loss is {logged}, not {mean:.4f}")
    return found


def _accumulated_right(
    cell: Cell,
    make: Make,
    own: list[list[Batch]],
    counted: bool,
    loss_of: Callable[[Any, Batch], torch.Tensor],
) -> tuple[Gradients, float]:
    """Gradients and loss of all batches: of each rank's mean over its tokens, or over its batches."""
    model = make(dataclasses.replace(cell, checkpointing="off")).train()
    total = 0.0
    for batches in own:
        tokens = [int((batch["labels"] != samples.IGNORED).sum()) for batch in batches]
        seen = [int((batch["labels"][..., 1:] != samples.IGNORED).sum()) for batch in batches]
        for batch, here in zip(batches, seen, strict=True):
            share = here / sum(tokens) if counted else 1 / len(batches)
            loading.forget(model)
            loss = loss_of(model, batch) * share / WORLD
            loss.backward()
            total += loss.item()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, total


def far_positions(cell: Cell, folder: Path) -> Gradients:
    """Positions in 16 bits; what is put on file is what the model puts out."""
    return {"logits": sixteen_bits.far_positions(cell, folder)}


def near_biases(cell: Cell, folder: Path) -> Gradients:
    """Experts in 16 bits, in the same way."""
    return {"logits": sixteen_bits.near_biases(cell, folder)}


def unmasked(cell: Cell, folder: Path) -> Gradients:
    """A row with an image that comes without a mask, in a training without a cache."""
    (batch,) = samples.make_batches(cell, folder, 0)  # both ranks have it
    measures = [loading.prepare(cell, folder) for _ in range(2)]
    first = int((batch["input_ids"][0] == measures[0].config.image_token_id).nonzero()[0])
    batch["input_ids"][0, first - 1] = measures[0].config.vision_start_token_id  # by which an image is found
    bare = {name: value for name, value in batch.items() if name != "attention_mask"}
    for model, fed in zip(measures, (bare, batch), strict=True):
        model(**fed, use_cache=False).loss.backward()
    found, right = (
        {name: p.grad for name, p in model.named_parameters() if p.grad is not None} for model in measures
    )
    check(found, right)
    return found


def patch_positions(cell: Cell, folder: Path) -> Gradients:
    """An image as large as the tower's table of positions: each is looked up once, and has that gradient."""
    model = loading.prepare(cell, folder)
    small = next(part for part in model.modules() if hasattr(part, "num_patches_per_side"))
    config = copy.deepcopy(model.config.vision_config)
    config.image_size = LARGE * config.patch_size
    embeddings = type(small)(config).to(getattr(torch, cell.dtype))
    pixels = torch.zeros(
        1, 3, config.image_size, config.image_size, dtype=embeddings.position_embedding.weight.dtype
    )
    embeddings(pixels, torch.ones(1, LARGE, LARGE, dtype=torch.bool)).sum().backward()
    found: torch.Tensor = embeddings.position_embedding.weight.grad
    if wrong := int((found != 1).any(dim=1).sum()):
        raise Wrong(f"{wrong} of {LARGE**2} positions are not looked up once")
    return {"positions": found}


def images_of_rows(cell: Cell, folder: Path) -> Gradients:
    """Rows with two images, one and none, which a rank has in one batch, held against each by itself."""

    def make(said: Cell) -> Any:
        model = loading.prepare(said, folder)
        torch.manual_seed(0)
        for parameter in model.parameters():
            if not parameter.any():  # gates that begin at zero, behind which nothing would be seen
                torch.nn.init.normal_(parameter, std=0.1)
        return model

    right = make(dataclasses.replace(cell, checkpointing="off"))
    for rank in range(WORLD):
        rows = _rows_with_images(rank)
        for row in rows:
            (right(**row).loss / len(rows) / WORLD).backward()  # of one length, so that each has its share
    model = make(cell)
    engine = engines.ENGINES[cell.engine](cell, model)
    engine.backward(engine.forward(_filled_up(_rows_with_images(dist.get_rank()))))
    found = recording.gradients(engine, model)
    check(found, {name: p.grad for name, p in right.named_parameters() if p.grad is not None})
    return found


def _rows_with_images(rank: int) -> list[Batch]:
    """As Mllama's processor makes them of one text each; each image is of two tiles, the text looks at it."""
    drawn = torch.Generator().manual_seed(rank)
    rows = []
    for images in (2, 1, 0):
        ids = torch.randint(10, BEHIND_SPECIAL, (1, 14), generator=drawn)
        looks = torch.zeros(1, 14, images, 2, dtype=torch.long)
        begins = [4, 8][:images]
        for number, (begin, end) in enumerate(itertools.pairwise([*begins, 14])):
            ids[:, begin] = IMAGE
            looks[:, begin:end, number] = 1
        row = {"input_ids": ids, "labels": ids.masked_fill(ids == IMAGE, -100)}
        row["labels"][:, [4, 8]] = -100  # as many are learnt in each row
        if images:
            row["pixel_values"] = torch.randn(1, images, 2, 3, 28, 28, generator=drawn)
            row["aspect_ratio_ids"] = torch.full((1, images), 2)
            row["aspect_ratio_mask"] = torch.ones(1, images, 2, dtype=torch.long)
            row["cross_attention_mask"] = looks
        rows.append(row)
    return rows


def _filled_up(rows: list[Batch]) -> Batch:
    """As the processor makes them of several texts: one batch, with zeros for images that are not there."""
    along = {"pixel_values": 1, "aspect_ratio_ids": 1, "aspect_ratio_mask": 1, "cross_attention_mask": 2}
    first, *rest = rows  # which has the most
    batch = {name: [value] for name, value in first.items()}
    for row in rest:
        for name, value in first.items():
            filled = torch.zeros_like(value)
            if name in row:
                filled.narrow(along.get(name, 0), 0, row[name].shape[along.get(name, 0)]).copy_(row[name])
            batch[name].append(filled)
    filled_up = {name: torch.cat(values) for name, values in batch.items()}
    filled_up["aspect_ratio_mask"][:, :, 0] = 1  # of what is not there too
    return filled_up


def loaded(cell: Cell, folder: Path) -> Gradients:
    """A checkpoint, whose routers if any have learnt biases, loaded as transformers does it under ZeRO-3."""
    with tempfile.TemporaryDirectory(prefix="loaded-") as place:
        sixteen_bits.write_changed(folder, place, _learnt)
        right = plain(cell, Path(place))
        engines.begin_deepspeed(cell)
        integrations = importlib.import_module("transformers.integrations")
        told = integrations.HfDeepSpeedConfig(engines.deepspeed_config(cell))  # as long as it lives
        model = loading.prepare(cell, Path(place))
        engine = engines.ENGINES[cell.engine](cell, model)
        (batch,) = samples.make_batches(cell, folder, dist.get_rank())
        engine.backward(engine.forward(batch))
        found = recording.gradients(engine, model)
        del told
    check(found, right)
    return found


def first_rank_loads(cell: Cell, folder: Path) -> Gradients:
    """The same under FSDP2, as accelerate has it by default: the first rank reads and hands to the others."""
    with tempfile.TemporaryDirectory(prefix="loaded-") as place:
        sixteen_bits.write_changed(folder, place, _learnt)
        right = plain(cell, Path(place))
        importlib.import_module("tests.lab.trainers").let_accelerate_shard_on_cpu("2")
        os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "true"
        accelerate = importlib.import_module("accelerate")
        plugin = accelerate.FullyShardedDataParallelPlugin(
            fsdp_version=2, cpu_ram_efficient_loading=True, auto_wrap_policy="transformer_based_wrap"
        )
        accelerator = accelerate.Accelerator(fsdp_plugin=plugin)
        model = loading.prepare(cell, Path(place))
        model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
        (batch,) = samples.make_batches(cell, folder, dist.get_rank())
        accelerator.backward(model(**batch).loss)
    trained = [(name, p.grad) for name, p in model.named_parameters() if p.grad is not None]
    found = {name: gradient.full_tensor() for name, gradient in trained}
    check(found, right)
    return found


def _learnt(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Biases that choose the last experts."""
    return torch.arange(len(tensor)).to(tensor) if name.endswith("e_score_correction_bias") else tensor


SCENARIOS: dict[str, Callable[[Cell, Path], Gradients]] = {
    "loaded": loaded,
    "first_rank_loads": first_rank_loads,
    "images_of_rows": images_of_rows,
    "far_positions": far_positions,
    "patch_positions": patch_positions,
    "unmasked": unmasked,
    "near_biases": near_biases,
    "accumulate": accumulate,
    "accumulate_text": accumulate_text,
    "accumulate_ignored": accumulate_ignored,
    "accumulate_loop": accumulate_loop,
    "old_script": old_script,
    "packed": packed,
    "packed_texts": packed_texts,
    "packed_linear": packed_linear,
    "flash_along_axes": flash_along_axes,
    "flash_packed": flash_packed,
    "packed_linear_next": packed_linear_next,
    "packed_linear_said": packed_linear_said,
    "packed_linear_masked": packed_linear_masked,
    "packed_linear_next_masked": packed_linear_next_masked,
    "neat_packing": neat_packing,
    "packed_convolved": packed_convolved,
    "prefix": prefix,
    "projected": projected,
    "classified": classified,
    "routed": routed,
    "smoothed": smoothed,
    "smoothed_windows": smoothed_windows,
    "static_graph": static_graph,
    "old_sampler": old_sampler,
    "own_head": own_head,
    "rehearsed": rehearsed,
    "rehearsed_by_trainer": rehearsed_by_trainer,
    "trained_again": trained_again,
    "swift_pairs": swift_pairs,
    "swift_smoothed": swift_smoothed,
    "swift_spread": swift_spread,
    "swift_spread_alone": swift_spread_alone,
    "swift_spread_smoothed": swift_spread_smoothed,
    "swift_texts": swift_texts,
    "trl_images": trl_images,
    "trl_padded_right": trl_padded_right,
    "texts_accumulated": texts_accumulated,
    "image_after_text": image_after_text,
    "short_window": short_window,
    "short_window_loop": short_window_loop,
    "streamed_window": streamed_window,
    "streamed_below_a_window": streamed_below_a_window,
    "counted_window": counted_window,
    "rounded_epochs": rounded_epochs,
    "resumed_epoch": resumed_epoch,
    "resumed_stream": resumed_stream,
    "resumed_dispatch": resumed_dispatch,
    "resumed_groups": resumed_groups,
    "resumed_unseeded": resumed_unseeded,
    "resumed_rebalanced": resumed_rebalanced,
    "evaluated_first": evaluated_first,
    "evaluated_without_adapter": evaluated_without_adapter,
    "best_at_end": best_at_end,
    "own_accelerator": own_accelerator,
    "asked_device": asked_device,
    "frozen_tower": frozen_tower,
    "selective": selective,
    "tiled": tiled,
    "spread_by_trainer": spread_by_trainer,
    "spread_by_trainer_of_a_checkpoint": spread_by_trainer_of_a_checkpoint,
    "spread_over_epochs": spread_over_epochs,
    "spread_and_resumed": spread_and_resumed,
    "spread_and_resumed_between": spread_and_resumed_between,
    "spread_by_script": spread_by_script,
    "forward_between": forward_between,
    "adapter_of_units": adapter_of_units,
    "shared_layers": shared_layers,
    "recurrent": recurrent,
    "umt5": umt5,
    "wrapped": wrapped,
    "own_calls": own_calls,
    "own_answer": own_answer,
    "keyword_blocks": keyword_blocks,
    "routers_loss": routers_loss,
    "sharded_base": sharded_base,
    "own_reentrant": own_reentrant,
    "attention_chosen": attention_chosen,
    "ends_in_script": ends_in_script,
    "scripted_activation": scripted_activation,
    "failed_and_kept": failed_and_kept,
    "causal_task": causal_task,
    "leaf": leaf,
    "leaf_own_hook": leaf_own_hook,
    "generate": generate,
    "generate_more": generate_more,
    "generate_in_step": generate_in_step,
}
