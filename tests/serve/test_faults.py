"""Images and arrays with something wrong, sent to the real running server: answered as documented, nothing breaks."""

import json
import struct
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from support.images import noise, png_chunk, write_16_bit_png
from support.serving import JSON, encoded, environment, in_parallel, photo

from oodles.deploy.exported import ExportedGuard

SMALL = "?guard=images"
SHIPPED = "?guard=cifar10-small"


def test_curl_the_command_line_and_python_agree(server, guards, tmp_path):
    """Photographs of every kind that is converted get the same score by all three ways, up to 1e-5."""
    picture = Image.fromarray(noise(48, 64, 3)).resize((90, 60))
    rotated = Image.Exif()
    rotated[0x0112] = 6
    frames = [Image.fromarray(noise(20, 20, 3, seed=n)).convert("P") for n in range(300)]
    with_alpha = picture.convert("RGBA")
    with_alpha.putalpha(Image.fromarray(noise(60, 90)))
    files = {
        "plain.jpg": encoded(picture, "JPEG"),
        "rotated.jpg": encoded(picture, "JPEG", exif=rotated),
        "cmyk.jpg": encoded(picture.convert("CMYK"), "JPEG"),
        "palette.png": encoded(picture.convert("P", palette=Image.Palette.ADAPTIVE)),
        "alpha.png": encoded(with_alpha),
        "grey.png": encoded(picture.convert("L")),
        "frames.gif": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "one-pixel.png": encoded(noise(1, 1, 3)),
        "webp.webp": encoded(picture, "WEBP"),
    }
    paths = [tmp_path / name for name in files]
    for path in paths:
        path.write_bytes(files[path.name])
    guard, out = guards / "cifar10-small.zip", tmp_path / "results.jsonl"
    score = [sys.executable, "-m", "oodles", "score", str(guard), *map(str, paths), "--out", str(out)]
    subprocess.run(score, check=True, env=environment(), timeout=120)
    rows = {row["path"].rpartition("/")[2]: row for row in map(json.loads, out.read_text().splitlines())}
    verdict = ExportedGuard.open(guard)(paths)
    for index, path in enumerate(paths):
        sent = ["curl", "--silent", "--show-error", "--data-binary", f"@{path}", f"{server.address}/score{SHIPPED}"]
        by_curl = json.loads(subprocess.run(sent, capture_output=True, check=True).stdout)["results"][0]
        assert by_curl["error"] is None, by_curl
        for field in ("score", "probability", "p_value"):
            assert by_curl[field] == pytest.approx(rows[path.name][field], abs=1e-5), (path.name, field)
            assert by_curl[field] == pytest.approx(getattr(verdict, field)[index], abs=1e-5), (path.name, field)
        assert by_curl["is_id"] == rows[path.name]["is_id"] == verdict.is_id[index]
        assert by_curl["label"] == verdict.label[index]
    plain = rows["plain.jpg"]["score"]
    assert rows["rotated.jpg"]["score"] != pytest.approx(plain, abs=1e-3), "turned upright, so it is another image"
    scores = [result["score"] for result in server.score_files([*files.items()], SHIPPED).json["results"]]
    assert scores == pytest.approx(verdict.score.tolist(), abs=1e-5)


def test_pixels_are_scored_as_images_are(server, guards):
    """Arrays by /score and by the inference protocol, as JSON and as bytes, agree with the image file."""
    pixels = noise(3, 30, 40, 3)
    files = [(f"{n}.png", encoded(each)) for n, each in enumerate(pixels)]
    expected = [each["score"] for each in server.score_files(files, SHIPPED).json["results"]]
    by_json = server.score_json({"inputs": {"pixels": pixels.tolist()}}, SHIPPED)
    assert [each["score"] for each in by_json.json["results"]] == pytest.approx(expected, abs=1e-5)
    tensor = {"name": "pixels", "datatype": "UINT8", "shape": list(pixels.shape)}
    asked = {"inputs": [{**tensor, "data": pixels.ravel().tolist()}], "outputs": [{"name": "score"}], "id": "7"}
    route = "POST", "/v2/models/cifar10-small/infer"
    answer = server.ask(*route, json.dumps(asked).encode(), JSON).json
    assert answer["id"] == "7"
    assert answer["outputs"][0]["data"] == pytest.approx(expected, abs=1e-5)
    head = {"inputs": [{**tensor, "parameters": {"binary_data_size": pixels.size}}]}
    head |= {"parameters": {"binary_data_output": True}, "outputs": [{"name": "score"}]}
    text = json.dumps(head).encode()
    answer = server.ask(*route, text + pixels.tobytes(), {"Inference-Header-Content-Length": str(len(text))})
    at = int(answer.headers["inference-header-content-length"])
    assert np.frombuffer(answer.body[at:], "<f4") == pytest.approx(expected, abs=1e-5)


