"""The cases of bench_dispatch for PyTorch's DTensor, on a mesh of one rank (Python: the cost of one call from Python).

One JSON line per case: {"bench": "dispatch", "case", "peer_plain_ns", "peer_ns"}. Both sides take turns in each of five
rounds; the figures are medians. Usage: python bench/peer_dispatch.py [substring of a case's name]
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
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

ROUNDS, SECONDS = 5, 0.02


class Inputs:
    def __init__(self, place):
        torch.manual_seed(0)
        random = lambda *sizes: place(torch.randn(sizes))
        self.a, self.b, self.out, self.row = random(8, 8), random(8, 8), random(8, 8), random(8)
        self.batch, self.other_batch = random(2, 8, 8), random(2, 8, 8)
        self.mask = place(torch.randn(8, 8) > 0)
        self.table, self.indices = random(16, 8), place(torch.randint(0, 16, (8,)))
        self.logits, self.targets = random(8, 16), place(torch.randint(0, 16, (8,)))
        self.weight, self.bias = place(torch.ones(8)), place(torch.zeros(8))
        self.list = [random(8, 8) for _ in range(4)]
        self.gradients = [random(8, 8) for _ in range(4)]
        self.first_moments = [place(torch.zeros(8, 8)) for _ in range(4)]
        self.second_moments = [place(torch.zeros(8, 8)) for _ in range(4)]
        self.steps = [place(torch.ones(())) for _ in range(4)]


def fused_adamw(i):
    torch._fused_adamw_(i.list, i.gradients, i.first_moments, i.second_moments, [], i.steps, lr=1e-6, beta1=0.9,
                        beta2=0.999, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False)


# Differentiable cases take the tensor that requires grad; the others take the inputs alone.
DIFFERENTIABLE = {
    "add": lambda i, x: x + i.b,
    "mm": lambda i, x: x.mm(i.b),
    "transpose": lambda i, x: x.transpose(0, 1),
    "view": lambda i, x: x.view(64),
    "reshape": lambda i, x: x.reshape(4, 16),
    "slice": lambda i, x: x[:, 2:6],
    "cat": lambda i, x: torch.cat([x, i.b], 0),
    "stack": lambda i, x: torch.stack([x, i.b]),
    "split": lambda i, x: x.split(4, 1)[0],
    "sum": lambda i, x: x.sum(0),
    "mean": lambda i, x: x.mean(),
    "softmax": lambda i, x: x.softmax(-1),
    "layer_norm": lambda i, x: F.layer_norm(x, (8,), i.weight, i.bias),
    "relu": lambda i, x: x.relu(),
    "gelu": lambda i, x: F.gelu(x),
    "dropout": lambda i, x: F.dropout(x, 0.5, True),
    "clone": lambda i, x: x.clone(),
    "to dtype": lambda i, x: x.to(torch.float64),
    "where": lambda i, x: torch.where(i.mask, x, i.b),
    "linear": lambda i, x: F.linear(x, i.b, i.row),
}
OTHERS = {
    "detach": lambda i: i.a.detach(),
    "mul_ scalar": lambda i: i.a.mul_(1.0),
    "add_": lambda i: i.a.add_(i.b, alpha=1e-6),
    "add out": lambda i: torch.add(i.a, i.b, out=i.out),
    "rand_like": lambda i: torch.rand_like(i.a),
    "uniform_": lambda i: i.out.uniform_(),
    "embedding": lambda i: F.embedding(i.indices, i.table),
    "cross_entropy": lambda i: F.cross_entropy(i.logits, i.targets),
    "zeros_like": lambda i: torch.zeros_like(i.a),
    "copy_": lambda i: i.out.copy_(i.b),
    "bmm": lambda i: i.batch.bmm(i.other_batch),
    "_foreach_add_ 4": lambda i: torch._foreach_add_(i.list, i.gradients, alpha=1e-6),
    "fused_adamw 4": fused_adamw,
}


def time_calls(run, count):
    start = time.perf_counter_ns()
    for _ in range(count):
        run()
    return (time.perf_counter_ns() - start) / count


def compare(plain, here):
    counts = []
    for run in (plain, here):
        time_calls(run, 20)
        counts.append(max(3, int(SECONDS * 1e9 / time_calls(run, 20))))
    gc.collect()
    gc.disable()
    figures = [(time_calls(plain, counts[0]), time_calls(here, counts[1])) for _ in range(ROUNDS)]
    gc.enable()
    return [statistics.median(column) for column in zip(*figures)]


def main():
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    plain = Inputs(lambda t: t)
    peer = Inputs(lambda t: distribute_tensor(t, mesh, [Shard(0) if t.dim() else Replicate()]))

    def backward(function):
        def run(i):
            x = i.a.detach().requires_grad_()
            function(i, x).sum().backward()
        return run

    def measure(name, run):
        if len(sys.argv) > 1 and sys.argv[1] not in name:
            return
        try:
            plain_ns, peer_ns = compare(lambda: run(plain), lambda: run(peer))
        except Exception as error:  # the peer has no rule for some cases
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:120]}", file=sys.stderr)
            return
        print(json.dumps({"bench": "dispatch", "case": name, "peer_plain_ns": round(plain_ns, 1),
                          "peer_ns": round(peer_ns, 1)}), flush=True)

    for name, function in DIFFERENTIABLE.items():
        with torch.no_grad():
            measure(name, lambda i: function(i, i.a))
        measure(name + " grad", backward(function))
    with torch.no_grad():
        for name, function in OTHERS.items():
            measure(name, function)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
