"""Every error code is a class with its two facts, and survives the way from a Spark task to the driver."""

from __future__ import annotations

import ast
import importlib
import pickle
import subprocess
import sys
import traceback
from pathlib import Path

import httpx
import pytest

import metatxn
from metatxn.wire.errors import BY_CODE, ErrorCode
from metatxn.wire.problems import from_problem
from tests.metatxn.fake_cluster import COORDINATOR, FakeCluster, answering, problem
from tests.over_httpx import OverHttpx

ID = "0000000000000000000000000000002a"


def test_every_code_has_a_class() -> None:
    assert set(BY_CODE) == set(ErrorCode)


@pytest.mark.parametrize("code", list(ErrorCode))
def test_problem_becomes_its_class(code: ErrorCode) -> None:
    """Method: a service answers with the problem, and the caller catches the class."""
    cluster = FakeCluster()
    cluster.before = [("GET /v1/txns/", answering(code, txn_id=ID))] * 50
    with cluster.client(request_timeout_s=0.2) as client, pytest.raises(BY_CODE[code]) as caught:
        client.attach(ID).refresh()
    error = caught.value
    if code is not ErrorCode.NOT_OWNER:  # a redirect without a Location is a problem of the client's own
        assert error.detail == "so it is"
        assert error.members["txn_id"] == ID
    assert (error.code, error.retriable, error.definite) == (code, BY_CODE[code].retriable, BY_CODE[code].definite)
    assert error.action == BY_CODE[code].action


def test_a_traceback_says_what_to_do() -> None:
    """Once, also behind the way from a Spark task, whose line of the error has it already."""
    error = metatxn.NotFound("there is no topic t", action="Create it.")
    spark = metatxn.NotFound("NOT_FOUND: there is no topic t. Create it.", action="Create it.")
    for each in (error, spark, pickle.loads(pickle.dumps(error))):
        shown = "".join(traceback.format_exception(each))
        assert shown.count("Create it.") == 1 and "there is no topic t" in shown
    assert str(error) == "there is no topic t"


def test_unknown_member_names_do_no_harm() -> None:
    body = problem(ErrorCode.NOT_FOUND, retry_after_s=3, self="x").json()
    assert from_problem(body).members == {}


@pytest.mark.parametrize(("retriable", "definite"), [(True, True), (False, False), (False, True)])
def test_problem_of_a_code_that_is_not_known_here(retriable: bool, definite: bool) -> None:
    """A newer service: what it says of itself is believed, and its action reaches the caller."""
    facts = {"retriable": retriable, "definite": definite, "action": "Wait for the moon."}
    newer = httpx.Response(409, json={"code": "MOON_PHASE", "detail": "it wanes", "txn_id": ID, **facts})
    cluster = FakeCluster()
    cluster.before = [("POST /v1/txns", lambda _: newer)] * 50
    with cluster.client(request_timeout_s=0.2) as client, pytest.raises(metatxn.MetatxnError, match="wanes") as caught:
        client.begin()
    error = caught.value
    assert {name: getattr(error, name) for name in facts} == facts
    assert error.members == {"code": "MOON_PHASE", "txn_id": ID, "status": 409}
    assert cluster.requests.count("POST /v1/txns") == 1 or retriable or not definite
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


def test_error_can_be_pickled() -> None:
    error = metatxn.SegmentSealed("sealed", children=["a", "b"])
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, metatxn.SegmentSealed)
    assert (copy.detail, copy.action, copy.children) == (error.detail, error.action, ["a", "b"])


def test_nothing_listens_there() -> None:
    with (
        metatxn.connect("http://127.0.0.1:9", request_timeout_s=0.1) as client,
        pytest.raises(metatxn.ServiceUnreachable, match=r"http://127.0.0.1:9") as caught,
    ):
        client.cluster()
    assert caught.value.definite and "port" in caught.value.action


@pytest.mark.parametrize("answer", [httpx.Response(200, text="<html>"), httpx.Response(200, json={"up": True})])
def test_something_else_listens_there(answer: httpx.Response) -> None:
    transport = OverHttpx(httpx.MockTransport(lambda _: answer))
    with (
        metatxn.connect(COORDINATOR, transport=transport) as client,
        pytest.raises(metatxn.ServiceUnreachable, match=r"not (from|the Cluster of) a metatxn service"),
    ):
        client.cluster()


def test_url_without_scheme_is_refused() -> None:
    with pytest.raises(metatxn.InvalidArgument, match="localhost:8470"):
        metatxn.connect("localhost:8470")


def test_all_is_what_is_public() -> None:
    """`__all__` names exactly what type checkers see `metatxn/__init__.py` import, and each of it is found there."""
    source = ast.parse(Path(metatxn.__file__).read_text())
    typed = next(node for node in source.body if isinstance(node, ast.If))
    homes = {alias.name: node.module for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert homes.keys() == set(metatxn.__all__) == set(dir(metatxn))
    for name, home in homes.items():
        assert getattr(metatxn, name) is getattr(importlib.import_module(str(home)), name)
    assert not hasattr(metatxn, "Anything")


def test_the_wire_is_read_without_the_client() -> None:
    code = "import sys, metatxn.wire.ids; assert not {'httpx', 'pyarrow', 'metatxn.wire.errors'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
