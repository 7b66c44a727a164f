#!/bin/bash
# A pretraining run on Slurm: two machines of eight GPUs. Submit it again, and it goes on where it was.
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

# Where the first machine can be reached; the port hangs on the job, so that two jobs do not meet.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000))

# The folders must lie on storage that all machines share.
srun torchrun \
    --nnodes "$SLURM_NNODES" --nproc-per-node 8 \
    --rdzv-backend c10d --rdzv-endpoint "$head:$port" --rdzv-id "$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" \
    -m openalbert pretrain albert-base --data shards --out runs/albert-base --save-every 500 &
run=$!

# Five minutes before the time is up Slurm tells this script. It passes that on; the run writes a checkpoint and ends.
stopped=""
trap 'stopped=yes; kill -TERM "$run" 2>/dev/null' TERM

wait "$run"
code=$?
if [ -n "$stopped" ]; then
    wait "$run"  # the first wait was cut short by the signal
    scontrol requeue "$SLURM_JOB_ID"
    exit 143
fi
exit "$code"
