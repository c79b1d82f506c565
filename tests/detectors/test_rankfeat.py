"""RankFeat: the energy of a network whose last map lost its first singular component."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import maps as slow
from support import networks
from support.networks import batched, one_thread, pictures, seeded, spread  # noqa: F401

import oodles as ood
from oodles.detectors import RankFeat
from oodles.errors import DataError, HeadError, ShapeError
from oodles.features import Features, Head
from oodles.functional import without_first_component
from oodles.network.taps import eval_mode


def features_of(maps, head, layer="a"):
    """Features of a network whose last map this is, as matrices of channels by positions."""
    pooled, rest = maps.mean(dim=2), without_first_component(maps)
    return Features(pooled, head=head, layers={layer: pooled, f"{layer}:rankfeat": rest})


def made_up(rows=40, channels=12, positions=9, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randn(rows, channels, positions, generator=generator).add(0.5).relu()
    return maps, Head(torch.randn(classes, channels, generator=generator), torch.randn(classes, generator=generator))


@settings(max_examples=40, deadline=None)
@given(channels=st.integers(2, 20), positions=st.integers(2, 20), classes=st.integers(2, 6), seed=st.integers(0, 10**6))
def test_scores_are_those_of_the_full_decomposition(channels, positions, classes, seed):
    maps, head = made_up(6, channels, positions, classes, seed)
    maps = maps + 0.5  # a clear first component, which 20 iterations find exactly
    features = features_of(maps, head)
    got = RankFeat(layer="a").fit(features).score(features)
    weight, bias = head.weight.double().numpy(), head.bias.double().numpy()
    want = [slow.rankfeat_score(each, weight, bias) for each in maps.double().numpy()]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_it_is_the_network_with_the_component_removed_from_its_map():
    model = seeded(lambda: spread(networks.Net()))
    detector = RankFeat(layer="body")
    features = ood.extract(model, batched(20, 5), layers=detector.layers)
    got = detector.fit(features).score(features)
    with eval_mode(model):
        maps = model.body(pictures(20))
        left, values, right = torch.linalg.svd(maps.flatten(2).double(), full_matrices=False)
        first = values[:, :1, None] * left[:, :, :1] @ right[:, :1]
        logits = model.fc((maps.flatten(2) - first).mean(dim=2).float())
    torch.testing.assert_close(got, torch.logsumexp(logits, dim=1), rtol=1e-3, atol=1e-3)


def test_maps_of_zeros_have_the_energy_of_the_bias():
    _, head = made_up()
    features = features_of(torch.zeros(5, 12, 9), head)
    scores = RankFeat(layer="a").fit(features).score(features)
    torch.testing.assert_close(scores, torch.logsumexp(head.bias, dim=0).expand(5))


# What is refused ----------------------------------------------------------------------------------


def test_a_layer_whose_mean_is_not_the_embedding_is_refused_and_the_remedy_works():
    """As in a DenseNet, where a norm and a ReLU follow the last block."""
    model = seeded(networks.DenseNetLike)
    wrong = RankFeat(layer="norm")
    features = ood.extract(model, batched(20, 5), layers=wrong.layers)
    with pytest.raises(DataError, match=r"layer=norm.* not the embedding .*:relu") as no:
        wrong.fit(features)
    assert "\n" not in str(no.value)
    right = RankFeat(layer="norm:relu")
    assert right.layers == ("norm:relu", "norm:relu+rankfeat")
    features = ood.extract(model, batched(20, 5), layers=right.layers)
    assert torch.isfinite(right.fit(features).score(features)).all()


def test_a_layer_of_another_width_is_refused():
    model = seeded(networks.DenseNetLike)
    detector = RankFeat(layer="stem")
    with pytest.raises(DataError, match="4 channels, the embedding 16"):
        detector.fit(ood.extract(model, batched(20, 5), layers=detector.layers))


def test_columns_of_another_width_are_refused_when_scoring():
    maps, head = made_up()
    detector = RankFeat(layer="a").fit(features_of(maps, head))
    other = features_of(*made_up(channels=7))
    with pytest.raises(ShapeError, match=r"RankFeat\(layer=a\) was fitted on width 12, got 7"):
        detector.score(Features(logits=other.logits, layers=other.layers))


# With a network -----------------------------------------------------------------------------------


def test_a_network_whose_last_map_has_one_position_is_refused():
    model = seeded(networks.ConvAfterPool)
    name = next(
        name for name, module in model.named_modules() if isinstance(module, torch.nn.Conv2d) and "." not in name
    )
    with pytest.raises(HeadError, match="maps have one position"):
        ood.extract(model, batched(10, 5), layers=[f"{name}:rankfeat"])


@pytest.mark.realdata
def test_the_shipped_network_on_real_images(data):
    from oodles.bench.suites import SUITES
    from oodles.data.loaders import ImageLoader

    suite, model = SUITES["cifar10"], ood.models.load("cifar10-small")
    train, test, *_ = suite.open_sets(data).values()
    loaders = [ImageLoader(part.sample(64), suite.transform) for part in (train, test)]
    guard = ood.Guard.fit(model, loaders[0], calibration=loaders[1], detector=RankFeat(layer="stage3"))
    images = next(iter(loaders[1]))[0]
    with torch.no_grad():
        maps = model.stage3(model.stage2(model.stage1(model.bn(model.conv(images)).relu()))).flatten(2).double().numpy()
    weight, bias = (part.detach().double().numpy() for part in (model.fc.weight, model.fc.bias))
    want = [slow.rankfeat_score(each, weight, bias) for each in maps]
    np.testing.assert_allclose(guard(images).score, want, rtol=1e-3, atol=1e-3)
