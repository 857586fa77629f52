"""What is tried: PyTorch's operator samples (op_db), and how their tensors are placed.

The choice is that of the measurement of PyTorch's own DTensor which this program's figures are compared with: the first
samples of an operator, and of each a few placements drawn by seed among all that cut at least one input.
"""

import itertools
import math
import random
import sys

import torch
import torch.testing._internal.common_methods_invocations as invocations
import torch.testing._internal.opinfo.definitions  # noqa: F401  (its modules hold sizes too)
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

# Their values are drawn, or not set at all: there is nothing to compare with.
RANDOM = set(
    "bernoulli cauchy exponential geometric log_normal multinomial normal rand_like randn_like randint_like randint randn "
    "uniform empty empty_like empty_permuted empty_strided new_empty new_empty_strided".split()
)
# Samples that state sizes (lengths of segments, masks) which the even sizes do not fit.
UNEVEN_ONLY = {"_segment_reduce", "argwhere"}
# Where the probability of a dropout stands among the arguments after the input, if it is no keyword `dropout_p`.
DROPOUT_ARGUMENT = {"nn.functional.multi_head_attention_forward": 9}
# Sizes that samples are made of. These divide by 2 and by 4; PyTorch's own do not.
EVEN_SIZES = {"L": 24, "M": 12, "S": 4, "XS": 2}
# Above this many placements of one sample, some are drawn instead of all being listed and shuffled.
LISTED = 200_000


def use_even_sizes():
    for module in list(sys.modules.values()):
        name = getattr(module, "__name__", "")
        if name.startswith("torch.testing._internal.opinfo") or name == invocations.__name__:
            for size, value in EVEN_SIZES.items():
                if isinstance(getattr(module, size, None), int):
                    setattr(module, size, value)


def name_of(operator):
    return operator.name + ("." + operator.variant_test_name if operator.variant_test_name else "")


def reason_to_skip(operator, options):
    """Why an operator is not tried at all, or None."""
    name = operator.name
    if name in RANDOM or "dropout" in name or name.startswith("nn.functional.rrelu"):
        return "random or uninitialised values"
    if name in UNEVEN_ONLY and not options.uneven:
        return "its samples state sizes that the even ones do not fit"
    if not operator.supports_dtype(options.dtype, "cpu"):
        return f"no kernel for {options.dtype} on the CPU"
    if options.backward and not (operator.supports_autograd and options.dtype in operator.supported_backward_dtypes("cpu")):
        return "not differentiable"
    if options.inplace and operator.get_inplace() is None:
        return "no in-place form"
    if options.out and not operator.supports_out:
        return "no out= form"
    return None


class Sample:
    """One call of an operator: the leaves of its arguments, and which of them are tensors."""

    def __init__(self, sample):
        self.leaves, self.spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.drops_out = bool(sample.kwargs.get("dropout_p"))  # draws random numbers
        self.tensors = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]

    def is_usable(self):
        tensors = [self.leaves[i] for i in self.tensors]
        if any(t.layout != torch.strided or t.numel() == 0 for t in tensors):
            return False
        return any(t.ndim > 0 for t in tensors)

    def copies(self):
        return {i: self.leaves[i].detach().clone() for i in self.tensors}

    def arguments(self, tensors):
        """(input, args, kwargs) with these tensors, {index of the leaf: tensor}, in their places."""
        leaves = list(self.leaves)
        for i, tensor in tensors.items():
            leaves[i] = tensor
        return pytree.tree_unflatten(leaves, self.spec)

    def shapes(self):
        return ", ".join(str(tuple(self.leaves[i].shape)) for i in self.tensors)


def samples_of(operator, options, backward):
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    for sample in operator.sample_inputs("cpu", options.dtype, requires_grad=backward):
        wrapped = Sample(sample)
        if operator.name in DROPOUT_ARGUMENT:
            wrapped.drops_out = bool(sample.args[DROPOUT_ARGUMENT[operator.name]])
        yield wrapped


def placements_of(tensor, options, pending=True):
    """All placements of one tensor that are tried: a tuple of names each, one per mesh dimension."""
    ranks = math.prod(options.mesh)
    names = ["Replicate"]
    for dim, size in enumerate(tensor.shape):
        if size > 1 if options.uneven else size % ranks == 0:
            names.append(f"Shard({dim})")
    if options.partial and pending and tensor.dtype != torch.bool:
        names.append("Partial(sum)")
    return list(itertools.product(names, repeat=len(options.mesh)))


def combinations_of(sample, options, generator, count):
    """Up to `count` placements of all tensors of a sample, at least one tensor being cut (with --partial: pending)."""
    choices = [placements_of(sample.leaves[i], options) for i in sample.tensors]
    wanted = "Partial" if options.partial else "Shard"

    def counts(combination):
        return any(name.startswith(wanted) for placements in combination for name in placements)

    if math.prod(map(len, choices)) <= LISTED:
        listed = [c for c in itertools.product(*choices) if counts(c)]
        generator.shuffle(listed)
        return listed[:count]
    drawn = {}  # keeps the order
    for _ in range(100 * count):
        combination = tuple(generator.choice(c) for c in choices)
        if counts(combination):
            drawn[combination] = None
        if len(drawn) == count:
            break
    return list(drawn)


def describe(combination):
    return ", ".join(p[0] if len(p) == 1 else "[" + ", ".join(p) + "]" for p in combination)

