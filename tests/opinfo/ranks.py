"""Runs a program on rank threads of this process, and makes a Python process enough like a C++ program for that."""

import contextlib
import functools
import gc
import math
import sys
import threading
import types

import torch
import torch._meta_registrations as meta_registrations

COLLECTIVE_TIMEOUT = 8.0  # s; longer than any wait of a healthy run on a busy machine
PATIENCE = 2.0  # s that a rank that threw waits for the others to end too


class RankResult(types.SimpleNamespace):
    """What one rank brings back: values (whole), placements, record (dtensor_opinfo.Record), largest (bytes)."""


def run(library, options, program, sample, combination, outs, out_placements):
    """One (RankResult, None, False) or (None, error, alone) per rank; extension.cpp says what `alone` is."""

    def body(rank):
        random_numbers.enter_rank()
        is_faulty = options.fault and rank == math.prod(options.mesh) - 1
        tensors = {}
        for i, names in zip(sample.tensors, combination):
            value = sample.leaves[i].logical_not() if is_faulty else sample.leaves[i]
            tensors[i] = library.distribute(value.to(sample.leaves[i].dtype), options.mesh, list(names))
        placed_outs = [library.distribute(out, options.mesh, list(names)) for out, names in zip(outs, out_placements)]
        largest = max(library.local_bytes(tensor) for tensor in tensors.values())
        with library.Record() as record:
            results = program.run(sample, tensors, placed_outs)
        is_tensor = [isinstance(r, torch.Tensor) for r in results]
        placements = [library.placements(r) if t else None for r, t in zip(results, is_tensor)]
        values = [library.full(r) if t else r for r, t in zip(results, is_tensor)]
        return RankResult(values=values, placements=placements, record=record, largest=largest)

    return library.run_ranks(math.prod(options.mesh), body, COLLECTIVE_TIMEOUT, PATIENCE)


class RandomNumbers:
    """Gives each rank thread a generator of its own, as ranks that are processes have.

    A few operators draw plain tensors inside (svd_lowrank); their samples set a seed first. LibTorch's generator belongs to
    the process: the ranks would draw different numbers from it.
    """

    def __init__(self):
        self.of_thread = threading.local()
        self.manual_seed = torch.manual_seed

    def enter_rank(self):
        self.of_thread.generator = torch.Generator()

    def install(self):
        torch.manual_seed = self._manual_seed
        for name in ("rand", "randn"):
            setattr(torch, name, self._with_generator(getattr(torch, name)))

    def _manual_seed(self, seed):
        generator = getattr(self.of_thread, "generator", None)
        return generator.manual_seed(seed) if generator else self.manual_seed(seed)

    def _with_generator(self, factory):
        def draw(*args, **kwargs):
            generator = getattr(self.of_thread, "generator", None)
            if generator:
                kwargs.setdefault("generator", generator)
            return factory(*args, **kwargs)

        return draw


random_numbers = RandomNumbers()


def unlock_cached_properties():
    """Before Python 3.12 a cached_property holds one lock for all objects while it computes.

    A rank that waits for the others in a collective inside one would keep them from ever arriving. No object here belongs
    to two ranks.
    """
    stock = functools.cached_property.__init__

    def init(self, function):
        stock(self, function)
        self.lock = contextlib.nullcontext()

    functools.cached_property.__init__ = init
    for existing in gc.get_objects():
        if isinstance(existing, functools.cached_property):
            existing.lock = contextlib.nullcontext()


def prepare_process():
    torch.set_num_threads(1)
    unlock_cached_properties()
    sys.setswitchinterval(1e-4)  # s; ranks take turns more often than Python's 5 ms
    random_numbers.install()
    # Importing torch registers kernels written in Python for the Meta backend, on which this library works out shapes. A C++
    # program does not have them, and some do not accept what C++ may pass.
    meta_registrations._meta_lib_dont_use_me_use_register_meta._destroy()
