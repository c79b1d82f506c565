"""The logarithm of the normal distribution function against SciPy's, in both forms."""

import numpy as np
import pytest
import torch
from scipy import special

from oodles.functional.normal import elementary_log_ndtr, log_ndtr

LOWER = np.concatenate([-np.linspace(0, 40, 2001), -(10.0 ** np.arange(2, 19))])


@pytest.mark.parametrize("function", [log_ndtr, elementary_log_ndtr])
def test_both_halves_are_right_to_a_millionth_and_nan_stays_nan(function):
    found = function(torch.from_numpy(LOWER).float()).double().numpy()
    expected = special.log_ndtr(LOWER.astype(np.float32).astype(np.float64))
    assert np.abs(found / expected - 1).max() < 1e-6
    upper = torch.linspace(0, 12, 500)
    assert np.abs(function(upper).numpy() - special.log_ndtr(upper.double().numpy())).max() < 2e-7
    assert function(torch.tensor([torch.nan])).isnan().all()
    assert function(torch.tensor([1e18])).item() == 0


def test_the_elementary_form_is_what_an_export_contains():
    class Module(torch.nn.Module):
        def forward(self, deviations):
            return log_ndtr(deviations)

    deviations = torch.tensor([-1e6, -30.0, -7.0, 0.0, 2.0])
    program = torch.export.export(Module(), (deviations,))
    assert torch.equal(program.module()(deviations), elementary_log_ndtr(deviations))
    assert "log_ndtr" not in str(program.graph)
