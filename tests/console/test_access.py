"""Goal: everybody sees their own rights, as the services have them, and nothing of the token.

Method: each principal once, without a browser; one visit in a browser for how it looks.
"""

from __future__ import annotations

from playwright.sync_api import expect

from tests.console.browser import PHONE, Visitor, is_too_wide, violations
from tests.console.conftest import Secured
from tests.console.forms import Sender
from tests.console.test_frame import sign_in


def test_everybody_sees_their_own_rights(secured: Secured, stranger: Visitor) -> None:
    page = sign_in(stranger, secured.tokens["ada"], "/access?topic=orders-7")
    row = page.get_by_role("row").filter(has_text="public/default/orders*")
    assert row.locator("td").all_inner_texts() == ["public/default/orders*", "yes", "yes", "no"]
    expect(page.get_by_text("On public/default/orders-7 you may produce, consume.")).to_be_visible()
    assert secured.tokens["ada"] not in page.content()
    assert violations(page) == []
    page.set_viewport_size(PHONE)
    assert not is_too_wide(page)
    with Sender(secured.cluster.url, secured.tokens["root"]) as root:
        assert "you may do everything" in root.get("/access").text
        assert "you may produce, consume, admin." in root.get("/access?topic=a/b/c").text
        assert root.get("/access?topic=a/b").status_code == 422
    with Sender(secured.cluster.url, secured.tokens["eve"]) as eve:
        assert "you may do nothing." in eve.get("/access?topic=secret").text


def test_without_tokens_everybody_may_do_everything(visitor: Visitor) -> None:
    page = visitor.open("/access")
    expect(page.get_by_text("This cluster asks nobody for a token.")).to_be_visible()
