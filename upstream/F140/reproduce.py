"""skip_first_batches skips too little of a loader that dispatches batches.

python reproduce.py      # 1 where batches come again, 0 where they do not; two processes, no GPU
"""

import os
import socket
import sys

import torch
import torch.multiprocessing as mp

ROWS, EPOCH, SKIPPED = 16, 1, 2


def rank(number, port, found):
    told = {
        "RANK": number,
        "LOCAL_RANK": number,
        "WORLD_SIZE": 2,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in told.items()}, ACCELERATE_USE_CPU="true")
    import accelerate

    configuration = accelerate.DataLoaderConfiguration(
        dispatch_batches=True, use_seedable_sampler=True, data_seed=1
    )
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=configuration)

    def prepared():
        return accelerator.prepare(
            torch.utils.data.DataLoader(torch.arange(ROWS), batch_size=1, shuffle=True)
        )

    whole = prepared()
    whole.set_epoch(EPOCH)
    due = [row.tolist() for row in whole][SKIPPED:]
    left = accelerator.skip_first_batches(prepared(), SKIPPED)
    left.set_epoch(EPOCH)
    found[number] = (due, [row.tolist() for row in left])
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    import accelerate

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with mp.Manager() as manager:
        found = manager.dict()
        mp.spawn(rank, (port, found), nprocs=2)
        due, left = found[0]
    print(f"accelerate {accelerate.__version__}, {ROWS} rows, two ranks, {SKIPPED} batches skipped")
    print(f"rank 0 should have: {due}")
    print(f"rank 0 has:         {left}")
    sys.exit(left != due)
