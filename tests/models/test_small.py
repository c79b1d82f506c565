"""The compact residual network."""

import pytest
from support.networks import pictures, seeded

from oodles.models import small_resnet


@pytest.mark.parametrize(("classes", "head_type"), [(10, "linear"), (7, "deconf")])
def test_shapes_of_the_stages_and_the_embedding(classes, head_type):
    model = seeded(lambda: small_resnet(classes, head_type)).eval()
    shapes, pooled = {}, []
    for name in ("stage1", "stage2", "stage3"):
        record = lambda _, __, maps, name=name: shapes.update({name: tuple(maps.shape)})  # noqa: E731
        model.get_submodule(name).register_forward_hook(record)
    model.fc.register_forward_pre_hook(lambda _, inputs: pooled.append(inputs[0]))
    assert model(pictures(2, size=32)).shape == (2, classes)
    assert shapes == {"stage1": (2, 64, 16, 16), "stage2": (2, 128, 8, 8), "stage3": (2, 256, 4, 4)}
    assert pooled[0].shape == (2, 256)
    assert pooled[0].min() >= 0
