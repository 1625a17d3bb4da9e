#!/usr/bin/env bash
# sbatch examples/cluster/slurm.sh, in a copy of examples/downstream on a file system that all nodes share.
#SBATCH --job-name=tiny-vl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=04:00:00
set -euo pipefail
export VLMPATCH_LOCK=$PWD/vlmpatch.lock VLMPATCH_STRICT=1
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

# One line a node; they are equal where all nodes would train alike. The job ends here where a patch that is needed is
# not available, or where others would act than the lock has.
srun python -m vlmpatch doctor --digest | sort | uniq --count

# `run` stands behind srun: it switches vlmpatch on for what it starts itself.
srun python -m vlmpatch run torchrun --nnodes "$SLURM_NNODES" --nproc_per_node "${SLURM_GPUS_ON_NODE:-8}" \
  --rdzv_backend c10d --rdzv_id "$SLURM_JOB_ID" --rdzv_endpoint "${hosts[0]}:${PORT:-29500}" \
  -m tiny_vl.train --output out
