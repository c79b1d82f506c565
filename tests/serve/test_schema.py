"""Requests that schemathesis makes from the service's own description: no 5xx, and every answer is as described."""

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from support.serving import JSON, photo

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
RIGHT, WRONG = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
UNUSUAL = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
QUIET = settings(deadline=None, database=None, suppress_health_check=UNUSUAL, phases=[Phase.generate])


@pytest.fixture(scope="module")
def schema(server):
    return schemathesis.openapi.from_url(f"{server.address}/openapi.json")


VERSION = "/v2/models/{name}/versions/{version}"
ROUTES = {  # and how often each is tried
    **dict.fromkeys(("GET /v2", "GET /v2/health/live", "GET /v2/health/ready", "GET /metrics", "GET /guards"), 1),
    **dict.fromkeys(("GET /guards/{name}/monitor", "GET /v2/models/{name}", "GET /v2/models/{name}/ready"), 5),
    "PUT /guards/{name}/threshold": 10,
    "POST /guards/{name}/monitor/acknowledge": 5,
    **dict.fromkeys(("POST /score", "POST /v2/models/{name}/infer"), 40),
    **dict.fromkeys((f"GET {VERSION}", f"GET {VERSION}/ready", f"POST {VERSION}/infer"), 5),
}
# a request without a body has nothing to get wrong
TRIES = [(route, mode) for route in ROUTES for mode in (RIGHT, WRONG) if mode is RIGHT or ROUTES[route] >= 10]


def test_every_route_is_tried(schema):
    found = {f"{method.upper()} {path}" for path, methods in schema.raw_schema["paths"].items() for method in methods}
    assert found == {*ROUTES}


@pytest.mark.parametrize(("route", "mode"), TRIES)
def test_answers_are_as_described(schema, server, route, mode):
    method, path = route.split()

    @seed(0)
    @settings(QUIET, max_examples=ROUTES[route])
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    def ask(case):
        if "name" in case.path_parameters and len(str(case.path_parameters["name"])) % 2:
            case.path_parameters["name"] = "vectors"
        case.call_and_validate(base_url=server.address, checks=CHECKS)

    ask()
    assert not [line for line in server.log if line.get("status") == 500] + server.other_lines


def test_ordinary_answers_are_as_described(schema, server):
    """What random requests hardly reach: results, explanations, a monitor with inputs, tensors."""
    tensor = {"name": "pixels", "datatype": "UINT8", "shape": [1, 1, 1, 3], "data": [[[[1, 2, 3]]]]}
    body = json.dumps({"id": "1", "inputs": [tensor]}).encode()
    for path, reply in [
        ("/score", server.score(photo(), "?guard=ensemble&explain=1")),
        ("/score", server.score_files([("a.png", photo()), ("b.png", b"x")], "?guard=ensemble")),
        ("/score", server.score_json({"inputs": {"pixels": [[[[1, 2, 3]]]]}}, "?guard=cifar10-small")),
        ("/guards/{name}/monitor", server.get("/guards/ensemble/monitor")),
        ("/v2/models/{name}/infer", server.ask("POST", "/v2/models/ensemble/infer", body, JSON)),
    ]:
        assert reply.status == 200
        method = "GET" if path.endswith("monitor") else "POST"
        response = schemathesis.Response(
            200, {"content-type": ["application/json"]}, reply.body, request=None, elapsed=0.0, verify=False
        )
        schema[path][method].validate_response(response)
