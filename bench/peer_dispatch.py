#!/usr/bin/env python3
"""bench_dispatch's cases on PyTorch's own DTensor: one JSON line per case, peer_plain_ns and peer_ns.

Run with the interpreter that setup.sh made: .venv/bin/python3 bench/peer_dispatch.py [FILTER]. Four ranks, of which only
this one exists (PyTorch's fake process group): no case communicates.
"""

import gc
import json
import statistics
import sys
import time
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

ROWS, COLUMNS, ROUNDS, SECONDS = 8, 8, 5, 0.03

CASES = {  # name: (call, differentiable)
    "detach": (lambda i: i.a.detach(), False),
    "add": (lambda i: i.a + i.b, True),
    "add_number": (lambda i: i.a + 1.5, True),
    "add_": (lambda i: i.a.add_(i.b), False),
    "mul_number_": (lambda i: i.a.mul_(1.0), False),
    "add_out": (lambda i: torch.add(i.a, i.a, out=i.b), False),
    "where": (lambda i: torch.where(i.flags, i.a, i.b), True),
    "relu": (lambda i: torch.relu(i.a), True),
    "gelu": (lambda i: F.gelu(i.a), True),
    "pow": (lambda i: i.a.pow(2), True),
    "to_bfloat16": (lambda i: i.a.to(torch.bfloat16), True),
    "clone": (lambda i: i.a.clone(), True),
    "copy_": (lambda i: i.a.copy_(i.b), False),
    "zeros_like": (lambda i: torch.zeros_like(i.a), False),
    "mm": (lambda i: torch.mm(i.a, i.w), True),
    "linear": (lambda i: F.linear(i.batch, i.w, i.v), True),
    "bmm": (lambda i: torch.bmm(i.batch, i.batch.transpose(1, 2)), True),
    "transpose": (lambda i: i.a.transpose(0, 1), True),
    "view": (lambda i: i.batch.view(-1, 4 * COLUMNS), True),
    "reshape": (lambda i: i.batch.reshape(-1, 2, 2, COLUMNS), True),
    "slice": (lambda i: i.a[:, 2:6], True),
    "select": (lambda i: i.a.select(1, 3), True),
    "expand": (lambda i: i.a.unsqueeze(1).expand(-1, 4, -1), True),
    "cat": (lambda i: torch.cat([i.a, i.b], 1), True),
    "stack": (lambda i: torch.stack([i.a, i.b], 1), True),
    "split": (lambda i: i.a.split(4, 1)[1], True),
    "sum": (lambda i: i.a.sum(1), True),
    "mean": (lambda i: i.a.mean(1), True),
    "softmax": (lambda i: torch.softmax(i.a, -1), True),
    "layer_norm": (lambda i: F.layer_norm(i.a, (COLUMNS,), i.v, i.v), True),
    "embedding": (lambda i: F.embedding(i.index, i.w), True),
    "dropout": (lambda i: F.dropout(i.a, 0.5, True), True),
    "uniform_": (lambda i: i.a.uniform_(), False),
    "foreach_add_10": (lambda i: torch._foreach_add_(i.many, 1.0), False),
}


class Inputs:
    def __init__(self, cut=lambda t: t, whole=lambda t: t):
        self.a, self.b = (cut(torch.randn(ROWS, COLUMNS)) for _ in range(2))
        self.w, self.v = whole(torch.randn(COLUMNS, COLUMNS)), whole(torch.randn(COLUMNS))
        self.batch = cut(torch.randn(ROWS, 4, COLUMNS))
        self.index = cut(torch.randint(0, COLUMNS, (ROWS,)))
        self.flags = cut(torch.rand(ROWS, COLUMNS) > 0.5)
        self.many = [cut(torch.randn(ROWS, COLUMNS)) for _ in range(10)]

    def require_grad(self):
        for tensor in (self.a, self.b, self.w, self.v, self.batch):
            tensor.requires_grad_()
        return self


def time_calls(run, count):
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count * 1e9


def measure(name, plain, peer):
    if not any(text in name for text in sys.argv[1:] or [""]):
        return
    line = {"bench": "dispatch", "case": name}
    try:
        counts = []
        for run in (plain, peer):
            time_calls(run, 50)
            counts.append(max(10, int(SECONDS * 1e9 / time_calls(run, 50))))
        gc.disable()
        figures = [[time_calls(run, count) for run, count in zip((plain, peer), counts)] for _ in range(ROUNDS)]
        gc.enable()
        line["peer_plain_ns"], line["peer_ns"] = (round(statistics.median(column)) for column in zip(*figures))
    except Exception as error:  # noqa: BLE001  (a case that it refuses)
        line["peer_error"] = f"{type(error).__name__}: {error}"[:120]
    print(json.dumps(line), flush=True)


def chain(x, w):
    def run():
        y = x
        for _ in range(10):
            y = torch.relu(torch.mm(y, w))
        torch.autograd.grad([y], [x, w], [torch.ones_like(y)])

    return run


def main():
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))

    def place(placement):
        return lambda tensor: DTensor.from_local(tensor, mesh, [placement], run_check=False)

    plain, placed = Inputs(), Inputs(place(Shard(0)), place(Replicate()))
    with torch.no_grad():
        for name, (run, _) in CASES.items():
            measure(name, lambda: run(plain), lambda: run(placed))
    plain, placed = Inputs().require_grad(), Inputs(place(Shard(0)), place(Replicate())).require_grad()
    for name, (run, differentiable) in CASES.items():
        if differentiable:
            measure(name + " grad", lambda: run(plain), lambda: run(placed))
    x, w = torch.randn(64, 64), torch.randn(64, 64) / 8
    whole = place(Replicate())
    pairs = [(x.clone().requires_grad_(), w.clone().requires_grad_()), (whole(x).requires_grad_(), whole(w).requires_grad_())]
    measure("10 x (mm, relu) backward", *(chain(*pair) for pair in pairs))


main()
