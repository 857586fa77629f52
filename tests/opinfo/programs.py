"""What is done with a sample: one program per mode, the same code for plain tensors and for DTensors.

A program runs on a sample's tensors, given as {index of the leaf: tensor}, and returns a flat list of results.
"""

import torch

from compare import first_difference
from samples import pytree


def flatten(results):
    flat = []
    for leaf in pytree.tree_leaves(results):
        # LibTorch's named results (torch.return_types.max) are leaves to pytree.
        flat += flatten(tuple(leaf)) if isinstance(leaf, tuple) and leaf else [leaf]
    return flat


class ForwardRefused(Exception):
    """Backward could not be tried, because forward threw."""


class OutDiffers(Exception):
    """LibTorch's own out= form gives other values than the operator (ihfft2 along one dimension): no reference."""


class Forward:
    samples, combinations = 4, 8  # how many are tried: samples of an operator, placements of a sample
    backward = False

    def __init__(self, operator):
        self.operator = operator

    def expected(self, sample):
        """The results on plain tensors; none when the sample is of no use. May throw."""
        return self.run(sample, sample.copies())

    def outs(self, expected):
        """Plain tensors that the program writes its results to; they are placed and handed to `run`."""
        return []

    def run(self, sample, tensors, outs=()):
        input, args, kwargs = sample.arguments(tensors)
        return flatten(self.operator(input, *args, **kwargs))


class InPlace(Forward):
    def run(self, sample, tensors, outs=()):
        input, args, kwargs = sample.arguments(tensors)
        returned = self.operator.get_inplace()(input, *args, **kwargs)
        return flatten((returned, input))


class Out(Forward):
    def expected(self, sample):
        input, args, kwargs = sample.arguments(sample.copies())
        results = self.operator(input, *args, **kwargs)
        self.is_single = isinstance(results, torch.Tensor)
        results = flatten(results)
        if not all(isinstance(r, torch.Tensor) and r.layout == torch.strided for r in results):
            return []
        written = self.run(sample, sample.copies(), self.outs(results))
        if (text := first_difference(written, results)) is not None:
            raise OutDiffers(text)
        return results

    def outs(self, expected):
        return [torch.zeros_like(result) for result in expected]

    def run(self, sample, tensors, outs=()):
        input, args, kwargs = sample.arguments(tensors)
        self.operator(input, *args, **kwargs, out=outs[0] if self.is_single else tuple(outs))
        return list(outs)


class Backward(Forward):
    """The gradients of sum(o * o) over all differentiable outputs o."""

    samples, combinations = 3, 5
    backward = True

    def run(self, sample, tensors, outs=()):
        for i, tensor in tensors.items():
            tensor.requires_grad_(sample.leaves[i].requires_grad)
        wanted = [tensor for tensor in tensors.values() if tensor.requires_grad]
        try:
            # Copies, because some operators write to their input, which a leaf does not allow.
            results = super().run(sample, {i: tensor.clone() for i, tensor in tensors.items()})
        except Exception as error:
            raise ForwardRefused(f"{type(error).__name__}: {error}") from error
        outputs = [r for r in results if isinstance(r, torch.Tensor) and r.is_floating_point() and r.requires_grad]
        if not outputs or not wanted:
            return []
        return list(torch.autograd.grad(sum((o * o).sum() for o in outputs), wanted, allow_unused=True))


def program_for(operator, options):
    kind = Backward if options.backward else InPlace if options.inplace else Out if options.out else Forward
    return kind(operator)
