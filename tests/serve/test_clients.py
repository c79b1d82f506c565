"""Real clients of the Open Inference Protocol on the real server, and what the protocol asks beside them."""

import gzip
import json

import numpy as np
import pytest
import tritonclient.http as triton
from support.images import noise
from support.serving import AUTHORISED, JPEG, JSON, TOKEN, photo, serving
from tritonclient.utils import InferenceServerException

from oodles.deploy.exported import ExportedGuard

OUTPUTS = ("logits", "label", "probability", "score", "p_value", "is_id")


@pytest.fixture
def client(server):
    made = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    yield made
    made.close()


def tensor(name, value, datatype, binary=True):
    made = triton.InferInput(name, list(value.shape), datatype)
    made.set_data_from_numpy(value, binary_data=binary)
    return made


def test_triton_asks_about_server_and_models(client, server):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.get_server_metadata()["name"] == "oodles"
    about = client.get_model_metadata("images")
    assert (about["platform"], about["inputs"][0]["datatype"]) == ("onnx_onnxv1", "UINT8")
    (version,) = about["versions"]
    assert client.is_model_ready("images")
    assert client.is_model_ready("images", version)
    assert client.get_model_metadata("images", version) == about
    assert not client.is_model_ready("images", "7")
    assert not client.is_model_ready("nothing")
    assert server.get("/v2/models/images/versions/7").refuses(404, version)


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_triton_infers(client, guards, binary, compression):
    pixels = noise(3, 30, 40, 3)
    version = client.get_model_metadata("images")["versions"][0]
    outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in OUTPUTS]
    given = [tensor("pixels", pixels, "UINT8", binary)]
    found = client.infer("images", given, version, outputs, "7", request_compression_algorithm=compression)
    expected = ExportedGuard.open(guards / "images.zip")([*map(np.asarray, pixels)])
    for name in OUTPUTS:
        assert found.as_numpy(name) == pytest.approx(getattr(expected, name), abs=1e-5), name
    assert found.get_response()["id"] == "7"
    assert found.get_response()["model_version"] == version


@pytest.mark.parametrize("kind", [np.uint16, np.uint32, np.int16, np.int32])
def test_triton_sends_integers_of_all_kinds(client, kind):
    rows = np.array([[1, 2, 3]], kind)
    asked = {"input_ids": rows.astype(np.int64)}
    expected = client.infer("tokens", [tensor("input_ids", asked["input_ids"], "INT64")]).as_numpy("score")
    name = str(np.dtype(kind)).upper()
    found = client.infer("tokens", [tensor("input_ids", rows, name, binary=False)]).as_numpy("score")
    assert found == pytest.approx(expected, abs=1e-6)


def test_triton_is_told_what_is_wrong(client):
    wrong = [
        ("images", [tensor("pixels", noise(1, 4, 4, 1), "UINT8")], "channels last"),
        ("images", [tensor("pixels", noise(65, 1, 1, 3), "UINT8")], "more than 64"),
        ("images", [tensor("other", noise(1, 4, 4, 3), "UINT8")], "no input 'other'"),
        ("images", [tensor("text", np.array([b"a"], object), "BYTES")], "no tokenizer"),
        ("nothing", [tensor("pixels", noise(1, 4, 4, 3), "UINT8")], "no guard 'nothing'"),
    ]
    for name, given, words in wrong:
        with pytest.raises(InferenceServerException, match=words):
            client.infer(name, given)


