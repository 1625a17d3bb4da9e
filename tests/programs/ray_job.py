"""Two Ray actors that train under DDP, as a user writes it: ``python tests/programs/ray_job.py WAY FOLDER``.

WAY is how vlmpatch comes into the workers: ``bare`` (not at all, unless the driver was started with it),
``import`` (the actor's first line), ``hook`` or ``variables`` (Ray's runtime environment). Each rank prints
how far its gradients are from those without checkpointing.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import ray

from vlmpatch_lab.ports import free_port


def import_vlmpatch() -> None:
    """What Ray calls as each worker begins."""
    import vlmpatch  # noqa: F401


def runtime_environment(way: str) -> dict[str, Any]:
    if way == "hook":
        return {"worker_process_setup_hook": import_vlmpatch}
    if way == "variables":
        from vlmpatch.tools.run import environment

        return {"env_vars": {"PYTHONPATH": environment(os.environ)["PYTHONPATH"]}}
    return {}


class Worker:
    def train(self, way: str, rank: int, port: int) -> float:
        if way == "import":
            import vlmpatch  # noqa: F401
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.checkpoint import checkpoint

        class Twice(torch.nn.Module):  # type: ignore[misc]
            """One block, run twice: as a tower over two images."""

            def __init__(self, checkpointed: bool) -> None:
                super().__init__()
                torch.manual_seed(0)
                self.block, self.checkpointed = torch.nn.Linear(4, 4), checkpointed

            def forward(self, x: Any) -> Any:
                for _ in range(2):
                    x = checkpoint(self.block, x) if self.checkpointed else self.block(x)
                return x

        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        dist.init_process_group("gloo", rank=rank, world_size=2)
        gradients = []
        for checkpointed in (False, True):
            model = DistributedDataParallel(Twice(checkpointed))
            x = torch.full((2, 4), rank + 1.0, requires_grad=True)
            model(x).sum().backward()
            gradients.append(model.module.block.weight.grad)
        del model
        dist.destroy_process_group()
        return float((gradients[0] - gradients[1]).abs().max())


def main() -> None:
    way, folder = sys.argv[1:]
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        runtime_env=runtime_environment(way),
        _temp_dir=folder,
    )
    port = free_port()
    actor: Any = ray.remote(num_cpus=1)(Worker)
    workers = [actor.remote() for _ in range(2)]
    for apart in ray.get([worker.train.remote(way, rank, port) for rank, worker in enumerate(workers)]):
        print(f"rank: {apart}")
    ray.shutdown()


if __name__ == "__main__":
    main()
