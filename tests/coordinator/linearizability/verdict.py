"""Is a history what one coordinator would have told? Every way in which it is not, with the evidence.

families     each key with its transactions, and each transaction without a key, is linearizable
decisions    anyone who is told of a decided transaction is told the very same of it

Some answers are made of two moments, and are judged as two calls in the same time. Begin and connect answer what they
find afterwards when a reply was lost inside. What connect and delete say they have aborted must be fenced when they
return: after a lost reply that may be another one's deed.

A begin that left doubt has its transaction if the lists at the end show one of its name; otherwise nobody met what it
did. Without a key it is begun anew, under another id, when a first request is not to be found, which may arrive later:
what the lists show of its name beside the one that it answered is a begin of which nobody heard. A keep-alive that was
under way while the store was away may have happened twice, since it is sent again as a new one: it is idempotent, but a
later one may come in between. So may the deletion of a key, if somebody has connected in between; and a connect, if
somebody has deleted the key.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.coordinator.linearizability.model import Answer, Coordinator, Told, described_header
from tests.histories.calls import Call, Outcome
from tests.histories.linearizable import not_linearizable

STORE_AWAY = "store away"
"""The verb that takes the store away, from before until after."""
SENT_AS_NEW = ("keep-alive", "connect", "delete")


def faults(calls: Sequence[Call]) -> Iterator[tuple[str, str]]:
    """What is wrong, and the evidence for it; nothing when all is well. Short histories, which are judged sooner, come
    first. Raises `Undecided`."""
    away = [call for call in calls if call.action["verb"] == STORE_AWAY]
    calls = [call for call in calls if call not in away]
    if evidence := _decision_fault(calls):
        yield "a decision has changed", evidence
    # A begin that was refused and has neither a key nor an id belongs to nothing that has a name.
    for family, of_family in sorted(_families(calls, away).items(), key=lambda one: len(one[1])):
        if evidence := not_linearizable(of_family, Coordinator()):
            yield f"{family} is not linearizable", evidence


def _families(calls: Sequence[Call], away: Sequence[Call]) -> dict[str, list[Call]]:
    begun: defaultdict[str, set[str]] = defaultdict(set)
    for header in (header for call in calls for header in _listed(call)):
        begun[header["properties"]["call"]].add(header["txn_id"])
    families: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        for family, part in _parts(call, begun):
            if call.outcome is Outcome.UNKNOWN and part.action.reads:
                continue
            families[family].append(part)
            if _may_have_happened_twice(call, away):
                again = replace(part.action, answer=None)
                families[family].append(replace(part, action=again, outcome=Outcome.UNKNOWN))
    return families


def _listed(call: Call) -> Sequence[Any]:
    answered = call.action["verb"] == "list" and call.outcome is Outcome.OK
    return call.result["body"]["items"] if answered else ()


def _may_have_happened_twice(call: Call, away: Sequence[Call]) -> bool:
    """Its reply was lost, it landed, and was sent again: see above."""
    if call.action["verb"] not in SENT_AS_NEW or not (_succeeded(call) or call.outcome is Outcome.UNKNOWN):
        return False
    return any(not (call.precedes(gone) or gone.precedes(call)) for gone in away)


def _parts(call: Call, begun: Mapping[str, set[str]]) -> Iterator[tuple[str, Call]]:
    """What a call is to the families that it touches."""
    action = call.action
    if call.outcome is Outcome.FAILED:
        return
    for header in _listed(call):
        told = Told({"verb": "get", "txn": header["txn_id"]}, described_header(header))
        yield _family(header), replace(call, action=told)
    match action["verb"]:
        case "list":
            return
        case "begin":
            yield from _begin_parts(call, begun)
        case "connect" | "delete":
            yield action["key"], replace(call, action=Told(action, _answer(call)))
            if _succeeded(call):
                for look in _looks_of(action["verb"], call.result["body"]):
                    yield action["key"], replace(call, action=look)
        case _:
            yield action.get("key") or action["txn"], replace(call, action=Told(action, _answer(call)))


def _family(header: Mapping[str, Any]) -> str:
    return str(header.get("transaction_key") or header["txn_id"])


def _succeeded(call: Call) -> bool:
    return call.outcome is Outcome.OK and call.result["status"] < 300


def _begin_parts(call: Call, begun: Mapping[str, set[str]]) -> Iterator[tuple[str, Call]]:
    listed = begun.get(call.action["call"], set())
    header = call.result["body"] if _succeeded(call) else {}
    created = header.get("txn_id") if _succeeded(call) and call.result["status"] == 201 else None
    if call.action["key"] is None and (call.outcome is Outcome.UNKNOWN or created is not None):
        for unheard in listed - {created}:
            told = Told(call.action | {"txn": unheard})
            yield from _with_expiry(unheard, replace(call, action=told, outcome=Outcome.UNKNOWN))
        listed = set()
    request = call.action | {"txn": created or (None if _succeeded(call) else next(iter(listed), None))}
    if call.outcome is Outcome.UNKNOWN and request["txn"] is None:
        return
    family = call.action["key"] or request["txn"]
    yield from _with_expiry(family, replace(call, action=Told(request, _answer(call))))
    if "txn_id" in header:
        yield family, replace(call, action=Told({"verb": "get", "txn": header["txn_id"]}, described_header(header)))


def _with_expiry(family: str, begin: Call) -> Iterator[tuple[str, Call]]:
    """A begin, and what the sweep may do once it is due."""
    request = begin.action.request
    yield family, begin
    if request["level"] == 0:
        due = begin.invoked + request["timeout_ms"] * 1_000_000
        yield family, Call("sweep", Told({"verb": "expire", "txn": request["txn"]}), Outcome.UNKNOWN, due, due)


def _looks_of(verb: str, answer: Mapping[str, Any]) -> Iterator[Told]:
    if verb == "connect":
        yield Told({"verb": "holds"}, (answer["epoch"], answer.get("prepared_txn_id"), answer.get("last_version")))
    if aborted := answer.get("aborted_txn_id"):
        yield Told({"verb": "fenced", "txn": aborted}, (True,))


def _answer(call: Call) -> Answer | None:
    """As the model gives it; None when nobody knows."""
    if call.outcome is not Outcome.OK:
        return None
    status, body = call.result["status"], call.result["body"]
    if status >= 300:
        return str(body["code"])
    match call.action["verb"]:
        case "begin" if body.get("already_committed"):
            return ("committed before",)
        case "begin":
            return ("begun", status == 201, body["txn_id"])
        case "connect":
            return ("epoch", body["epoch"])
        case "delete":
            return ("deleted", body["epoch"], body.get("last_version"))
        case "key":
            return (body["epoch"], body.get("txn_id"), body.get("last_version"))
    return described_header(body)


def _decision_fault(calls: Sequence[Call]) -> str | None:
    decisions: dict[str, tuple[Any, Call]] = {}
    for call in calls:
        for header in (*_listed(call), *([call.result["body"]] if _succeeded(call) else ())):
            if header.get("txn_id") and header.get("state") in ("COMMITTED", "ABORTED"):
                first, witness = decisions.setdefault(header["txn_id"], (header, call))
                if first != header:
                    return f"{header['txn_id']}:\n    {witness}\n    {call}"
    return None