def test_texts_are_bytes(text_guard):
    texts = np.array(["good film", "bad"], object)
    with serving(*text_guard) as server:
        client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
        assert client.get_model_metadata("tokens")["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
        expected = [each["score"] for each in server.score_json({"texts": texts.tolist()}).json["results"]]
        for binary in (True, False):
            found = client.infer("tokens", [tensor("text", texts, "BYTES", binary)]).as_numpy("score")
            assert found == pytest.approx(expected, abs=1e-6)
        client.close()


def test_inputs_with_different_numbers_of_rows(tmp_path):
    export_pair(tmp_path / "pair.zip")
    with serving(tmp_path / "pair.zip") as server:
        names = [each["name"] for each in server.get("/v2/models/pair").json["inputs"]]
        for rows, status in (((3, 3), 200), ((3, 1), 400), ((1, 3), 400), ((3, 2), 400)):
            pairs = zip(names, rows, strict=True)
            inputs = [{"name": n, "shape": [r, 4], "datatype": "FP32", "data": [0.5] * 4 * r} for n, r in pairs]
            reply = server.ask("POST", "/v2/models/pair/infer", json.dumps({"inputs": inputs}).encode(), JSON)
            assert reply.status == status, (rows, reply)


def export_pair(path):
    """A guard of a network with two inputs."""
    import torch
    from torch import nn

    from oodles.guard import Guard

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, a, b):
            return self.fc(torch.relu(a + b))

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, data = Pair().eval(), [{"a": torch.rand(200, 4), "b": torch.rand(200, 4)}]
    Guard.fit(model, data, detector="energy", labels=False).export(path)


def test_kserve_sends_null_for_what_it_does_not_say(server):
    """KServe's client writes every field of the protocol."""
    given = {"name": "pixels", "shape": [1, 1, 1, 3], "datatype": "UINT8", "data": [[[[1, 2, 3]]]], "parameters": None}
    asked = {"id": None, "inputs": [given], "outputs": [{"name": "score", "parameters": None}], "parameters": None}
    reply = server.ask("POST", "/v2/models/images/infer", json.dumps(asked).encode(), JSON)
    assert [each["name"] for each in reply.json["outputs"]] == ["score"]


def test_content_encodings(server):
    sent = {**JPEG, "Content-Encoding": "br"}
    assert server.score(photo(), "?guard=images", sent).refuses(415, "'br'")
    gzipped = {**JPEG, "Content-Encoding": "gzip"}
    assert server.score(photo(), "?guard=images", gzipped).refuses(400, "unpacked")
    bomb = gzip.compress(bytes(30_000_000))
    assert server.score(bomb, "?guard=images", gzipped).refuses(413, "20,000,000")
    assert server.score(gzip.compress(photo()), "?guard=images", gzipped).status == 200
    assert server.score(gzip.compress(photo())[:-9], "?guard=images", gzipped).refuses(400, "ends before")


def test_heads_and_slashes(server):
    for path in ("/v2/health/live", "/v2/health/ready", "/metrics", "/v2"):
        reply = server.ask("HEAD", path)
        assert (reply.status, reply.body) == (200, b"")
        assert int(reply.headers["content-length"]) > 0
    for path in ("/score/", "/v2/health/live/", "/v2/models/images/"):
        assert server.get(path).refuses(404)


def test_errors_name_no_folder(server, guards):
    body = json.dumps({"inputs": {"input_ids": [[10**6]]}}).encode()
    reply = server.score(body, "?guard=tokens", JSON)
    assert reply.refuses(400, "tokens.zip cannot be run")
    assert str(guards) not in reply.error


def test_the_description_names_the_token(server):
    described = server.get("/openapi.json").json
    assert described["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    assert described["paths"]["/score"]["post"]["security"]


def test_other_origins_may_read_what_they_need(strict):
    exposed = strict.get("/v2", Origin="https://example.org").headers["access-control-expose-headers"].lower()
    assert {"x-request-id", "retry-after", "inference-header-content-length"} <= {*exposed.split(", ")}


@pytest.mark.parametrize("stripped", [True, False])
def test_a_prefix_in_front_of_all_addresses(guards, stripped):
    """Whether the proxy removes the prefix or not."""
    prefix = "" if stripped else "/ood"
    with serving(guards / "images.zip", "--root-path", "/ood", OODLES_TOKEN=TOKEN) as server:
        assert server.get(f"{prefix}/v2/health/ready").status == 200
        assert server.ask("POST", f"{prefix}/score", photo(), {**AUTHORISED, **JPEG}).status == 200
        assert server.get(f"{prefix}/openapi.json").json["servers"] == [{"url": "/ood"}]
        docs = server.get(f"{prefix}/docs").body.decode()
        assert "'openapi.json'" in docs
        assert '"/docs/assets' not in docs
