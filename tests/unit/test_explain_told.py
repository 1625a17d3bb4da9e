"""What people write of a failure without quoting a log: one answer where the words say it, none elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_explain import of

TOLD = [
    ("Qwen2-VL\nWhy can LoRA and gradient checkpointing not be used together? I am out of memory.", "F5"),
    ("SFT of Gemma 3 with unsloth dies.\nDisabling compile makes the model train.", "compiled"),
    ("When you update the code, fine-tuning Llama 3.2 Vision has a bug\n\nSee the picture.", "versions"),
    ("Low GPU utilization while finetuning GR00T\n\nOn eight H100.", "slow"),
    ("Vision finetuning does not work\n\nYou are not using the correct version of torchtune.", "versions"),
    ("LoRA 微调小问题\n\n应该是 transformers 或者其他库版本不匹配。", "versions"),
    ("LoRA of Vicuna\n\nWith model_max_length of 2048 it will be OOM when I train.", "out-of-memory"),
    (
        "Fine-tuning Qwen2-VL with LoRA on two GPUs under plain DDP "
        "dies in the first backward: DDP complains that a parameter "
        "was marked ready two times. Without gradient checkpointing "
        "it trains.",
        "F3",
    ),
    (
        "用 LoRA 微调 InternVL，开梯度检查点，DDP 多卡，反向时提示某个参数被标记为 ready 两次",
        "F3",
    ),
    (
        "With ZeRO-2 and DPO on LLaVA the backward stops: DeepSpeed "
        "asserts that parameter 301 was already reduced, i.e. its "
        "gradient came in twice for one partition.",
        "F1",
    ),
    (
        "zero2 训练 MiniCPM-V 报错说某个参数已经被 reduce 过了,梯度在这个分区里算了两次",
        "F1",
    ),
    (
        "ZeRO-3, MiniCPM-V, gradient checkpointing: an assertion "
        "without any message in stage3.py, in the line about the set "
        "of ds_ids in the ipg bucket.",
        "F2",
    ),
    (
        "LoRA plus ZeRO-3 plus checkpointing: the checkpoint error "
        "says that recomputed tensors have other metadata, saved "
        "shape was 3584 and the recomputed one is empty (0).",
        "F4",
    ),
    (
        "zero3+lora 开梯度检查点后，重计算得到的张量形状是 [0]，和前向保存的 [3584] 对不上，直接报 "
        "CheckpointError",
        "F4",
    ),
    (
        "I turned on gradient checkpointing and put LoRA on the "
        "vision tower of Qwen2-VL. After training lora_B of the "
        "vision blocks is still all zeros: those weights never get a "
        "gradient.",
        "F5",
    ),
    (
        "开了 gradient checkpointing 之后，视觉塔的 LoRA 一直没有梯度，权重完全不更新",
        "F5",
    ),
    (
        "ZeRO-3 fine-tuning of Qwen2.5-VL gets stuck for ever as "
        "soon as one rank gets a batch of pure text while the others "
        "have pictures.",
        "F11",
    ),
    (
        "zero3 训练时，只要某张卡上的 batch 全是纯文本，训练就会卡死，最后 NCCL 超时",
        "F11",
    ),
    (
        "Under ZeRO-2 our VLM run stalls when text-only samples are "
        "mixed in; NCCL times out in an all-reduce.",
        "F16",
    ),
    (
        "At the very end, when the ZeRO-3 model is written out by "
        "save_pretrained on rank 0, the job hangs until the NCCL "
        "timeout.",
        "F12",
    ),
    (
        "zero3 训练完保存模型时卡住，过半小时超时退出",
        "F12",
    ),
    (
        "MiniCPM-V with frozen embeddings: torch says that a leaf "
        "that requires grad is modified in place, at the line that "
        "scatters image features into the embeddings.",
        "F13",
    ),
    (
        "HF Trainer with DDP, Qwen2-VL, text-only samples: torch "
        "complains about parameters of the vision tower that took no "
        "part in the loss and says the previous reduction was not "
        "finished.",
        "F19",
    ),
    (
        "FSDP with activation checkpointing of Llama: recomputed "
        "tensors have a sequence length that is exactly doubled, "
        "2048 against 1024; use_cache is on.",
        "F20",
    ),
    (
        "Loading Gemma3 under DeepSpeed ZeRO-3 fails with an "
        "IndexError: index 0 out of bounds for a dimension of size "
        "0, in _init_weights.",
        "F23",
    ),
    (
        "With ZeRO-3 the pretrained mm_projector cannot be loaded: "
        "size mismatch, the checkpoint has 4096x1024 and the current "
        "model shows torch.Size([0]).",
        "F24",
    ),
    (
        "After a ZeRO-3 run the saved adapter file holds tensors of "
        "shape [0]; loading it says size mismatch, torch.Size([0]) "
        "from the checkpoint.",
        "F25",
    ),
    (
        "Calling the vision encoder on its own in my reward function "
        "under ZeRO-3 gives an error that the weight must be 2-D.",
        "F26",
    ),
    (
        "Qwen3-VL-30B-A3B under ZeRO-3: training hangs after a few "
        "steps, ranks seem to wait for different experts.",
        "F27",
    ),
    (
        "zero3 训练 MoE 模型会卡住,各卡在等不同的专家",
        "F27",
    ),
    (
        "Under zero.Init() my weights will not load, I get a size mismatch for each of them.",
        "F24",
    ),
    (
        "With DeepSpeed stage 3 model.get_input_embeddings() gives me a weight of size 0.",
        "F26",
    ),
    (
        "unsloth with gradient checkpointing goes through the graph a second time in the first backward.",
        "F37",
    ),
    (
        "Under ZeRO-3 the frozen parameters are lost as soon as save_pretrained() has written the model.",
        "F25",
    ),
    (
        "After upgrading transformers my Trainer subclass fails, its "
        "compute_loss is passed num_items_in_batch which it does not "
        "accept.",
        "F28",
    ),
    (
        "GRPO of Qwen2-VL with gradient checkpointing fails while "
        "generating: the mask has one position more than the indexed "
        "tensor.",
        "F30",
    ),
    (
        "Whisper with gradient checkpointing: PyTorch says I go "
        "backward through the graph a second time although backward "
        "is called once.",
        "F36",
    ),
    (
        "FSDP refuses LoRA on our VLM: it wants uniform requires_grad in what it flattens.",
        "F38",
    ),
    (
        "Under FSDP the embedding of Gemma 3 is called and torch says the weight must be 2-D.",
        "F39",
    ),
    (
        "Accelerate's FSDP cannot find the transformer layer class Qwen2VLDecoderLayer in the model.",
        "F40",
    ),
    (
        "Resuming a LoRA run under DeepSpeed ZeRO-3 fails: lots of "
        "missing keys base_model.model..., the checkpoint holds only "
        "the adapter.",
        "F43",
    ),
    (
        "We resumed full fine-tuning of Qwen2.5-VL from a checkpoint "
        "saved by transformers 4.52 and the loss starts again from "
        "its first value.",
        "F44",
    ),
    (
        "Qwen2.5-VL 全参训练断点续训，恢复之后 loss 又从头开始",
        "F44",
    ),
    (
        "With gradient accumulation accelerate calls no_sync and "
        "DeepSpeed ZeRO-2 says this does not go with gradient "
        "partitioning.",
        "F71",
    ),
    (
        "With flash kernels and non-reentrant checkpointing torch "
        "says the recomputation saved a different number of tensors "
        "than the forward.",
        "F72",
    ),
    (
        "With gradient_accumulation_steps=8 the reported loss is "
        "eight times larger than with 1, on transformers 4.46.",
        "F15",
    ),
    (
        "With ZeRO-2 and overlap_comm: true grad_norm becomes nan at the second step; ZeRO-3 is fine.",
        "F54",
    ),
    (
        "swift sft on two cards, LoRA, qwen2.5-vl. It stops right "
        "away in backward. The message is about a variable that "
        "should be marked ready only once, and it lists a lora_B "
        "weight.",
        "F3",
    ),
    (
        "I get the DDP error about marking a variable ready twice "
        "when I train my PEFT model with gradient checkpointing "
        "enabled",
        "F3",
    ),
    (
        "deepspeed stage 2 says param 657 was reduced before "
        "already, multiple gradient reduction isn't supported. "
        "MiniCPM-V-2.6 finetune",
        "F1",
    ),
    (
        "用 deepspeed zero2 跑 DPO，提示 parameter 已经 reduce 过，不支持多次梯度规约",
        "F1",
    ),
    (
        "Checkpoint error under zero3 with lora: metadata of "
        "recomputed values is different from the forward, e.g. "
        "torch.Size([0]) instead of [4096]",
        "F4",
    ),
    (
        "RuntimeError: tensors do not require grad and have no "
        "grad_fn, when I train only LoRA with "
        "gradient_checkpointing=True",
        "F5",
    ),
    (
        "梯度检查点打开以后报 tensor 不需要梯度、没有 grad_fn 的错误，LoRA 微调",
        "F5",
    ),
    (
        "My dataset has both image and language-only conversations. "
        "With zero3 all GPUs go to 100% and nothing moves any more; "
        "NCCL watchdog kills the job after 30 minutes.",
        "F11",
    ),
    (
        "deepspeed zero3，图文数据和纯文本数据一起训练，跑几步之后就 hang 住不动了",
        "F11",
    ),
    (
        "Training completes, but then trainer.save_model never "
        "returns with ZeRO-3; after half an hour there is a NCCL "
        "timeout.",
        "F12",
    ),
    (
        "Multi-GPU (DDP) SFT with TRL on a VLM. With text only "
        "batches: 'parameters that were not used in producing loss', "
        "find_unused_parameters suggested.",
        "F19",
    ),
    (
        "zero3 下加载 mm_projector 权重报 size mismatch，当前模型的 shape 是 torch.Size([0])",
        "F24",
    ),
    (
        "The adapter_model.safetensors written under ZeRO-3 is only 40 KB, all tensors in it are empty.",
        "F25",
    ),
    (
        "Using CLIP as a frozen reward model inside ZeRO-3 training. "
        "Its conv complains: weight should have at least three "
        "dimensions",
        "F26",
    ),
    (
        "Fine-tuning DeepSeek-VL2 with ZeRO-3, the GPUs hang in the "
        "middle of an epoch. A dense model of the same size works.",
        "F27",
    ),
    (
        "TypeError from our CustomTrainer: compute_loss got an "
        "unexpected keyword num_items_in_batch since transformers "
        "4.46",
        "F28",
    ),
    (
        "During GRPO sampling with gradient checkpointing on, "
        "generate() breaks: tensor a (512) vs tensor b (513).",
        "F30",
    ),
    (
        "Llama-3.2-Vision, gradient checkpointing with "
        "use_reentrant=True: 'Trying to backward through the graph a "
        "second time'.",
        "F36",
    ),
    (
        "When I freeze the vision encoder FSDP raises: Must flatten "
        "tensors with uniform requires_grad when "
        "use_orig_params=False",
        "F38",
    ),
    (
        "EasyR1: Cannot find Qwen2_5_VLVisionBlock in pretrained model while building the FSDP wrap policy",
        "F40",
    ),
    (
        "Resume with FSDP2 fails because the vision tower has no "
        "optimizer state in the checkpoint (text only training).",
        "F42",
    ),
    (
        "resume_from_checkpoint with LoRA and deepspeed: Missing "
        "key(s) in state_dict for PeftModelForCausalLM",
        "F43",
    ),
    (
        "接着上次的 checkpoint 全参数继续训练 Qwen2.5-VL（transformers 4.52），loss 又变回最开始的值",
        "F44",
    ),
    (
        "AssertionError no_sync is incompatible with ZeRO stage 2 "
        "gradient partitioning, gradient_accumulation_steps=4",
        "F71",
    ),
    (
        "Qwen2-VL + PEFT: in-place operation on a leaf variable that "
        "requires grad, at inputs_embeds[image_mask] = image_embeds",
        "F13",
    ),
    (
        "torch.utils.checkpoint with FSDP: the recomputed key/value "
        "have twice the sequence length of the forward; caching is "
        "enabled by default",
        "F20",
    ),
    (
        "zero2 + mixed text and image data, ranks end with different numel in ALLREDUCE and time out",
        "F16",
    ),
    (
        "Qwen2-VL, ZeRO-3: ranks whose batch is text-only wait in an all_gather while training",
        "F11",
    ),
    (
        "Resuming Qwen2.5-VL: the Trainer reads the keys of the file as they are, without the conversion "
        "that from_pretrained does, and they do not match",
        "F44",
    ),
    (
        "Our trainer overrides _get_train_sampler, whose signature lacks the dataset: a TypeError with a new "
        "transformers",
        "F28",
    ),
    ("LoRA saved under ZeRO-3 is incomplete, 128 kB, under ZeRO-2 it is whole", "F25"),
    ("zero3 保存的 adapter 只有几兆，无法加载", "F25"),
    (
        "ZeRO-3 PPO: still have inflight params at the end of the forward",
        "F70",
    ),
    (
        "My two-GPU LoRA run of PaliGemma crashes at the first backward. torch says a "
        "parameter was marked as ready more than once. Single GPU is fine, and so is "
        "gradient_checkpointing=False.",
        "F3",
    ),
    (
        "InternVL2 DPO with zero2: the assertion says parameter 120 was reduced already. If "
        "I switch off checkpointing it goes through.",
        "F1",
    ),
    (
        "deepspeed stage 3 + gradient checkpointing, my loss calls the model twice; "
        "AssertionError with no text, raised in stage3.py while it checks the bucket for "
        "duplicates.",
        "F2",
    ),
    (
        "QLoRA, zero-3, gradient checkpointing with use_reentrant False: torch complains "
        "that the recomputed tensor has shape [0] where 4096 was saved.",
        "F4",
    ),
    (
        "After switching on gradient checkpointing my visual LoRA layers don't learn "
        "anything: lora_B is zero after 1000 steps, the language part learns.",
        "F5",
    ),
    (
        "开启gradient_checkpointing后lora参数的梯度全是None，关掉就正常了",
        "F5",
    ),
    (
        "ZeRO-3 training of LLaVA stops without a message as soon as one GPU gets a sample "
        "that has no image; the other GPUs wait at 100 % utilization.",
        "F11",
    ),
    (
        "用zero3训练Qwen2.5-VL，数据里有纯文本样本，训练到一半就卡死了，nccl超时",
        "F11",
    ),
    (
        "At the end of training with deepspeed zero3 the process freezes when I call "
        "save_pretrained inside `if rank == 0`.",
        "F12",
    ),
    (
        "Training MiniCPM-V with LLaMA-Factory: torch says that a leaf variable is modified "
        "in place, at the line that scatters the image embeddings.",
        "F13",
    ),
    (
        "transformers 4.46: with gradient_accumulation_steps=8 the reported loss is about "
        "eight times as large as with 1, same effective batch size. Trainer from HF.",
        "F15",
    ),
    (
        "ZeRO-2, four GPUs. If one rank's batch is text only and the others have images, "
        "training hangs in the reduction.",
        "F16",
    ),
    (
        "DeepSpeed 0.18.1 ZeRO-2: with gradient accumulation over 4 micro-batches the "
        "gradient that reaches the optimizer is only that of the last micro batch, the "
        "others are lost.",
        "F18",
    ),
    (
        "DDP fine-tuning of Qwen2-VL with HF Trainer: error that some parameters were unused "
        "in the loss, only for batches without images. find_unused_parameters is off.",
        "F19",
    ),
    (
        "FSDP with activation checkpointing on Llama: recomputed key tensors have twice the "
        "sequence length of the saved ones; use_cache was left at its default.",
        "F20",
    ),
    (
        "BertModel.from_pretrained inside deepspeed zero3: index error in _init_weights, the "
        "embedding weight is empty when padding_idx row is zeroed.",
        "F23",
    ),
    (
        "Loading the pretrained mm projector under ZeRO-3 fails: load_state_dict says that "
        "the current model's weight has size 0.",
        "F24",
    ),
    (
        "zero3 训练完保存的 adapter_model.safetensors 只有几十 KB，里面的权重都是空的",
        "F25",
    ),
    (
        "My GRPO reward model runs under zero3 and its embedding weight isn't "
        "two-dimensional any more, so the forward fails.",
        "F26",
    ),
    (
        "Fine-tuning Qwen3-30B-A3B with DeepSpeed stage 3 deadlocks after some hundred "
        "steps: ranks wait in all_gather, MoE layers.",
        "F27",
    ),
    (
        "My own Trainer subclass no longer works: compute_loss is called with "
        "num_items_in_batch, which it does not accept.",
        "F28",
    ),
    (
        "GRPO on Qwen2.5-VL without vLLM: generate() fails with a mask that is one token "
        "longer than the tensor; gradient checkpointing is on.",
        "F30",
    ),
    (
        "After upgrading to transformers 4.52 my Qwen2-VL LoRA adapter is silently not "
        "loaded: all keys with model.language_model are reported as missing.",
        "F31",
    ),
    (
        "FSDP refuses my model because frozen and trainable weights are flattened together: "
        "requires_grad must be uniform.",
        "F38",
    ),
    (
        "accelerate FSDP: the class to wrap, Qwen2VLVisionBlock, was not found in the model.",
        "F40",
    ),
    (
        "Resuming an FSDP2 run fails since no optimizer state was saved for the vision "
        "tower, which never got a gradient.",
        "F42",
    ),
    (
        "Resume of a LoRA run under DeepSpeed: strict loading reports missing keys for all "
        "the base model weights.",
        "F43",
    ),
    (
        "I resumed Qwen2.5-VL full fine-tuning from a checkpoint and the loss starts from "
        "scratch, as if nothing had been loaded. transformers 4.53.",
        "F44",
    ),
    (
        "I freeze the vision tower after 500 steps with requires_grad_(False). Under ZeRO-2 "
        "with AdamW its weights are still being updated.",
        "F50",
    ),
    (
        "ZeRO-2, mixture of adapters: an adapter that no sample used in this step is changed "
        "all the same, because weight decay and momentum act on it.",
        "F53",
    ),
    (
        "With overlap_comm enabled in my ZeRO-2 config grad_norm turns nan after a few "
        "steps; with overlap_comm false it is fine.",
        "F54",
    ),
    (
        "Ulysses sequence parallelism with sp_size=2: grad_norm under ZeRO-2 is twice that of ZeRO-3.",
        "F56",
    ),
    (
        "I unfroze the merger and then called get_peft_model; afterwards the merger was "
        "frozen again and doesn't train.",
        "F60",
    ),
    (
        "google/umt5-small with gradient checkpointing enabled: the loss stalls, no encoder "
        "block has gradients.",
        "F62",
    ),
    (
        "ZeRO-3: after the evaluation loop deepspeed complains about parameters that are still in flight.",
        "F70",
    ),
    (
        "accelerate's gradient accumulation with deepspeed zero2 dies because no_sync is not allowed there.",
        "F71",
    ),
    (
        "non-reentrant checkpoint: the number of tensors saved in the recompute is different "
        "from the forward's.",
        "F72",
    ),
    (
        "ddp static_graph=True for LLaVA training: torch fails as the graph changed between "
        "iterations when a batch has no image.",
        "F74",
    ),
    (
        "resize_token_embeddings after zero.Init: AttributeError, Parameter has no ds_id.",
        "F76",
    ),
    (
        "Training Qwen2-Audio with sp_size=2: labels are shifted twice, so the model learns "
        "to predict the token after next.",
        "F85",
    ),
    (
        "FSDP LoRA: adapter_model.safetensors saved at the end is empty, no tensor in it. peft 0.21",
        "F91",
    ),
    (
        "Training Qwen2.5-VL under FSDP hangs as soon as some batches do not contain images.",
        "F11",
    ),
    (
        "The num_items_in_batch parameter should be included when compute_loss is overridden.",
        "F28",
    ),
    ("LLaMA-Factory 微调时报 no_sync 和梯度累积不兼容", "F71"),
    (
        "PEFT with DDP: gradient checkpointing is not supported where a layer is checkpointed multiple "
        "times, as in two forward passes of a reward trainer.",
        "F3",
    ),
    (
        "The vision LoRA gets zero gradients on Gemma 4: requires_grad_for_gradient_checkpointing puts its "
        "hook on the language model.",
        "F5",
    ),
    ("Input grads are enabled: a patch that is needed for gradient checkpointing with LoRA.", "F5"),
    ("指令精调后 adapter_model.bin 只有158KB，deepspeed 用的是 zero3", "F25"),
    ("After the first episode: our trainer's _save_checkpoint does not accept metrics.", "F28"),
    ("deepspeed stage3 全量微调，保存的 pytorch_model.bin 只有905kb", "F25"),
    (
        "Missing keys when loading checkpoints with DeepSpeed and HF Trainer; only with PEFT models.",
        "F43",
    ),
    ("unsloth on two GPUs: DDP says a vision parameter was marked ready twice.", "F33"),
    (
        "ZeRO-3: the backward returns an invalid gradient for my adapter, it expected [12480] and got [0].",
        "F26",
    ),
    ("Allow non-uniform requires_grad in one FlatParameter of FSDP.", "F38"),
    ("After training with the alpaca script adapter_model.bin is only 443 bytes.", "empty-adapter"),
    ("训练结束后 adapter_model.bin 只有 443 字节", "empty-adapter"),
    ("VLM 全量 sft，多卡图文混训卡住", "F11"),
    ("_gradient_checkpointing_func is not enabled in finetune.sh, downgrading transformers helps.", "D"),
    ("Under ZeRO-2 the grad norm differs from run to run unless overlap_comm is false.", "F54"),
    ("zero2 下 overlap_comm 打开后 loss 每次都不一致，关闭就正常", "F54"),
    (
        "resize_token_embeddings under DeepSpeed ZeRO-3 leaves a vocab_size of 0 in the configuration.",
        "F26",
    ),
    ("The loss does not match when gradient accumulation is on, with transformers' Trainer.", "F15"),
    ("zero3+lora 训练，保存的 checkpoint 不完整，很多 LoRA 参数丢失了", "F25"),
    (
        "DDP on two GPUs, gradient checkpointing and two losses in one step: the parameters are out of sync.",
        "F6",
    ),
    ("The params INFLIGHT error comes up under ZeRO-3 every few iterations.", "F70"),
    ("The Trainer of transformers does not take that argument anymore.", "versions"),
    ("Linear layers fail: a dtype mismatch between the bf16 weights and the float32 inputs.", "dtype"),
    ("微调时报错：图像特征和 token 数量对不上", "data"),
    (
        "QLoRA in 4 bits does not work with DeepSpeed ZeRO-3: it is not compatible with bitsandbytes.",
        "quantized",
    ),
    ("If use_reentrant is not given explicitly, torch raises an exception.", "F6"),
    ("Fine-tuning ends with a SIGKILL on all ranks and no other message.", "killed"),
    ("Both of our scripts show error code -11 when we train the merger.", "crash"),
    ("这次不是显存，是内存一直涨", "killed"),
    ("训练到第四千步时显存会爆掉", "out-of-memory"),
    ("With ZeRO-3 we have grad_norm nan after a hundred steps of training.", "nan"),
    ("Fine-tuning LLaVA on two cards ends soon; we ran out of VRAM, it seems.", "out-of-memory"),
    ("微调 InternVL 保存时进程收到 SIGKILL，没有 GPU OOM", "killed"),
    ("The stage-2 script trains on a mixture that is not listed in the mixtures .yaml file", "data"),
    ("Fine-tuning fails: where should the dataset lie, and where do I put the data?", "data"),
    ("Training on my videos fails. Use only one 'video>' per conversation, in its first turn.", "data"),
    ("Multi-GPU fine-tuning: that error goes away with self.model.module.config instead", "wrapped-model"),
    ("It is a bug in our code: please replace the decorator's name by the other one.", "script"),
    ("Training ends with an error\nWith an older commit it works again.", "versions"),
    ("The vision tower is not compatible with sdpa in the current release of transformers", "versions"),
    ("Processor 报错\n可能是版本的原因，transformers 升级一下", "versions"),
    ("The bug in training is due to transformers 4.41", "versions"),
    ("Our model is missing from the registry of supported models, so training fails", "versions"),
    ("微调报错\n更新 colossalai 后解决", "versions"),
    ("The converter requires python<3.10 while the trainer needs python>=3.11", "environment"),
    ("Weight/key mismatch when the policy is loaded with a new transformers", "mismatched-weights"),
    ("The bash script for training names train_quux.py, but that file is missing in the repo", "files"),
    ("两机训练，开启 vllm 之后一直卡住", "server"),
    ("Same problem: make sure that the dataset path is correct, that solved it.", "data"),
    ("按 README 安装环境一直失败，怎么装都不行", "environment"),
    ("The model has changed in its latest release\nWith the previous one it answers well.", "versions"),
    ("The picture has my error\nIt is caused by a bug in peft that was fixed on Monday.", "versions"),
    ("The notebook does not work: I guess a specific version of each package is needed", "versions"),
    ("Fine-tuning on one A100: the GPU is not fully utilized, its utilization drops to zero", "slow"),
    ("Stage two stops: 404, Not Found for url: https://example.org/a.pth", "hub"),
    ("/usr/bin/ld: cannot find -lcuda", "extension"),
]
MAYBE = [
    ("VLM-R1\n无论是否冻结视觉部分，可训练参数都一样", "F60"),
    (
        "DeepSpeed ZeRO-2 hangs after some steps\nThe tensor shape on rank 0 differs from the others",
        "F16",
    ),
    ("Training a VLA on four GPUs\nThe total time is no different from that of one of the GPUs", "slow"),
    ("swift sft qwen2-vl\n断点续训时，在大数据集上一直卡在0%", "slow"),
    ("MiniCPM-V fine-tuning\nThe script fails for lack of that file", "files"),
    ("LLaVA\nI cannot load the finetuned model: the image_processor is none", "tokenizer"),
    ("Fine-tuning of LLaVA-NeXT\nThe requirements.txt does not work for this model", "versions"),
    ("qwen3omni 训练\n当前最新的transformers把image和video解耦，但还是调用image_processor", "versions"),
    ("The examples of vision models do not work because of missing input_ids", "data"),
    ("InternVL 微调\n应该是数据集构建出了问题", "data"),
    ("LLaMA 微调 LLaVA\n好像是我的版本有问题，更新下包再试", "versions"),
    ("The new SFTTrainer does not accept the tokenizer", "versions"),
    (
        "LLaVA with xtuner\nLast month I could run this script without problems, but now I have an error",
        "versions",
    ),
    ("FSDP fails here\nI think you need to update to pytorch 2.0", "versions"),
    ("# 环境\n运行时有 flash-attn 版本冲突", "versions"),
    ("DPO 训练\n使用最新 swift 框架、trl 库，Qwen 训练报错", "versions"),
    ("GRPO 训练 Qwen\n使用上一个版本运行没有问题", "versions"),
    ("A fix\nTraining is resumed without optimizer state, and the loss jumps", "no-state"),
    ("Qwen2-VL 微调出错\n看下环境中 torch 的 cuda 版本和 nvcc 是否一致", "environment"),
    ("Qwen2.5-VL\nThe trainer has already tokenized the messages, and the collator gets ids", "data"),
    ("InternVL\nWeights saved from a run of lora can not be merged or loaded", "mismatched-weights"),
    ("部署\n合并以后 lora 参数没有加载上", "mismatched-weights"),
    ("Sync our tools to the newest Megatron\nThe provider is missing a parameter", "versions"),
    ("Fine-tuning\nSince version 0.12 of trl the usage of SFTTrainer has changed.", "versions"),
    ("A training error\nafter we update trl to 0.15.2 it can work", "versions"),
    ("LLaVA training\nThe new release of trl breaks our trainer.", "versions"),
    ("Qwen 多卡微调报错\n我用的新模型，换成老模型就可以了", "versions"),
    ("GRPO stops\nOnly one node can join: look at ray status on the head", "network"),
    ("加载语音数据\ndataset_num_proc 大于 1 时，map 的时候一直卡", "data"),
    ("FSDP: saving is broken for a sharded model with LoRA", "F91"),
    ("With FSDP, PEFT asks for the state_dict of one rank, and hangs", "F83"),
    ("混合多模态训练 MiniCPM-V，换模型可以跑起来", "F11"),
    ("zero stage 3 dies after the evaluation: call model.train() before resuming", "evaluation-mode"),
    ("A question\nOur LoRA run with zero has a higher memory usage than without", "out-of-memory"),
    ("Fine-tuning the 7B model with LoRA got three times slower with ZeRO-3.", "slow"),
    ("A communication error when we train on four nodes, one node is fine.", "network"),
    ("With use_reentrant=False it works, thank you.", "F6"),
    ("Let us drop back to deepspeed 0.8, the issue with 0.9 is not understood.", "versions"),
    ("ms-swift 从 2.0 升级到 3.0 版本后，原来的训练脚本无法运行", "versions"),
    ("resume_from_checkpoint does not work with deepspeed here", "no-state"),
    ("RuntimeError: size mismatch when we train with llama (deepspeed zero3)", "F24"),
    ("The `size mismatch` error for loading a model that was trained with ZeRO3", "F25"),
    ("全参数微调 MiniCPM-V，单图的数据集训练正常，遇到多图的数据集训练卡住", "F11"),
    (
        "Training LLaVA with the vision encoder trainable under zero2 gets stuck; with the encoder frozen it "
        "goes on",
        "F11",
    ),
    ("deepspeed LoRA checkpoint problem, did not resume", "F43"),
    (
        "The action head's methods are called on .module: DDP's forward is bypassed, and its gradients are "
        "not synchronized.",
        "F10",
    ),
    ("微调 Qwen3-VL，第一个 batch 之后 loss 均为 0", "nan"),
    ("Unable to resume training from LoRA checkpoints when using FSDP", "F82"),
    ("4*A100 80G 训练第 1 个 step 就 OOM 了", "out-of-memory"),
    ("zero3 全参微调，保存检查点时内存不足", "killed"),
    ("zero3 下参数没有被调用时都是空的，LLaVA 的 pos_embed 操作报错", "F26"),
    (
        "Stable multi-task training of Qwen3-VL with deepspeed zero3: it gets stuck since "
        "forward graphs differ.",
        "F11",
    ),
    ("Qwen2.5-Omni 用 zero2 可以跑，zero3 就卡住", "F11"),
    ("generate() in train mode: gradient checkpointing and use_cache do not go together.", "F30"),
    ("Idefics2: use_cache is on with gradient checkpointing, and the backward raises a shape error.", "F20"),
    ("fsdp2: hidden_states is a tensor, lm_head.weight a DTensor, and the product fails.", "F39"),
    ("zero3 加载检查点时提示无法从元张量复制数据", "F24"),
    ("Gradient checkpointing fails with frozen parameters.", "F5"),
    ("Four GPUs do not help: more of them does not accelerate the training of LLaVA", "slow"),
    ("The script that merges the LoRA of Qwen2-VL was killed", "killed"),
    ("Fine-tuning Qwen2-VL: grad_norm is 0 in each step and the loss stays where it is", "nothing-trained"),
    ("Qwen2-VL 微调代码有问题，传进去的只是路径", "script"),
    ("Fine-tuning LLaVA: the flag for the learning rate of the projector is ignored", "configuration"),
    ("微调 Qwen2-VL 时只用到第一张卡，另外三张 gpu 空闲", "launcher"),
    ("Fine-tuning Qwen2-VL: the rollout server of vllm fails after ten steps", "server"),
    ("Fine-tuning LLaVA: the model's download is interrupted again and again, it fails", "hub"),
    ("用自己的数据微调 InternVL，读数据时出现索引越界的报错", "absent-key"),
    ("LLaVA 微调：图片文件不存在，路径不对", "files"),
    ("微调 InternVL：24G 单卡装不下这个模型", "out-of-memory"),
    ("Qwen2.5-VL 微调：训练速度是否正常", "slow"),
    ("LLaVA 微调：视频输入的形状对不上", "shapes"),
]
UNRELATED = [
    "network_train_unet_only, gradient_checkpointing\nelement 0 of tensors does not require grad and "
    "does not have a grad_fn",
    "reference_unet.requires_grad_(True)\ngradient_checkpointing: True\n"
    "RuntimeError: Trying to backward through the graph a second time",
    "verl on two nodes stops at the first step.\n actor.use_torch_compile=False \\\n actor.optim.lr=1e-6 \\",
    'FSDP with Accelerator(mixed_precision="no"), unet.requires_grad_(True): where are my samples?',
    "The vision model is not working with --lora_enable True --gradient_checkpointing True, it starts and "
    "ends: {'train_runtime': 1.3, 'train_loss': 0.0}",
    "kohya_ss: UserWarning: None of the inputs have requires_grad=True, when training a LoRA for SDXL",
    "The LoRA adapter has 79 MB with one release of PEFT and 1 GB with another.",
    "swift sft --model internvl3 --freeze_vit false --deepspeed zero3: 纯文本任务的准确率一直很低",
    "Gradient accumulation gives other losses under DeepSpeed than under FSDP; is ZeRO stage 1 the same?",
    "With another FSDP and two forwards: expected to be in states [<TrainingState.BACKWARD_POST: 4>] but "
    "current state is TrainingState.IDLE",
    "train_dreambooth_lora_sdxl.py: UserWarning: None of the inputs have requires_grad=True. Gradients will "
    "be None",
    "ZeRO-3: the VLM needs full tensors for every batch, so mixed text and image rows are not trained.",
    "create LoRA for U-Net: 192 modules. UserWarning: None of the inputs have requires_grad=True.",
    "Lightning says that my training_step has an unexpected argument.",
    "My LoRA of a lorry detector gets worse, gradient checkpointing is off.",
    "--finetuning_type lora --ddp_find_unused_parameters False: after the training no adapter is there",
    "Resuming under FSDP by torch.distributed.checkpoint: set_optimizer_state_dict takes the optimizer state "
    "by other names",
    "FSDP2, rollout by vLLM, gradient checkpointing: the backward ends in a mismatch of strides.",
    "My dataloader hangs with num_workers=8 on a machine with little shared memory.",
    "Training a YOLO detector under DDP: some parameters are unused, find_unused_parameters fixes it.",
    "The GAN's generator is updated in place, and torch says a "
    "leaf variable is used in an in-place operation.",
    "Saving a checkpoint takes ten minutes because our NFS is slow.",
    "NCCL timeout at init_process_group, the nodes cannot reach each other.",
    "The text-only baseline trains well, the image model overfits after two epochs.",
    "I call loss.backward() twice on the same graph by mistake and torch complains.",
    "The tokenizer adds a token and the embedding must be resized.",
    "Using a slow image processor as `use_fast` is unset; then we train Qwen2-VL with LoRA.",
    "We pass the folder that DeepSpeed saved, and it complains about a missing weights key.",
    "CUDA runs out of memory in the first step with images of 4000 pixels, also under ZeRO-3.",
    "vLLM hangs when serving Qwen3-30B-A3B with tensor parallel 4.",
    "After resuming a ResNet the learning rate is wrong and the loss jumps.",
    "图像分类训练 loss 不下降，学习率从 0.1 调到 0.01 也没有用",
    "下载模型时网络超时，重试几次后卡住",
    "DeepSpeed cannot compile cpu_adam, ninja is missing.",
    "accelerate launch fails: address already in use, port 29500",
    "Can I train Qwen2-VL with ZeRO-3 and LoRA on 2x24 GB?",
    "The loss is nan from the first step when I use fp16 with T5.",
    "My evaluation is twice as slow with gradient checkpointing.",
    "How do I resume training with another dataset?",
    "The vision encoder should be frozen; how do I check which parameters are trained?",
    "We load images without resizing and the collator raises that tensors must have equal size.",
    "ResNet under FSDP: training gets slower the more nodes we add, no error.",
    "After merging LoRA weights the model talks nonsense.",
    "保存的图片是空的，dataloader 读取失败",
    "模型下载后加载很慢，有时候卡住",
    "Lightning: DDP says find_unused_parameters would help, "
    "since the discriminator is skipped every second step.",
    "How do I merge two LoRA adapters with different ranks in PEFT?",
    "ZeRO-3 is slower than ZeRO-2 for my 7B model, is that expected?",
    "FSDP checkpoint to Hugging Face format: which script converts the shards?",
    "vLLM returns other tokens than transformers for Qwen2-VL with the same prompt.",
    "My dataset has text-only and image samples; how should the jsonl look?",
    "Gradient checkpointing increases the step time by 30 %, is there a cheaper way?",
    "训练时 loss 一直是 0，grad_norm 也是 0，数据的 label 都被 mask 了",
    "After resuming, tqdm shows the wrong number of steps.",
    "保存模型太慢，每次要十分钟，能不能异步保存？",
    "CUDA error: device-side assert triggered when training with a new token in the vocabulary.",
    "accelerate config asks for zero stage; which one should I take for 8x A100 40G and a 13B model?",
    "The vision tower is frozen in the official script; why does print_trainable_parameters list it?",
    "Deepspeed cannot find nvcc. How can I install it without root?",
    "My MoE model's load balancing loss explodes after 2k steps, single GPU.",
    "The evaluation hangs when I set dataloader_num_workers to 16 in docker without --shm-size.",
    "Loss is higher with sequence packing; is the attention mask right?",
    "ring attention and ulysses: which one is better for 128k context?",
    "How to use static_graph with DDP to speed up training?",
    "RecurrentGemma fine-tuning: which learning rate do you recommend?",
    "Where does peft save the modules_to_save weights?",
    "DPO reference model: do I need a second copy on the GPU under LoRA?",
    "Gemma 3n audio encoder: how do I prepare the inputs?",
    "Why is the optimizer state twice as large as the model in memory?",
    "Clip gradients by value instead of by norm in Trainer?",
    "Under ZeRO-3 the weight itself is in the attribute ds_tensor, and the shape that I print is 0.",
    "DeepSpeed's MoE layer with ep_size=4 under ZeRO-2 hangs at the last block.",
    "Expert parallel training under ZeRO-1 is stuck in the all-to-all of the MoE layer.",
    "Fine-tuning LLaVA: the loss is 0.35 after an epoch. Is that good?",
    "Mixed data in the template: we return zeros if pixel_values is None and there is no image in the batch.",
    "Is there a dataset registry with a list of all mixtures that LLaVA was trained on?",
    "How do I unwrap the model to save it on one GPU?",
    "Which commit of the repo was used for the paper's results?",
    "Does it require Python 3.11 or does Python 3.10 work as well?",
    "The training script in the README is well written, the repo is great.",
    "We enabled vLLM for rollouts; training is twice as fast.",
    "Fine-tuning LLaVA needs 20 GB of VRAM. Is the batch size of 1 the reason?",
    "Does the dataset path have to be absolute?",
    "The latest release has changed the logo.",
]


@pytest.mark.parametrize(("text", "id_"), TOLD)
def test_a_failure_that_is_told_of_is_named(text: str, id_: str) -> None:
    hit = of(text).hit
    assert hit is not None
    assert hit.failure.id == id_


@pytest.mark.parametrize(("text", "id_"), MAYBE)
def test_what_is_told_of_with_less_is_perhaps_that(text: str, id_: str) -> None:
    found = of(text)
    assert found.hit is None
    assert id_ in [failure.id for failure in found.perhaps]
    assert found.described


@pytest.mark.parametrize("text", UNRELATED)
def test_what_people_write_of_other_things_is_not_claimed(text: str) -> None:
    hit = of(text).hit
    assert hit is None or hit.failure.foreign


def test_what_is_told_in_words_far_apart_is_perhaps_that() -> None:
    between = " It is a machine of eight cards with a fast network, and nothing else runs there." * 5
    found = of(f"DeepSpeed saves the model with ZeRO-3.{between} Then it hangs.")
    assert found.hit is None
    assert ([failure.id for failure in found.perhaps], found.described) == (["F12"], True)


def test_what_is_told_beside_frames_or_a_launcher_that_gave_up_counts() -> None:
    told = "With ZeRO-3 the first checkpoint is saved, and then it hangs:\n"
    frame = '  File "/x/deepspeed/runtime/engine.py", line 1489 in save_checkpoint\n'
    assert of(told + frame * 3).hit is not None
    ended = "Traceback (most recent call last):\n" + frame + "ChildFailedError: \n===\ntrain.py FAILED\n"
    found = of(told + ended).hit
    assert found is not None
    assert found.failure.id == "F12"


def test_what_is_told_counts_only_where_nothing_is_printed() -> None:
    told = "Under ZeRO-3 the run hangs when a rank has text-only samples beside images"
    assert of(told).hit is not None
    assert of(told + "\nKeyError: 'image_path'").hit is None


def test_what_a_setting_is_called_is_nobodys_word() -> None:
    """A launch that names when it saves does not say that it hangs when it saves."""
    stuck = "Qwen2.5-VL under ZeRO-3 is stuck\n\nI run it by\n"
    said = of(stuck + "swift sft it saves each hundred steps\n").hit
    assert said is not None
    assert said.failure.id == "F12"
    for setting in (
        "--save_steps 100 \\",
        "  save_steps: 100",
        '"save_steps": 100,',
        "--save-steps=100",
        "save_steps=100,",
    ):
        found = of(stuck + setting + "\n")
        assert found.hit is None, setting
        assert "F12" not in [failure.id for failure in found.perhaps], setting


def test_what_an_object_prints_of_its_settings_is_nobodys_word() -> None:
    """ms-swift and HF's scripts print all their arguments: what a run was told is not what it suffered."""
    given = (
        "save_only_model=False",
        "save_strategy='steps'",
        "save_on_each_node=False",
        "enable_jit_checkpoint=False",
        "hub_model_id=None",
        "ds3_gather_for_generation=True",
        "resume_only_model=False",
        "resume_from_checkpoint=None",
        "deepspeed={'zero_optimization': {'stage': 3, 'overlap_comm': False}}",
    )
    assert of("resume from checkpoint fails; save only model was set\n").perhaps
    whole = of("[INFO:swift] args: SftArguments(" + ", ".join(given) + ", seed=42)\nTrain:   0%|\n")
    lines = of("TrainingArguments(\n" + ",\n".join(given) + ",\n)\nTrain:   0%|\n")
    assert [whole.hit, *whole.perhaps, lines.hit, *lines.perhaps] == [None, None]


