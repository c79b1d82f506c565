"""The logarithm of the normal distribution function, also for graphs that know only elementary operations."""

import math

import numpy as np
import torch
from numpy.polynomial import Chebyshev, Polynomial
from torch import Tensor

DEGREE = 10  # more would be lost in the rounding of float32


def log_ndtr(deviations: Tensor) -> Tensor:
    r"""The logarithm of the normal distribution function, :math:`\log \Phi(z)`, accurate far into the lower tail.

    While a graph is exported it consists of elementary operations, with a relative error below 1e-6 in the lower half:
    converted as it is, it would be infinite below -6.

    >>> log_ndtr(torch.tensor([0.0, -100.0]))
    tensor([-6.9315e-01, -5.0055e+03])
    """
    if torch.compiler.is_exporting():
        return elementary_log_ndtr(deviations)
    logarithm: Tensor = torch.special.log_ndtr(deviations)
    return logarithm


def elementary_log_ndtr(deviations: Tensor) -> Tensor:
    r"""The same by :math:`\mathrm{erfc}(x) = t\,e^{P(t) - x^2}` with :math:`t = 1/(1 + x/2)` and a polynomial P."""
    x = deviations.abs() / math.sqrt(2)
    t = 1 / (1 + x / 2)
    exponent = torch.zeros_like(t)
    for coefficient in reversed(COEFFICIENTS):
        exponent = exponent * t + coefficient
    lower = t.log() + exponent - x.square() - math.log(2)
    return torch.where(deviations < 0, lower, torch.log1p(-lower.exp()))


def _coefficients() -> tuple[float, ...]:
    """P, fitted to the logarithm of the scaled complementary error function at Chebyshev's nodes."""
    t = (np.cos(np.pi * (np.arange(400) + 0.5) / 400) + 1) / 2
    scaled = torch.special.erfcx(torch.from_numpy(2 / t - 2)).numpy()
    fitted = Chebyshev.fit(t, np.log(scaled) - np.log(t), DEGREE, domain=[0, 1])
    return tuple(fitted.convert(kind=Polynomial, domain=[-1, 1]).coef.tolist())


COEFFICIENTS = _coefficients()  # now, because whatever traces a graph may not be able to trace the fit
