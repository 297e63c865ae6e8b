"""Differences between servers of which none is wrong, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(slots=True, frozen=True)
class Rules:
    """The rules of this server; `PEER` has those of a single nats-server."""

    auto_allow_direct: bool = True
    """`max_msgs_per_subject` turns `allow_direct` on, as one specification wants it (docs/compatibility.md)."""
    created_again: bool = True
    """A CREATE of what is there says that it was created; in a cluster it does not."""
    headers_of_messages: bool = True
    """MSG.GET shows headers as an object besides `hdrs`, as the specification has them."""
    empty_lists: bool = True
    """A list without an element is a list; nats-server says null for names of streams."""
    stream_first: bool = True
    """The stream is looked for before the request's body is read; a single nats-server does it after."""
    duplicates_first: bool = True
    """A message that is known is a duplicate whatever else it expects; a single nats-server looks at expectations
    first, a clustered one at duplicates."""
    up_to_time_included: bool = True
    """A message stored at the nanosecond of `up_to_time` is part of the answer."""

    behind_the_end: bool = True
    """`up_to_seq` behind the last sequence is as good as the last; nats-server's file streams find nothing then, and
    its memory streams repeat the number."""
    listed_versions: bool = True
    """STREAM.LIST has the whole metadata; nats-server leaves out what it added itself."""
    holes_in_nothing: bool = False
    """nats-server's empty file streams say that sequence 0 is deleted."""
    first_of_one: bool = False
    """A stream that shall begin at 1 says so before its first message, as does one that was purged."""
    first_seq_stays: bool = True
    """An update does not change the `first_seq` that is shown; at nats-server it shows another one, without effect."""
    nothing_to_delete: bool = False
    """MSG.DELETE of what is gone has one of two errors in nats-server's file streams: 10057 where the sequence is below
    the first block of messages, else 10043."""
    pending_exact: bool = True
    """`num_pending` is right whatever the filters and the start; nats-server's is not after a filter was changed, with
    two filters, or with a start that is still to come."""
    progress_takes_back: bool = True
    """+WPI or a NAK with a delay behind a NAK, or when the ack is overdue, lets the message wait once more; nats-server
    delivers it again."""
    past_pause_shown: bool = False
    """`pause_until` of the past ends a pause; nats-server goes on showing it."""
    bare_counted: bool = True
    """Messages sent without headers are counted in what the end of a Direct Get says is left."""
    owners_lag: bool = False
    """A pull that waits is served at once by a replica that may not have the newest messages yet, in a cluster: what it
    is told is left may be short. The player asks after `player.FRESH`."""
    removal_exact: bool = True
    """A message that is removed while it waits for its ack leaves the consumer as if it had been acked by itself;
    nats-server's ack floor moves otherwise, and with the policy `all` what is below counts as acked as well. (With that
    policy where the floor goes is not predicted.) A purge of nothing changes nothing; nats-server's consumers may
    forget what they were to deliver again at once."""
    removal_wakes: bool = True
    """A push consumer held back by `max_ack_pending` goes on when messages that it waits for are purged or deleted, and
    a paused one when it is resumed; nats-server's do so with the next message or ack."""
    floor_at_cursor: bool = True
    """With the policy `all` the floor's consumer sequence is right below what still waits, as with `explicit`; in
    nats-server it is that of the delivery that was acked, also where a later one of the message was not."""
    last_behind_deleted: bool = True
    """The last message of all subjects (`last_by_subj: ">"`) is found when newer ones were deleted, and a consumer with
    `deliver_policy: last` begins with it; nats-server finds nothing then, and begins behind it."""
    starts_exact: bool = True
    """With filters and a start time the ack floor of a new consumer is right below the first message of that time;
    nats-server's is below the first message of a filter, if the stream's first one of that comes later."""
    given_up_settled: bool = True
    """A message that was delivered as often as `max_deliver` permits counts as acked in what INFO says; nats-server's
    ack floor stays below it, and it is still counted as redelivered."""
    bound_first: bool = True
    """A deliver subject that somebody listens to refuses an update with another one before all else (10013);
    nats-server looks at the fields that may not change first (10012)."""
    unwanted_republished: bool = True
    """A message of an interest stream that no consumer wants is republished; nats-server drops it before that."""
    reset_says_no: bool = True
    """CONSUMER.RESET of what is not there is refused; nats-server says nothing."""
    rest: float = 0.0
    """Seconds after a STREAM.DELETE until the name is free: nats-server's next file stream may find the old one's data,
    or fail (10049)."""


OURS = Rules()
CLUSTERED = replace(OURS, created_again=False, owners_lag=True)
PEER = Rules(
    auto_allow_direct=False,
    headers_of_messages=False,
    empty_lists=False,
    stream_first=False,
    duplicates_first=False,
    up_to_time_included=False,
    behind_the_end=False,
    listed_versions=False,
    holes_in_nothing=True,
    first_of_one=True,
    first_seq_stays=False,
    nothing_to_delete=True,
    bare_counted=False,
    pending_exact=False,
    progress_takes_back=False,
    past_pause_shown=True,
    removal_exact=False,
    removal_wakes=False,
    floor_at_cursor=False,
    last_behind_deleted=False,
    starts_exact=False,
    given_up_settled=False,
    bound_first=False,
    unwanted_republished=False,
    reset_says_no=False,
    rest=0.1,
)
