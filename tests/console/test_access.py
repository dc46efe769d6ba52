"""Goal: everybody sees their own rights, as the services have them, and nothing of the token.

Method: each principal once, without a browser; one visit in a browser for how it looks.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from playwright.sync_api import expect

from metatxn.cli.logs import append_audit_log
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


def test_administrators_see_who_may_do_what_and_who_has_changed_what(
    secured: Secured, stranger: Visitor, tmp_path: Path
) -> None:
    logger = logging.getLogger("metatxn.audit")
    before = logger.level, logger.propagate
    page = sign_in(stranger, secured.tokens["root"], "/access")
    page.get_by_role("link", name="Audit log").click()
    expect(page.get_by_text("Start it with --audit-log FILE")).to_be_visible()
    append_audit_log(tmp_path / "audit.log")
    try:
        with secured.cluster.client(secured.tokens["root"]) as root:
            root.create_topic("seen")
            root.delete_topic("seen")
        page.get_by_role("link", name=re.compile("^broker")).click()
        rows = page.get_by_role("region", name="Audit log").get_by_role("row")
        expect(rows.nth(1)).to_contain_text("topic.delete public/default/seen")
        expect(rows.nth(2)).to_contain_text("topic.create")
        assert violations(page) == []
        page.get_by_label("What").fill("topic.create")
        page.get_by_label("Text").fill("SEEN")
        page.get_by_role("button", name="Show").click()
        expect(rows.nth(1)).to_contain_text("topic.create public/default/seen")
        expect(rows).to_have_count(2)
        expect(page.get_by_text("audit-log --verb topic.create --text SEEN")).to_be_visible()
        page.get_by_label("Outcome").select_option("refused")
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_text("No line matches.")).to_be_visible()
        expect(page.get_by_label("Text")).to_have_value("SEEN")
        assert violations(page) == []
        with Sender(secured.cluster.url, secured.tokens["root"]) as sender:
            assert sender.get("/access/audit?service=http://evil.example").status_code == 404
    finally:
        for handler in logger.handlers[:]:
            logger.removeHandler(handler)
            handler.close()
        logger.level, logger.propagate = before
    page.goto(f"{secured.cluster.url}/console/access/tokens")
    row = page.get_by_role("row").filter(has_text="public/default/orders* consume, produce")
    expect(row.get_by_role("cell").first).to_have_text("ada")
    assert violations(page) == [] and secured.tokens["ada"] not in page.content()
    with Sender(secured.cluster.url, secured.tokens["ada"]) as ada:
        assert "/access/audit" not in ada.get("/access").text
        assert ada.get("/access/audit").status_code == ada.get("/access/tokens").status_code == 403


def test_without_tokens_everybody_may_do_everything(visitor: Visitor) -> None:
    page = visitor.open("/access")
    expect(page.get_by_text("This cluster does not ask for tokens.")).to_be_visible()
