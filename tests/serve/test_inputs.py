"""Bodies of JSON for guards of arrays and of images, and texts through a tokenizer of the package tokenizers."""

import json
import math
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from fastapi import HTTPException
from hypothesis import given, settings
from hypothesis import strategies as st
from support.images import noise
from support.serving import anything, encoded
from tokenizers import Tokenizer, models, pre_tokenizers

from oodles.deploy.exported import ExportedGuard
from oodles.errors import ArgumentError, DataError, FileError, OodlesError
from oodles.serve.bodies import MAX_DIMENSIONS
from oodles.serve.inputs import MAX_TOKENS, TextTokenizer, guard_arrays, nested_shape, number_array, score_arrays
from oodles.serve.settings import Settings

LIMITS = Settings(max_images=8)
NUMBER = int | float


@pytest.fixture(scope="module")
def opened(guards):
    return {name: ExportedGuard.open(guards / f"{name}.zip") for name in ("vectors", "images", "tokens")}


def read(guard, body, tokenizer=None):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return score_arrays(content, guard, tokenizer, LIMITS)


def test_numbers_become_what_the_guard_takes(opened):
    guard = opened["vectors"]
    (name,) = (each["name"] for each in guard.record["inputs"])
    found = read(guard, {"inputs": {name: [[1, 2.5, -3, 0, 1e-3]]}})[name]
    assert found.dtype == np.float32
    assert found.tolist() == np.float32([[1, 2.5, -3, 0, 1e-3]]).tolist()
    ids = read(opened["tokens"], {"inputs": {"input_ids": [[1, 2.0], [3, 4]]}})["input_ids"]
    assert (ids.dtype, ids.tolist()) == (np.int64, [[1, 2], [3, 4]])


def test_images_of_all_sizes_become_equal(opened):
    guard = opened["images"]
    for height, width in ((4, 4), (9, 5), (1, 1)):
        pixels = noise(2, height, width, 3)
        found = guard_arrays(guard, {"pixels": pixels}, LIMITS)["pixels"]
        assert found.shape == (2, 4, 4, 3)
        expected = guard([encoded(each) for each in pixels]).score
        assert guard.judge({"pixels": found}).score == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "body", "status", "words"),
    [
        ("tokens", b"", 400, "not JSON"),
        ("tokens", b"\xff\xfe", 400, "not JSON"),
        ("tokens", b"[]", 400, "Expected `object`"),
        ("tokens", b"{}", 400, 'either "inputs" or "texts"'),
        ("tokens", b'{"inputs": {}, "texts": ["a"]}', 400, 'either "inputs" or "texts"'),
        ("tokens", b'{"inputs": {}, "other": 1}', 400, "other"),
        ("tokens", b'{"texts": ["a"]}', 400, "no tokenizer"),
        ("tokens", {"inputs": {"input_ids": [[1.5]]}}, 400, "fit int64"),
        ("tokens", {"inputs": {"input_ids": [[2**64 - 1]]}}, 400, "fit int64"),
        ("tokens", {"inputs": {"input_ids": [[1]] * 9}}, 413, "9 inputs"),
        ("images", {"inputs": {"pixels": np.zeros((20_000, 1, 1, 3), int).tolist()}}, 413, "20000 inputs"),
        ("images", {"inputs": {"pixels": [[[[256, 0, 0]]]]}}, 400, "fit uint8"),
        ("vectors", {"inputs": {"odd": [[1, 2, 3, 4, 5]]}}, 400, "no input 'odd'"),
        ("vectors", {"inputs": {"NAME": [[1, 2, 3]]}}, 400, "float32 (any, 5), got float32 (1, 3)"),
        ("vectors", {"inputs": {"NAME": [1, 2, 3, 4, 5]}}, 400, "got float32 (5,)"),
        ("vectors", {"inputs": {"NAME": [["1", "2", "3", "4", "5"]]}}, 400, "numbers"),
        ("vectors", {"inputs": {"NAME": [[1, 2], [3]]}}, 400, "equal lengths"),
        ("vectors", {"inputs": {"NAME": [[None] * 5]}}, 400, "numbers"),
        ("vectors", {"inputs": {"NAME": []}}, 400, "numbers"),
        ("vectors", {"inputs": {"NAME": [[1, 2, 3, 4, 5], 6]}}, 400, "equal lengths"),
        ("vectors", {"inputs": {"NAME": [[[1, 2], [3]], [[4], [5, 6]]]}}, 400, "equal lengths"),
        ("vectors", {"inputs": {"NAME": {"a": 1}}}, 400, "numbers"),
        ("vectors", {"inputs": {"NAME": [[10**40, 1, 1, 1, 1]]}}, 400, "fit float32"),
        ("vectors", {"inputs": {"NAME": [[1e300, 1, 1, 1, 1]]}}, 400, "fit float32"),
        ("vectors", {"inputs": {}}, 400, "got nothing"),
        ("vectors", b'{"inputs": {"NAME": [[NaN]]}}', 400, "not JSON"),
    ],
)
def test_malformed_bodies_say_what_is_wrong(opened, name, body, status, words):
    guard = opened[name]
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises((HTTPException, OodlesError)) as refused:
        read(guard, content.replace(b"NAME", guard.record["inputs"][0]["name"].encode()))
    assert getattr(refused.value, "status_code", 400) == status
    assert words in getattr(refused.value, "detail", str(refused.value))


