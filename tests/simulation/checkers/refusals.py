"""Refused only for what was so: of every definite refusal the history tells what made it true, at some time while the
attempt that was refused was under way; and what was certainly refused, each time that it was asked for, was not done.
In a transaction nothing is taken that nobody was given.

A refusal that says that the same request may succeed later needs no reason. That no entry is there which was certainly
refused is what `repeated_writes` tells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from metastore.txn import paths
from metatxn.wire.ids import TxnId
from tests.simulation.history import Asked, History, Outcome, held_under

_OF_THE_MOMENT = {"STORE_UNAVAILABLE", "NOT_OWNER", "RATE_LIMITED", "STORAGE_FULL", "UNREACHABLE"}
_OPERATIONS = ("entries", "messages", "acks")
_ON_ITS_WAY = "it is being sent to the dead-letter topic"


def check(history: History) -> Iterable[str]:
    for asked in history.asked:
        if asked.code is not None and asked.code not in _OF_THE_MOMENT:
            reason = _REASONS.get(asked.code)
            if reason is None or not reason(history, asked):
                yield f"nothing that has happened is a reason for {asked}"
    for taken in history.given_to_nobody:
        yield f"{taken} was taken, and nobody was given the message"
    requests = defaultdict(list)
    for asked in history.asked:
        requests[asked.verb, _subject(asked)].append(asked)
    for done in _done(history):
        if (wanted := requests[done]) and all(asked.outcome is Outcome.FAILED for asked in wanted):
            yield f"{done} was done, and each of these was certainly refused: {wanted}"


def _subject(asked: Asked) -> str | None:
    if asked.subscription is not None:
        return None
    return asked.by or asked.txn_id or (asked.topic and paths.topic(asked.topic))


def _done(history: History) -> Iterator[tuple[str, str]]:
    """Verbs that have taken effect, and on what. Deadlines, newer owners of a key and subscriptions that move end
    transactions unasked."""
    for by in history.begun_by.values():
        yield "txns", by
    for txn_id, decision in history.decisions.items():
        moved = (decision.header.reason or "").endswith(" was moved")
        if decision.header.expired_by is None and not moved:
            yield "commit" if decision.committed else "abort", txn_id
    for key, states in history.states.items():
        if key.startswith(paths.PREPARED):
            yield "prepare", key.removeprefix(paths.PREPARED)
        elif key.startswith(paths.TOPICS) and states[-1][1] is None:  # what a topic has goes with it
            yield "DELETE", key


# -- reasons -------------------------------------------------------------------------------------------------------


def _decided(history: History, asked: Asked) -> bool:
    decision = history.decisions.get(asked.txn_id or "")
    return decision is not None and decision.revision <= asked.at_revision


def _expired(history: History, asked: Asked) -> bool:
    return _decided(history, asked) and history.decisions[asked.txn_id or ""].header.expired_by is not None


def _decided_or_incomplete(history: History, asked: Asked) -> bool:
    """The library refuses to commit what is not all there."""
    return _decided(history, asked) or any(
        other.txn_id == asked.txn_id and other.verb in _OPERATIONS and other.outcome is not Outcome.OK
        for other in history.asked
    )


def _unknown(history: History, asked: Asked) -> bool:
    collected = history.collected.get(asked.txn_id or "")
    return asked.txn_id not in history.begun or (collected is not None and collected[0] <= asked.at_revision)


def _takes_no_more(history: History, asked: Asked) -> bool:
    if asked.verb == "seek":
        return bool(asked.holders) and all(_holds_up(history, asked, txn_id) for txn_id in asked.holders)
    if asked.holder is not None or asked.never_given or asked.txn_id is None:
        return asked.verb == "acks" and _held(history, asked)
    prepared = paths.prepared(TxnId.parse(asked.txn_id))
    was_prepared = history.was(prepared, {"there"}, asked.floor, asked.at_revision)
    if was_prepared or _decided(history, asked):
        return True
    return _held(history, asked) if asked.verb == "acks" else _given_up(history, asked)


def _given_up(history: History, asked: Asked) -> bool:
    """The library sends no more of a transaction that its user has given up, whether or not the abort arrives."""
    return asked.verb == "messages" and any(
        (other.verb, other.txn_id) == ("commit", asked.txn_id)
        and other.began <= asked.at_revision
        and other.outcome is not Outcome.OK
        for other in history.asked
    )


def _held(history: History, asked: Asked) -> bool:
    """Another transaction has what was to be acknowledged, and may still commit; or somebody has acknowledged it, or
    the policy has, or it was given up; or was given it by nobody who remembers."""
    if asked.never_given:
        return _may_be_forgotten(history, asked)
    if asked.holder is None:
        if _is_trimmed(history, asked.topic) or _has_expired(history, asked) or _is_dead(history, asked):
            return True
        return any(other is not asked and _may_have_acknowledged(other, asked) for other in history.asked)
    decision = history.decisions.get(asked.holder)
    collected = history.collected.get(asked.holder)
    return (
        decision is None
        or decision.committed
        or decision.revision > asked.floor
        or (collected is not None and collected[0] <= asked.at_revision)
    )


def _is_dead(history: History, asked: Asked) -> bool:
    """There is a dead letter, or one was on its way. The latter may be in vain: then the message is delivered once
    more."""
    letters = history.letters.get(asked.topic or "")
    return bool(letters) or (letters is not None and _ON_ITS_WAY in (asked.detail or ""))


def _holds_up(history: History, asked: Asked, txn_id: str) -> bool:
    """An open transaction has acknowledged something of the subscription."""
    decision = history.decisions.get(txn_id)
    return (decision is None or decision.revision > asked.floor) and any(
        (other.verb, other.txn_id) == ("acks", txn_id) and other.subscription == asked.subscription
        for other in history.asked
    )


def _may_be_forgotten(history: History, asked: Asked) -> bool:
    """What was given is not known any more where a segment has had more than one owner, or after a seek. Where it is
    shared by key, what has returned must be given again."""
    if history.delivered:
        return True
    if any(other.verb == "seek" and other.subscription == asked.subscription for other in history.asked):
        return True
    received = any(
        (other.verb, other.topic, other.subscription) == ("receive", asked.topic, asked.subscription)
        and other.began <= asked.at_revision
        for other in history.asked
    )
    return not received or any(
        len(owners) > 1 and owners[1][0] <= asked.at_revision
        for key, owners in history.states.items()
        if key.startswith(paths.SEGMENT_OWNERS)
    )


def _may_have_acknowledged(other: Asked, asked: Asked) -> bool:
    """A subscription that has moved to the end has acknowledged all before."""
    same = (other.topic, other.subscription) == (asked.topic, asked.subscription)
    return (
        same
        and other.verb in ("acks", "seek")
        and other.outcome is not Outcome.FAILED
        and other.began <= asked.at_revision
    )


def _taken_over(history: History, asked: Asked) -> bool:
    """By a later epoch of its key, or by nobody, and the key was forgotten."""
    began = history.under_keys.get(asked.txn_id or "")
    key, epoch = (began.key, began.epoch) if began is not None else (asked.key, asked.epoch)
    forgotten = any(revision <= asked.at_revision for revision in history.forgotten_keys.get(key or "", ()))
    return forgotten or any(
        revision <= asked.at_revision and epoch is not None and later > epoch
        for revision, later in history.epochs.get(key or "", ())
    )


def _claimed(history: History, asked: Asked) -> bool:
    """The topic was somebody's own, and for an entry under an epoch not that one's."""
    topic = asked.topic if asked.segment is None else topic_of(asked.segment)
    if topic is None or asked.verb not in ("entries", "exclusive-producer"):
        return False
    key = paths.exclusive_producer(topic)
    states = {state for _, state in history.states.get(key, ())}
    if asked.verb == "entries" and asked.epoch is not None:
        return history.was(key, states - {held_under(asked.epoch)} | {None}, asked.floor, asked.at_revision)
    return history.was(key, states - {None, "there"}, asked.floor, asked.at_revision)


def _missing(history: History, asked: Asked) -> bool:
    return _was_one_of(history, asked, {None})


def _there(history: History, asked: Asked) -> bool:
    return _was_one_of(history, asked, {"there"})


def _was_one_of(history: History, asked: Asked, states: set[str | None]) -> bool:
    """What it names, or that to which this belongs."""
    keys = []
    if asked.segment is not None:
        keys = [paths.segment(asked.segment), paths.topic(topic_of(asked.segment))]
    if asked.topic is not None:
        keys.append(paths.topic(asked.topic))
        if asked.subscription is not None:
            keys.append(paths.subscription(asked.topic, asked.subscription))
    return any(history.was(key, states, asked.floor, asked.at_revision) for key in keys)


def topic_of(segment: str) -> str:
    return segment.removeprefix("segment://").rpartition("/")[0]


def _sealed(history: History, asked: Asked) -> bool:
    assert asked.segment is not None
    return history.was(paths.segment(asked.segment), {"sealed", None}, asked.floor, asked.at_revision)


def _in_use(history: History, asked: Asked) -> bool:
    """By what is not looked for; but only who deletes it is refused, and only while it is there."""
    assert asked.segment is not None
    there = history.was(paths.segment(asked.segment), {"active", "sealed"}, asked.floor, asked.at_revision)
    return asked.verb == "DELETE" and there


def _trimmed(history: History, asked: Asked) -> bool:
    if asked.segment is not None:
        return asked.segment in history.trimmed
    return _is_trimmed(history, asked.topic)


def _has_expired(history: History, asked: Asked) -> bool:
    """Of a subscription that nobody uses it is known, and the policy is that of all subscriptions."""
    return any(
        asked.segment in (None, each.segment) and asked.topic == topic_of(each.segment) for each in history.expired
    )


def _is_trimmed(history: History, topic: str | None) -> bool:
    return any(topic_of(segment) == topic for segment in history.trimmed)


def _wrong(history: History, asked: Asked) -> bool:
    """Nobody here asks for what makes no sense but those who do so on purpose."""
    match asked.argument:
        case "epoch":
            return asked.verb == "txns" and asked.key is not None and asked.epoch is None
        case "kind":
            return asked.verb == "acks" and asked.cumulative
        case "message_ids":  # of a topic that was deleted and made again, or whose oldest messages were dropped
            if asked.topic is None:
                return False
            return _trimmed(history, asked) or None in [state for _, state in history.states[paths.topic(asked.topic)]]
        case "segment":  # a partition of Kafka's clients is neither split nor merged
            return asked.verb in ("split", "merge") and history.kafka is not None
        case "sequence" if asked.sequence is not None:
            producer, sequence, holds = asked.sequence
            return any(
                other.sequence is not None and other.sequence[:2] == (producer, sequence) and other.sequence[2] != holds
                for other in history.asked
            )
    return False


_REASONS: dict[str, Callable[[History, Asked], bool]] = {
    "INVALID_TXN_STATE": _decided_or_incomplete,
    "EXPIRED_TRANSACTION": _expired,
    "TXN_NOT_FOUND": _unknown,
    "TXN_CONFLICT": _takes_no_more,
    "NOT_ALLOWED": lambda history, asked: _taken_over(history, asked) or _claimed(history, asked),
    "NOT_FOUND": _missing,
    "ALREADY_EXISTS": _there,
    "SEGMENT_SEALED": _sealed,
    "SEGMENT_IN_USE": _in_use,
    "POSITION_TRIMMED": _trimmed,
    "INVALID_ARGUMENT": _wrong,
}