def test_a_zero_that_is_told_of_is_no_fraction() -> None:
    told = "# Fine-tuning of LLaVA\n\nFrom the first step on the loss is {}.\n"
    for zero in ("0", "0.0", "0.00"):
        found = of(told.format(zero)).hit
        assert found is not None, zero
        assert found.failure.id == "nan"
    for other in ("0.05", "0.35", "0.001"):
        assert of(told.format(other)).hit is None, other


def test_beside_an_error_that_nothing_knows_what_a_person_tells_is_perhaps_that() -> None:
    told = "The checkpoint is incomplete: it was saved under ZeRO-3, and not all weights are there.\n"
    found = of(told + "vllm says:\nAssertionError: loaded_weight.shape")
    assert found.hit is None
    assert [failure.id for failure in found.perhaps] == ["F25"]
    assert of(told).hit is not None
    assert not of("vllm says:\nAssertionError: loaded_weight.shape").perhaps
    known = of(told + "RuntimeError: CUDA error: invalid device ordinal")
    assert known.hit is not None
    assert known.hit.failure.id == "devices"


def test_what_is_told_beside_a_traceback_that_is_cut_is_perhaps_that() -> None:
    told = "pytorch_model.bin is only 623 KB after the fine-tuning, and training looked right.\n"
    cut = 'Traceback (most recent call last):\n  File "/x/run.py", line 1, in main\n    load(path)\n'
    found = of(told + cut)
    assert found.hit is None
    assert [failure.id for failure in found.perhaps] == ["F25"]


