#!/bin/bash
# A pretraining run on Slurm: two machines of eight GPUs. Submit it again to resume.
#SBATCH --job-name=pretrain
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --signal=B:TERM@300
#SBATCH --open-mode=append
#SBATCH --output=pretrain-%j.log

set -u

# Where the first machine can be reached; the port depends on the job, so that two jobs do not collide.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000))

# The folders must be on storage that all machines share.
srun torchrun \
    --nnodes "$SLURM_NNODES" --nproc-per-node 8 \
    --rdzv-backend c10d --rdzv-endpoint "$head:$port" --rdzv-id "$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" \
    -m openalbert pretrain albert-base --data shards --out runs/albert-base --save-every 500 &
run=$!

# Slurm signals this script five minutes before the time limit. It forwards SIGTERM; the run writes a checkpoint and exits.
stopped=""
trap 'stopped=yes; kill -TERM "$run" 2>/dev/null' TERM

wait "$run"
code=$?
if [ -n "$stopped" ]; then
    wait "$run"  # the signal interrupted the first wait
    scontrol requeue "$SLURM_JOB_ID"
    exit 143
fi
exit "$code"
