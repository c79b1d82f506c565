import pytest

from oodles.data.downloads import SOURCES


def test_datasets_are_listed(succeeded):
    out, _ = succeeded("data", "list", "--data", "data")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert list(lines) == list(SOURCES)
    for name, state in (
        ("cifar10", "present"),
        ("textures", "present"),
        ("svhn", "downloadable"),
        ("imagenet", "by hand"),
    ):
        assert f" {state} " in lines[name]


def test_a_dataset_that_is_there_is_not_downloaded(succeeded):
    out, _ = succeeded("data", "fetch", "cifar10", "--data", "data")
    assert out.strip() == "data/cifar-10-batches-py already exists"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("imagenet", "ImageNet-1k cannot be downloaded automatically: "),
        ("places365", "Places365 cannot be downloaded automatically: "),
        ("mnist", "dataset 'mnist' must be one of cifar10"),
    ],
)
def test_datasets_that_cannot_be_downloaded(refused, tmp_path, name, message):
    assert message in refused("data", "fetch", name, "--data", tmp_path / "data")
    assert list(tmp_path.iterdir()) == []