def test_pixels_that_nobody_normalised_are_refused(opened):
    guard = opened["vectors"]
    (only,) = guard.record["inputs"]
    with pytest.raises(DataError, match="scale and normalise"):
        guard_arrays(guard, {only["name"]: np.ones((1, 5), np.uint8)}, LIMITS)
    written = json.dumps(noise(1, 3, 4, 4).tolist()).encode()
    pictures = number_array("x", written, (1, 3, 4, 4), "float32")  # not made floats, so that they are refused
    assert pictures.dtype == np.int64


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e300])
def test_values_that_are_not_finite_are_refused(opened, value):
    (only,) = opened["vectors"].record["inputs"]
    with pytest.raises(HTTPException) as refused:
        guard_arrays(opened["vectors"], {only["name"]: np.full((1, 5), value)}, LIMITS)
    assert (refused.value.status_code, "NaN" in refused.value.detail) == (422, True)


@settings(max_examples=150, deadline=None)
@given(anything, st.sampled_from(["inputs", "texts"]), st.sampled_from(["input_ids", "pixels", "images"]))
def test_nothing_but_a_refusal_is_raised(opened, value, key, name):
    for guard in opened.values():
        for body in ({key: value}, {"inputs": {name: value}}, {"inputs": {name: [value]}}):
            with suppress(HTTPException, OodlesError):
                assert len(guard.judge(read(guard, body)).score) >= 1


@settings(max_examples=200, deadline=None)
@given(value=anything)
def test_arrays_are_what_numpy_makes_of_numbers(value: Any) -> None:
    """Beside a slow rule: every leaf is a number, and all lists of a level have the same length."""

    def shape(part: Any) -> tuple[int, ...] | None:
        if isinstance(part, bool | int | float):
            return ()
        if not isinstance(part, list):
            return None
        inner = [shape(each) for each in part]
        if None in inner or len({*inner}) > 1:
            return None
        return (len(part), *(inner[0] or ())) if inner else None

    expected, text = shape(value), json.dumps(value).encode()
    try:
        found = number_array("x", text, nested_shape("x", text), None)
    except HTTPException:
        odd = any(abs(each) >= 2**63 or not math.isfinite(each) for each in leaves(value) if isinstance(each, NUMBER))
        assert expected is None or odd or len(expected) > MAX_DIMENSIONS
        return
    assert found.shape == expected
    assert all(a == b for a, b in zip(found.ravel().tolist(), leaves(value), strict=True) if abs(b) < 2**53)


def leaves(value: Any) -> list[Any]:
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, list) else [value]


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory):
    words = {"[UNK]": 0, "[PAD]": 1, "good": 2, "bad": 3, "film": 4}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))  # noqa: S106
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.enable_padding(pad_id=1, pad_token="[PAD]")  # noqa: S106
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


def test_texts_become_tokens(opened, tokenizer_file):
    guard = opened["tokens"]
    tokenizer = TextTokenizer(tokenizer_file, guard)
    found = read(guard, {"texts": ["good film", "a bad bad film"]}, tokenizer)["input_ids"]
    assert (found.dtype, found.tolist()) == (np.int64, [[2, 4, 1, 1], [0, 3, 3, 4]])
    assert tokenizer(["film " * 10_000])["input_ids"].shape == (1, MAX_TOKENS)
    assert len(guard.judge(tokenizer(["", "\N{GRINNING FACE}\x00 good"])).score) == 2
    endless = tokenizer(["good film " * 1_000_000])["input_ids"]  # which is cut before it is read
    assert endless.tolist() == tokenizer(["good film " * 300])["input_ids"].tolist()
    for texts, status in (([], 400), (["a"] * 9, 413), ([1], 400), ("good", 400), (["a" * 100_000], 413)):
        with pytest.raises(HTTPException) as refused:
            read(guard, {"texts": texts}, tokenizer)
        assert refused.value.status_code == status


def test_what_is_not_a_tokenizer(opened, tokenizer_file, tmp_path):
    (tmp_path / "odd.json").write_text('{"version": "1.0"}')
    for path in (tmp_path / "odd.json", tmp_path / "nowhere.json", tmp_path):
        with pytest.raises(FileError) as refused:
            TextTokenizer(path, opened["tokens"])
        assert str(path) in str(refused.value)
        assert len(str(refused.value).splitlines()) == 1
    with pytest.raises(ArgumentError, match="takes pixels"):
        TextTokenizer(tokenizer_file, opened["images"])
