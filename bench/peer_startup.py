"""The case of bench_startup for PyTorch's DTensor: what comes on top of importing torch and making a tensor.

One JSON line: {"bench": "startup", "case", "ranks", "peer_plain_ms", "peer_ms"} of ranks started here: the slowest rank's load of
torch, and what comes on top for the rank that has loaded last.
Usage: python bench/peer_startup.py [RANKS]
"""

import json
import os
import socket
import subprocess
import sys
import time
import warnings


def run_rank(rank, ranks, port):
    start = time.perf_counter()
    warnings.filterwarnings("ignore")
    import torch

    torch.set_num_threads(1)
    torch.ones(8, 8).sum().item()
    loaded = time.perf_counter()
    import torch.distributed as dist
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    square = ranks % 2 == 0 and ranks > 2
    mesh = init_device_mesh("cpu", (2, ranks // 2) if square else (1, ranks), mesh_dim_names=("dp", "tp"))
    x = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0), Shard(1)]).requires_grad_()
    y = torch.mm(x, x.t())
    y.sum().backward()
    assert (y.detach().full_tensor() == 8).all()
    figures = torch.tensor([loaded - start, loaded - time.perf_counter()], dtype=torch.float64) * 1e3
    dist.all_reduce(figures, dist.ReduceOp.MAX)
    if rank == 0:
        line = {"peer_plain_ms": round(figures[0].item(), 1), "peer_ms": round(-figures[1].item(), 1)}
        print(json.dumps({"bench": "startup", "case": "to the first results", "ranks": ranks, **line}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        run_rank(*map(int, sys.argv[1:]))
    else:
        count = int(sys.argv[1]) if len(sys.argv) > 1 else 4
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        ranks = [
            subprocess.Popen([sys.executable, __file__, str(rank), str(count), str(port)], env=os.environ) for rank in range(count)
        ]
        sys.exit(max(process.wait() for process in ranks))
