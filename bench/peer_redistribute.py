"""The cases of bench_redistribute for PyTorch's DTensor, over Gloo among processes started here.

One JSON line per case: {"bench": "redistribute", "case", "ranks", "peer_us", "peer_plain_us"}; peer_plain_us is the bare
collective of torch.distributed on tensors of the same sizes. Medians over rounds in which both take turns.
Usage: python bench/peer_redistribute.py [RANKS]
"""

import json
import socket
import statistics
import sys
import time
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh

ROUNDS, SECONDS = 5, 0.05


def time_together(run, count):
    dist.barrier()
    start = time.perf_counter()
    for _ in range(count):
        run()
    dist.barrier()
    return (time.perf_counter() - start) / count * 1e6


def choose_count(run):
    time_together(run, 3)
    count = torch.tensor(max(3, int(SECONDS * 1e6 / time_together(run, 5))))
    dist.broadcast(count, 0)
    return int(count)


def bare_gather(local, ranks):
    output = torch.empty(local.shape[0] * ranks, *local.shape[1:])
    return lambda: dist.all_gather_into_tensor(output, local)


def bare_reduce(local, ranks):
    value = local.clone()
    return lambda: dist.all_reduce(value)


def bare_reduce_scatter(local, ranks):
    output = torch.empty(local.shape[0] // ranks, *local.shape[1:])
    return lambda: dist.reduce_scatter_tensor(output, local)


def bare_all_to_all(local, ranks):
    inputs = local.reshape(-1)
    output = torch.empty_like(inputs)
    return lambda: dist.all_to_all_single(output, inputs)


CASES = [
    ("Shard(0) -> Replicate", Shard(0), Replicate(), 64, bare_gather),
    ("Partial -> Replicate", Partial(), Replicate(), 64, bare_reduce),
    ("Partial -> Shard(0)", Partial(), Shard(0), 64, bare_reduce_scatter),
    ("Shard(0) -> Shard(1)", Shard(0), Shard(1), 64, bare_all_to_all),
    ("Replicate -> Shard(0)", Replicate(), Shard(0), 64, None),
    ("large Shard(0) -> Replicate", Shard(0), Replicate(), 1024, bare_gather),
    ("large Partial -> Replicate", Partial(), Replicate(), 1024, bare_reduce),
]


def run_rank(rank, ranks, port):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    for name, source, target, width, bare in CASES:
        full = torch.ones(width, width)
        x = DTensor.from_local(full, mesh, [source]) if source.is_partial() else distribute_tensor(full, mesh, [source])
        here = lambda: x.redistribute(mesh, [target])
        plain = bare(x.to_local().contiguous(), ranks) if bare else (lambda: None)
        counts = choose_count(here), choose_count(plain) if bare else 0
        here_us, plain_us = [], []
        for _ in range(ROUNDS):
            here_us.append(time_together(here, counts[0]))
            plain_us.append(time_together(plain, counts[1]) if bare else 0.0)
        if rank == 0:
            figures = {"bench": "redistribute", "case": name, "ranks": ranks, "peer_us": round(statistics.median(here_us), 1),
                       "peer_plain_us": round(statistics.median(plain_us), 1)}
            print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    multiprocessing.spawn(run_rank, (count, port), nprocs=count)