def bomb(width, height):
    """A PNG whose header promises many pixels, and whose data are short."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", b"x") + png_chunk(b"IEND", b"")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(/tmp/oodles-eps-ran) (w) file closefile\nshowpage\n"
SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"", 400, "no body"),
        (b"hello", 415, "format"),
        (b"\x00" * 5000, 415, "format"),
        (EPS, 415, "format"),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", 415, "format"),
        (SVG, 415, "format"),
        (photo(kind="JPEG")[:400], 422, "truncated"),
        (photo()[:200], 422, "truncated"),
        (bomb(60_000, 60_000), 413, "pixels"),
        (bomb(9_500, 9_500), 413, "pixels"),
        (bomb(1, 20_000), 413, "pixels"),
    ],
    ids=["empty", "text", "zeros", "eps", "pdf", "svg", "short jpeg", "short png", "bomb", "88 MP", "1x20000"],
)
def test_what_is_not_an_image_is_refused(server, content, status, words):
    for reply in (server.score(content, SMALL), server.score_files([("a.png", content)], SMALL)):
        assert reply.status == status, reply
        assert words in reply.error.lower() or not content


def test_sixteen_bits_are_not_clipped(server, tmp_path):
    """Grey ones are refused; of colours Pillow keeps the upper 8 bits, which is the same image."""
    grey = write_16_bit_png(tmp_path / "grey.png", 0).read_bytes()
    assert server.score(grey, SMALL).refuses(422, "more than 8 bits")
    found = server.score(write_16_bit_png(tmp_path / "colour.png", 2).read_bytes(), SMALL).result
    eight = server.score(encoded(np.full((4, 4, 3), 0x12, np.uint8)), SMALL).result
    assert found["score"] == eight["score"]


def test_shapes_at_the_edge_are_scored(server):
    for shape in ((1, 1), (1, 16_000), (16_000, 1)):
        assert np.isfinite(server.score(encoded(noise(*shape, 3)), SMALL).result["score"]), shape


def test_pixel_bombs_cost_no_memory(server):
    """A real 88 MP image of 1 MB and headers that promise more are refused before they are decoded."""
    real = encoded(Image.new("RGB", (9_400, 9_400)))
    assert len(real) < 1_500_000
    server.score(photo(), SMALL)
    before = server.memory("VmHWM")
    for content in (real, bomb(60_000, 60_000)):
        replies = in_parallel(8, lambda _, content=content: server.score(content, SMALL))
        assert [reply.status for reply in replies] == [413] * 8
    assert server.memory("VmHWM") - before < 250, "megabytes; decoding one of them takes over 350"


def test_one_bad_file_among_good_ones(server):
    files = [("good.png", photo(1)), ("bad.png", b"no image"), ("cut.png", photo(2)[:99]), ("also-good.png", photo(3))]
    results = server.score_files(files, SMALL).json["results"]
    assert [each["name"] for each in results] == [name for name, _ in files]
    assert [each["error"] and each["error"]["status"] for each in results] == [None, 415, 422, None]
    assert [each["is_id"] for each in results][1:3] == [False, False]
    assert results[1]["score"] is None
    alone = [server.score(content, SMALL).result["score"] for _, content in (files[0], files[3])]
    assert [results[0]["score"], results[3]["score"]] == pytest.approx(alone, abs=1e-6)


def test_json_that_would_fill_the_memory_does_not(server):
    """Deep and wide nesting, and strings that NumPy would give equal lengths: 160,000 times 200 kB."""
    before = server.memory("VmHWM")
    strings = b'["' + b"x" * 200_000 + b'"' + b',""' * 160_000 + b"]"
    for value in (b"[" * 100_000 + b"]" * 100_000, b"[" * 100_000, b"[" + b"[]," * 200_000 + b"[]]", strings):
        body = b'{"inputs": {"pixels": ' + value + b"}}"
        assert server.score(body, SMALL, JSON).status in (400, 413)
        tensor = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": ' + value + b"}]}"
        assert server.ask("POST", "/v2/models/vectors/infer", tensor, JSON).status == 400
    assert server.memory("VmHWM") - before < 1000, "megabytes; strings of equal lengths would take 32,000"
