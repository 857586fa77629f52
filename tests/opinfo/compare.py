"""Whether results are the same: shape, dtype and values."""

import torch

TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 2e-2}  # relative and absolute; integers are compared exactly
DEFAULT_TOLERANCE = 1e-3
REPLICAS = 0.1  # ranks must agree more closely than that with each other: this part of the tolerance


def _dense(tensor):
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def difference(actual, expected, factor=1.0):
    """What is wrong with one result, in words, or None."""
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        same = actual == expected or (actual != actual and expected != expected)  # NaN
        return None if type(actual) is type(expected) and same else f"{actual!r:.60} instead of {expected!r:.60}"
    if actual.shape != expected.shape:
        return f"shape {tuple(actual.shape)} instead of {tuple(expected.shape)}"
    if actual.dtype != expected.dtype:
        return f"dtype {actual.dtype} instead of {expected.dtype}"
    actual, expected = _dense(actual), _dense(expected)
    if not (actual.is_floating_point() or actual.is_complex()):
        differ = int((actual != expected).sum())
        return f"{differ} of {actual.numel()} values differ" if differ else None
    tolerance = factor * TOLERANCES.get(actual.dtype, DEFAULT_TOLERANCE)
    wide = torch.complex128 if actual.is_complex() else torch.float64
    actual, expected = actual.to(wide), expected.to(wide)
    close = torch.isclose(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    if bool(close.all()):
        return None
    at = int((~close).flatten().nonzero()[0])
    return (f"{int((~close).sum())} of {close.numel()} values differ, the first one {actual.flatten()[at].item():.5g} "
            f"instead of {expected.flatten()[at].item():.5g}")


def first_difference(actual, expected, factor=1.0):
    if len(actual) != len(expected):
        return f"{len(actual)} results instead of {len(expected)}"
    for number, (one, other) in enumerate(zip(actual, expected)):
        if (text := difference(one, other, factor)) is not None:
            return f"result {number}: {text}" if len(expected) > 1 else text
    return None
