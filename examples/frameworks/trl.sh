#!/usr/bin/env bash
# The same with TRL: trl_sft.py imports vlmpatch itself, and needs no `run`.
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen2-VL-2B-Instruct}
DATA=${DATA:-rows.jsonl}

python -m vlmpatch doctor --command "$0"
torchrun --nproc_per_node "${NPROC_PER_NODE:-8}" "$(dirname "$0")/trl_sft.py" \
  --model "$MODEL" --data "$DATA" --output_dir "${OUTPUT:-out}" "$@"