def test_what_a_title_names_is_the_answer_where_it_is_nothing_of_ours() -> None:
    named = of("# GRPO of Qwen2.5-VL 7B, training ends in OOM\n\nEight cards. What can I do?\n").hit
    assert named is not None
    assert named.failure.id == "out-of-memory"
    told = of(
        "# A question about the table\n\nEach of my attempts to train 34B on eight cards ended in oom.\n"
    )
    assert told.hit is None
    assert [failure.id for failure in told.perhaps] == ["out-of-memory"]
    ours = of("# FSDP hangs when it saves the model\n\nOn four cards, not on two.\n")
    assert ours.hit is None
    assert [failure.id for failure in ours.perhaps] == ["F12"]


def test_what_a_title_names_counts_beside_a_traceback_that_is_cut() -> None:
    cut = 'Traceback (most recent call last):\n  File "/x/run.py", line 1, in main\n    load(path)\n'
    found = of("# GRPO of Qwen2.5-VL 7B, training ends in OOM\n\n" + cut).hit
    assert found is not None
    assert found.failure.id == "out-of-memory"


@given(st.integers(min_value=0, max_value=90))
def test_how_long_a_line_is_does_not_take_a_message_away(more: int) -> None:
    """A line as wide as a terminal may have been cut; what stands in it whole is what it says."""
    found = of(
        "# LLaVA under ZeRO-3 is stuck: Caught RuntimeError in replica 0 on device 0." + "x" * more + "\n\n"
        "Qwen2-VL, text-only samples among images, training hangs.\n"
    ).hit
    assert found is not None
    assert found.failure.id == "data-parallel"


def test_what_programs_print_is_nobody_s_word() -> None:
    line = "`use_cache=True` is incompatible with gradient checkpointing. Setting `use_cache=False`...\n"
    found = of("# LoRA of Qwen2-VL, which template?\n\n" + line + "where do images go\n")
    assert (found.hit, found.perhaps) == (None, ())
