"""The job of bench_train for PyTorch's DTensor: the same model, tensor parallel by parallelize_module, over Gloo.

Writes one JSON line a step, {"step_ms", "at"}, to LOG. DATA_PARALLEL is fsdp (fully_shard), naive (an all-reduce per gradient)
or none. Usage: python bench/peer_train.py DP TP STEPS DATA_PARALLEL LOG
"""

import json
import logging
import socket
import sys
import time
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as F
from torch import nn

HIDDEN, LAYERS, HEADS, SEQUENCE, BATCH, VOCABULARY = 256, 4, 8, 128, 8, 256
TEXT = "/usr/share/common-licenses/GPL-3"


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("wq", "wk", "wv", "wo"):
            setattr(self, name, nn.Linear(HIDDEN, HIDDEN, bias=False))

    def forward(self, x):
        batch, length, _ = x.shape
        heads = [w(x).view(batch, length, -1, HIDDEN // HEADS).transpose(1, 2) for w in (self.wq, self.wk, self.wv)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.wo(mixed.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w2 = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x):
        return self.w2(F.gelu(self.w1(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attn, self.norm2, self.mlp = nn.LayerNorm(HIDDEN), Attention(), nn.LayerNorm(HIDDEN), Mlp()

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(SEQUENCE, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tok(tokens) + self.pos(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def split(model, mesh, data_parallel):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for block in model.blocks:
        styles = {f"attn.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")}
        styles |= {"attn.wo": RowwiseParallel(), "mlp.w1": ColwiseParallel(), "mlp.w2": RowwiseParallel()}
        parallelize_module(block, mesh["tp"], styles)
    ends = {"tok": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(output_layouts=Replicate())}
    parallelize_module(model, mesh["tp"], ends)
    if data_parallel == "fsdp":
        for block in model.blocks:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])


def run_rank(rank, dp, tp, steps, data_parallel, log, port):
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=dp * tp)
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    model = Gpt()
    split(model, mesh, data_parallel)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with open(TEXT, "rb") as file:
        text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(1 + rank // tp)
    with open(log, "w") if rank == 0 else open("/dev/null", "w") as lines:
        for _ in range(steps):
            begin = time.perf_counter()
            starts = torch.randint(0, len(text) - SEQUENCE - 1, (BATCH,), generator=generator)
            window = torch.stack([text[start : start + SEQUENCE + 1] for start in starts])
            loss = F.cross_entropy(model(window[:, :-1]).view(-1, VOCABULARY), window[:, 1:].reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            if data_parallel == "naive":
                for parameter in model.parameters():
                    gradient = parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad
                    dist.all_reduce(gradient, group=mesh["dp"].get_group())
                    gradient /= dp
            optimizer.step()
            loss.item()
            lines.write(json.dumps({"step_ms": (time.perf_counter() - begin) * 1e3, "at": time.time()}) + "\n")
            lines.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    dp, tp, steps = map(int, sys.argv[1:4])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    multiprocessing.spawn(run_rank, (dp, tp, steps, sys.argv[4], sys.argv[5], port), nprocs=dp * tp)
