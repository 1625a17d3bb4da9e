#!/usr/bin/env bash
# The same with LLaMA-Factory. Its use_reentrant_gc is true where train.yaml says nothing, and false with vlmpatch.
set -euo pipefail
cd "$(dirname "$0")"

python -m vlmpatch doctor --command "$(basename "$0")"
FORCE_TORCHRUN=1 python -m vlmpatch run llamafactory-cli train train.yaml
