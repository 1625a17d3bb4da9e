#!/usr/bin/env bash
# LoRA of Qwen2-VL with ms-swift 4. With ms-swift 3 write --train_type for --tuner_type.
# swift starts its ranks itself; `run` before it reaches them all.
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen2-VL-2B-Instruct}
DATA=${DATA:-rows.jsonl}
export NPROC_PER_NODE=${NPROC_PER_NODE:-8}

python -m vlmpatch doctor --command "$0"
python -m vlmpatch run swift sft --model "$MODEL" --model_type qwen2_vl --template qwen2_vl --dataset "$DATA" \
  --tuner_type lora --freeze_vit false --gradient_checkpointing true --deepspeed zero2 \
  --per_device_train_batch_size 1 --output_dir "${OUTPUT:-out}" "$@"
