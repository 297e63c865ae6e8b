"""A user's rights, from the user's own JWT or from the template of a scoped signing key."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo

from jetcluster.config.account_options import PermissionOptions, ResponseOptions, SubjectLists
from jetcluster.config.claims.token import ClaimsError, Fields

UNLIMITED = -1
_DAY = timedelta(days=1)
_TIME = re.compile(r"\d{1,2}:\d\d:\d\d")


@dataclass(slots=True)
class Rights:
    """Permissions and limits of a user. A limit of -1 is unlimited, 0 allows nothing."""

    permissions: PermissionOptions = field(default_factory=PermissionOptions)
    subscriptions: int = UNLIMITED
    data: int = UNLIMITED
    payload: int = UNLIMITED
    sources: list[str] = field(default_factory=list)
    """Networks (CIDR) from which the user may connect; empty: all."""
    times: list[tuple[str, str]] = field(default_factory=list)
    """Daily windows (from, to) as HH:MM:SS in which the user may connect; empty: always."""
    locale: str = ""
    """Time zone of `times`; empty: the machine's."""
    bearer: bool = False
    """The user need not sign the nonce."""
    proxy_required: bool = False
    connection_types: list[str] = field(default_factory=list)

    @property
    def is_blank(self) -> bool:
        """True for a user of a scoped signing key, whose rights must all come from the template."""
        return self == Rights(subscriptions=0, data=0, payload=0)

    def is_from_allowed(self, address: str) -> bool:
        if not self.sources:
            return True
        try:
            ip = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(ip, "ipv4_mapped", None)
        return any((mapped or ip) in ipaddress.ip_network(source, strict=False) for source in self.sources)

    def seconds_left(self, now: float) -> float | None:
        """Returns the seconds until the open window closes, 0.0 when there are no windows; None when all are closed."""
        if not self.times:
            return 0.0
        zone = _zone(self.locale)
        here = datetime.fromtimestamp(now, zone)
        found = [left for left in (_left(window, here, zone) for window in self.times) if left is not None]
        return max(found) if found else None

    def problems(self) -> Iterator[str]:
        yield from permission_problems(self.permissions)
        for source in self.sources:
            if not _is_network(source):
                yield f'invalid cidr "{source}" in user src limits'
        for start, end in self.times:
            for name, text in (("start", start), ("end", end)):
                if not text:
                    yield f"time ranges {name} must contain {'a start' if name == 'start' else 'an end'}"
                elif not _is_time(text):
                    yield f'{name} in time range is invalid "{text}"'
        try:
            _zone(self.locale)
        except ClaimsError as error:
            yield str(error)


def read_rights(fields: Fields, missing: int = 0) -> Rights:
    """Reads rights; `missing` is the value of a limit that is not given. Raises ClaimsError."""
    return Rights(
        permissions=read_permissions(fields),
        subscriptions=fields.number("subs", missing),
        data=fields.number("data", missing),
        payload=fields.number("payload", missing),
        sources=_sources(fields),
        times=[(item.text("start"), item.text("end")) for item in fields.objects("times")],
        locale=fields.text("times_location"),
        bearer=fields.flag("bearer_token"),
        proxy_required=fields.flag("proxy_required"),
        connection_types=fields.texts("allowed_connection_types"),
    )


def read_permissions(fields: Fields) -> PermissionOptions:
    """Reads `pub`, `sub` and `resp`; an empty list counts as no list. Raises ClaimsError."""
    found = PermissionOptions(_lists(fields.object("pub")), _lists(fields.object("sub")))
    if "resp" in fields:
        responses = fields.object("resp")
        count, expires = responses.number("max"), responses.number("ttl")
        default = ResponseOptions()
        found.responses = ResponseOptions(
            count or default.max_messages,
            expires / 1e9 or default.expires,
        )
    return found


def permission_problems(permissions: PermissionOptions) -> Iterator[str]:
    for lists, takes_queue in ((permissions.subscribe, True), (permissions.publish, False)):
        for entry in [*(lists.allow or ()), *(lists.deny or ())]:
            parts = entry.split(" ")
            for part in parts[:2]:
                yield from subject_problems(part)
            if len(parts) > 2:
                yield f'Permission Subject "{entry}" contains too many spaces'
            elif len(parts) == 2 and not takes_queue:
                yield f'Permission Subject "{entry}" is not allowed to contain queue'


def subject_problems(subject: str) -> Iterator[str]:
    if not subject:
        yield "subject cannot be empty"
        return
    if " " in subject:
        yield f'subject "{subject}" cannot have spaces'
    if subject.startswith(".") or subject.endswith("."):
        yield f'subject "{subject}" cannot start or end with a `.`'
    if ".." in subject:
        yield f'subject "{subject}" cannot contain consecutive `.`'


def _lists(fields: Fields) -> SubjectLists:
    return SubjectLists(fields.texts("allow") or None, fields.texts("deny") or None)


def _sources(fields: Fields) -> list[str]:
    """Reads `src`, a list or a text with commas."""
    if isinstance(fields.raw().get("src"), str):
        return [part.strip() for part in fields.text("src").lower().split(",") if part.strip()]
    return fields.texts("src")


def _zone(name: str) -> tzinfo | None:
    """Returns the time zone; None is the machine's. Raises ClaimsError."""
    if name in ("", "Local"):
        return None
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise ClaimsError(f"could not parse iana time zone by name: unknown time zone {name}") from None


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return "/" in text


def _is_time(text: str) -> bool:
    try:
        datetime.strptime(text, "%H:%M:%S")
    except ValueError:
        return False
    return _TIME.fullmatch(text) is not None


def _left(window: tuple[str, str], here: datetime, zone: tzinfo | None) -> float | None:
    """Returns the seconds until the window closes; None when it is closed. A window whose end is before its start
    spans midnight."""

    def at(text: str, day: datetime) -> float:
        moment = datetime.strptime(text, "%H:%M:%S")
        local = day.replace(hour=moment.hour, minute=moment.minute, second=moment.second, microsecond=0, tzinfo=zone)
        return local.timestamp()

    day, now = here.replace(tzinfo=None), here.timestamp()
    start, end = at(window[0], day), at(window[1], day)
    if start < now < end:
        return end - now
    if start > end:
        if now < end:
            return end - now
        if start < now:
            return at(window[1], day + _DAY) - now
    return None
