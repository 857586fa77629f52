"""What is done with a sample: one program per mode, the same code for plain tensors and for DTensors.

A program is called with the sample's arguments, (input, args, kwargs), and returns a flat list of results.
"""

import torch

from samples import pytree


def flatten(results):
    flat = []
    for leaf in pytree.tree_leaves(results):
        # LibTorch's named results (torch.return_types.max) are leaves to pytree.
        flat += flatten(tuple(leaf)) if isinstance(leaf, tuple) and leaf else [leaf]
    return flat


class Forward:
    samples, combinations = 4, 8  # how many are tried: of an operator, of a sample
    backward = False

    def __init__(self, operator):
        self.operator = operator

    def expected(self, sample):
        """The results on plain tensors; none when the sample is of no use. May throw."""
        return self.run(*sample.arguments())

    def run(self, input, args, kwargs):
        return flatten(self.operator(input, *args, **kwargs))


class InPlace(Forward):
    def run(self, input, args, kwargs):
        returned = self.operator.get_inplace()(input, *args, **kwargs)
        return flatten((returned, input))


class Out(Forward):
    """Writes into tensors that are made beforehand, of the sizes of the results. `outs` are placed as the inputs are."""

    def expected(self, sample):
        results = self.operator(*_spread(sample.arguments()))
        self.is_tuple = not isinstance(results, torch.Tensor)
        results = flatten(results)
        return results if all(isinstance(r, torch.Tensor) and r.layout == torch.strided for r in results) else []

    def run(self, input, args, kwargs, outs):
        self.operator(input, *args, **kwargs, out=tuple(outs) if self.is_tuple else outs[0])
        return outs


class Backward(Forward):
    """The gradients of sum(o * o) over all differentiable outputs o."""

    samples, combinations = 3, 5
    backward = True

    def expected(self, sample):
        leaves = {}
        for i in sample.tensors:
            leaf = sample.leaves[i]
            leaves[i] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
        outputs = self.forward(sample, leaves)
        return self.gradients(outputs, leaves) if outputs else []

    def forward(self, sample, leaves):
        # Copies, because some operators write to their input, which a leaf does not allow.
        input, args, kwargs = sample.arguments({i: leaf.clone() for i, leaf in leaves.items()})
        results = flatten(self.operator(input, *args, **kwargs))
        return [r for r in results if isinstance(r, torch.Tensor) and r.is_floating_point() and r.requires_grad]

    def gradients(self, outputs, leaves):
        wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
        return list(torch.autograd.grad(sum((o * o).sum() for o in outputs), wanted, allow_unused=True)) if wanted else []


def _spread(arguments):
    input, args, kwargs = arguments
    return [input, *args] if not kwargs else _Call(input, args, kwargs)
