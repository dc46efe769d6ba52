"""Goal: of a transaction key it is shown who holds it and what has become of earlier holders, and its holder is fenced
by an administrator who has seen it, and by nobody else.

Method: a browser for what a person sees and does, and forms that are sent without one for what is refused.
"""

from __future__ import annotations

from urllib.parse import quote

import pytest
from playwright.sync_api import expect

import metatxn
from metatxn.words import short_id
from tests.console.browser import Visitor
from tests.console.cluster import ConsoleCluster
from tests.console.conftest import Secured
from tests.console.forms import Sender
from tests.console.life import HOSTILE, Life, begun


def test_a_holder_is_seen_and_fenced(
    visitor: Visitor, cluster: ConsoleCluster, client: metatxn.Client, life: Life
) -> None:
    """The page follows, and the history leads to what the successor has aborted."""
    first = client.connect_key("nightly").epoch
    left = begun(client, key="nightly", epoch=first)
    left.leave_open()
    second = client.connect_key("nightly").epoch
    page = visitor.open("/keys")
    page.get_by_role("link", name="nightly", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("nightly")
    expect(page.locator(f"#epoch-{first}")).to_contain_text(short_id(left.id))
    expect(page.locator(f"#epoch-{second}")).to_contain_text("now")
    expect(page.locator(".facts")).to_contain_text("nothing")
    held = begun(client, key="nightly", epoch=second)
    held.leave_open()
    expect(page.locator(".facts").get_by_role("link", name=short_id(held.id), exact=True)).to_be_visible()
    page.get_by_label("The process that is connected in epoch 1").check()
    page.get_by_role("button", name="Fence").click()
    expect(page.get_by_text("The holder of nightly is fenced: its epoch is 2 now.")).to_be_visible()
    assert held.refresh().expired_by == "fencing"
    assert cluster.recorded[-1] == ("console.transaction_key.fence", {"key": "nightly"}, 200)
    with pytest.raises(metatxn.NotAllowed):
        client.begin(key="nightly", epoch=second)


def test_a_name_that_is_meant_to_do_harm_is_only_a_name(visitor: Visitor, life: Life) -> None:
    key = HOSTILE.replace("&", "+")
    page = visitor.open("/keys")
    page.get_by_role("link", name=key, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(key)
    assert page.locator("main img, main script").count() == 0


@pytest.mark.parametrize(
    ("key", "fields", "status", "words"),
    [
        ("loader", {"epoch": "0", "sure": "yes"}, 403, "is not current"),
        ("loader", {"epoch": "1"}, 422, "sure: confirm"),
        ("loader", {"epoch": "-1", "sure": "yes"}, 422, "is not an epoch"),
        ("loader", {"sure": "yes"}, 422, "is not an epoch"),
        ("never-used", {"epoch": "0", "sure": "yes"}, 404, "is not in use"),
    ],
)
def test_what_cannot_be_done_is_said_and_changes_nothing(
    cluster: ConsoleCluster,
    client: metatxn.Client,
    life: Life,
    key: str,
    fields: dict[str, str],
    status: int,
    words: str,
) -> None:
    """Anyone who has taken over since the page was made is left alone."""
    with Sender(cluster.url) as sender:
        answer = sender.post(f"/keys/{key}/fence", **fields)
    assert (answer.status_code, words in answer.text) == (status, True), answer.text
    assert client.key("loader").epoch == 1


def test_keys_are_for_administrators(secured: Secured) -> None:
    with secured.cluster.client(secured.tokens["ada"]) as ada:
        epoch = ada.connect_key("of/ada").epoch
    path = f"/keys/{quote('of/ada', safe='')}"
    with Sender(secured.cluster.url, secured.tokens["ada"]) as sender:
        assert "/console/keys" not in sender.get("/").text
        assert [sender.get(each).status_code for each in ("/keys", f"{path}?owner=ada")] == [403, 403]
        assert sender.post(f"{path}/fence", owner="ada", epoch=str(epoch), sure="yes").status_code == 403
    with Sender(secured.cluster.url, secured.tokens["root"]) as sender:
        assert "of/ada" in sender.get("/keys?owner=ada").text
        assert sender.get(path).status_code == 404, "without an owner it is another key"
        assert "Fence its holder" in sender.get(f"{path}?owner=ada").text
        answer = sender.post(f"{path}/fence", owner="ada", epoch=str(epoch), sure="yes")
        assert answer.headers["location"] == "/console/keys/of%2Fada?owner=ada"
        secured.cluster.site.read_only = True
        try:
            assert "Fence its holder" not in sender.get(f"{path}?owner=ada").text
        finally:
            secured.cluster.site.read_only = False
    with secured.cluster.client(secured.tokens["root"]) as root:
        assert root.key("of/ada", "ada").epoch == epoch + 1
