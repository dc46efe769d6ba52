"""Goal: the audit log is read back line by line, the latest first, whatever stands between the lines and no matter who
writes meanwhile.

Method: files that are written here, and pages of every size.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from metatxn.service import audit, audit_pages
from metatxn.service.audit_pages import EVERY_LINE, AuditFilter
from metatxn.wire import errors

LINE = {"event": "audit", "outcome": "allowed", "status": 204, "timestamp": "2026-03-02T09:04:00Z"}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "audit.log"
    monkeypatch.setattr(audit, "log_file", lambda: path)
    return path


def line(number: int) -> bytes:
    about: dict[str, Any] = {
        "verb": "topic.delete",
        "object": {"topic": f"t-{number}"},
        "principal": "ä" * (number % 9),
    }
    return json.dumps(LINE | about, ensure_ascii=False).encode() + b"\n"


def read_back(limit: int, wanted: AuditFilter = EVERY_LINE) -> list[list[Any]]:
    pages, token = [], None
    while True:
        page = audit_pages.latest_lines(limit, token, wanted)
        pages.append([each.object["topic"] for each in page.items])
        token = page.next_page_token
        if token is None:
            return pages


@pytest.mark.parametrize("page_bytes", [300, 1000, 1 << 18])
def test_every_line_comes_once_the_latest_first(path: Path, page_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_pages, "PAGE_BYTES", page_bytes)
    strange = b'no JSON\n[[1]]\n{"event": "begun"}\n\n\xff\n' + b"[" * 3000 + b"\n"
    path.write_bytes(line(0) + strange + b"".join(map(line, range(1, 20))) + b'{"event": "audit", "ver')
    for limit in (1, 3, 1000):
        pages = read_back(limit)
        assert [topic for page in pages for topic in page] == [f"t-{number}" for number in range(19, -1, -1)]
        assert all(len(page) <= limit for page in pages)


def test_lines_that_are_written_meanwhile_move_no_page(path: Path) -> None:
    path.write_bytes(b"".join(map(line, range(5))))
    first = audit_pages.latest_lines(2, None)
    with path.open("ab") as file:
        file.write(line(5))
    second = audit_pages.latest_lines(2, first.next_page_token)
    assert [each.object["topic"] for each in second.items] == ["t-2", "t-1"]


@pytest.mark.parametrize(
    ("wanted", "topics"),
    [
        ({"principal": "ää"}, ["t-11", "t-2"]),
        ({"verb": "topic"}, [f"t-{number}" for number in range(11, -1, -1)]),
        ({"verb": "topic.delete", "text": "T-1"}, ["t-11", "t-10", "t-1"]),
        ({"verb": "topic.del"}, []),
        ({"verb": "top"}, []),
        ({"outcome": "refused"}, []),
        ({"outcome": "allowed", "principal": "", "text": "9"}, ["t-9"]),
        ({"text": "seven"}, ["t-7"]),
        ({"text": "topic"}, []),
    ],
)
def test_only_lines_that_are_asked_for_are_shown(
    path: Path, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, str], topics: list[str]
) -> None:
    monkeypatch.setattr(audit_pages, "PAGE_BYTES", 500)
    seven = json.loads(line(7)) | {"arguments": {"to": "Seven"}}
    lines = [line(number) if number != 7 else json.dumps(seven).encode() + b"\n" for number in range(12)]
    path.write_bytes(b"".join(lines))
    assert [topic for page in read_back(2, AuditFilter(**wanted)) for topic in page] == topics


def test_a_page_of_a_file_that_was_moved_away_is_refused(path: Path) -> None:
    path.write_bytes(b"".join(map(line, range(5))))
    token = audit_pages.latest_lines(1, None).next_page_token
    path.rename(path.with_suffix(".1"))
    path.write_bytes(b"".join(map(line, range(9))))
    for wrong in (token, "x", "1-", f"{path.stat().st_ino:x}-ffffff"):
        with pytest.raises(errors.InvalidArgument, match="page_token"):
            audit_pages.latest_lines(1, wrong)


def test_an_empty_file_has_an_empty_page_and_a_missing_one_is_said(path: Path) -> None:
    path.write_bytes(b"")
    assert read_back(1) == [[]]
    path.unlink()
    with pytest.raises(errors.NotFound, match="cannot be read"):
        audit_pages.latest_lines(1, None)
