"""`Schedules`: messages that produce other messages later (ADR-51): their checks, due times, and firing.

A schedule is the last message of its subject and carries Nats-Schedule. Its entry in the index is removed when it fires
for the last time, or when it is due and its message was deleted or superseded.

The leader proposes the schedules that fire and their next times (`scheduler`). Apply decides from the state whether an
entry still holds: the index must have it at exactly that time, and its message must still be the last one of its
subject. So an entry that two leaders propose fires once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from jetcluster import errors
from jetcluster.errors import ApiError
from jetcluster.protocol import headers as header_block
from jetcluster.protocol.subjects import is_valid_literal, matches
from jetcluster.store.api import Msg
from jetcluster.store.batch import Batch
from jetcluster.store.block_store import BlockStore
from jetcluster.stream.apply.cron import LOCAL, MAX_PATTERN_BYTES, CronError, Pattern, parse
from jetcluster.stream.apply.due_index import DueIndex
from jetcluster.stream.fields import appended, nats_fields, parse_ttl, replaced, without
from jetcluster.stream.log.commands import Firing
from jetcluster.stream.ports import SIDE_SCHEDULES
from jetcluster.stream.rules import StreamRules

_NAMES: Final = """
Africa/Abidjan Africa/Accra Africa/Addis_Ababa Africa/Algiers Africa/Asmara Africa/Asmera Africa/Bamako Africa/Bangui
Africa/Banjul Africa/Bissau Africa/Blantyre Africa/Brazzaville Africa/Bujumbura Africa/Cairo Africa/Casablanca
Africa/Ceuta Africa/Conakry Africa/Dakar Africa/Dar_es_Salaam Africa/Djibouti Africa/Douala Africa/El_Aaiun
Africa/Freetown Africa/Gaborone Africa/Harare Africa/Johannesburg Africa/Juba Africa/Kampala Africa/Khartoum
Africa/Kigali Africa/Kinshasa Africa/Lagos Africa/Libreville Africa/Lome Africa/Luanda Africa/Lubumbashi Africa/Lusaka
Africa/Malabo Africa/Maputo Africa/Maseru Africa/Mbabane Africa/Mogadishu Africa/Monrovia Africa/Nairobi
Africa/Ndjamena Africa/Niamey Africa/Nouakchott Africa/Ouagadougou Africa/Porto-Novo Africa/Sao_Tome Africa/Timbuktu
Africa/Tripoli Africa/Tunis Africa/Windhoek America/Adak America/Anchorage America/Anguilla America/Antigua
America/Araguaina America/Argentina/Buenos_Aires America/Argentina/Catamarca America/Argentina/ComodRivadavia
America/Argentina/Cordoba America/Argentina/Jujuy America/Argentina/La_Rioja America/Argentina/Mendoza
America/Argentina/Rio_Gallegos America/Argentina/Salta America/Argentina/San_Juan America/Argentina/San_Luis
America/Argentina/Tucuman America/Argentina/Ushuaia America/Aruba America/Asuncion America/Atikokan America/Atka
America/Bahia America/Bahia_Banderas America/Barbados America/Belem America/Belize America/Blanc-Sablon
America/Boa_Vista America/Bogota America/Boise America/Buenos_Aires America/Cambridge_Bay America/Campo_Grande
America/Cancun America/Caracas America/Catamarca America/Cayenne America/Cayman America/Chicago America/Chihuahua
America/Ciudad_Juarez America/Coral_Harbour America/Cordoba America/Costa_Rica America/Coyhaique America/Creston
America/Cuiaba America/Curacao America/Danmarkshavn America/Dawson America/Dawson_Creek America/Denver America/Detroit
America/Dominica America/Edmonton America/Eirunepe America/El_Salvador America/Ensenada America/Fort_Nelson
America/Fort_Wayne America/Fortaleza America/Glace_Bay America/Godthab America/Goose_Bay America/Grand_Turk
America/Grenada America/Guadeloupe America/Guatemala America/Guayaquil America/Guyana America/Halifax America/Havana
America/Hermosillo America/Indiana/Indianapolis America/Indiana/Knox America/Indiana/Marengo
America/Indiana/Petersburg America/Indiana/Tell_City America/Indiana/Vevay America/Indiana/Vincennes
America/Indiana/Winamac America/Indianapolis America/Inuvik America/Iqaluit America/Jamaica America/Jujuy
America/Juneau America/Kentucky/Louisville America/Kentucky/Monticello America/Knox_IN America/Kralendijk
America/La_Paz America/Lima America/Los_Angeles America/Louisville America/Lower_Princes America/Maceio
America/Managua America/Manaus America/Marigot America/Martinique America/Matamoros America/Mazatlan America/Mendoza
America/Menominee America/Merida America/Metlakatla America/Mexico_City America/Miquelon America/Moncton
America/Monterrey America/Montevideo America/Montreal America/Montserrat America/Nassau America/New_York
America/Nipigon America/Nome America/Noronha America/North_Dakota/Beulah America/North_Dakota/Center
America/North_Dakota/New_Salem America/Nuuk America/Ojinaga America/Panama America/Pangnirtung America/Paramaribo
America/Phoenix America/Port-au-Prince America/Port_of_Spain America/Porto_Acre America/Porto_Velho
America/Puerto_Rico America/Punta_Arenas America/Rainy_River America/Rankin_Inlet America/Recife America/Regina
America/Resolute America/Rio_Branco America/Rosario America/Santa_Isabel America/Santarem America/Santiago
America/Santo_Domingo America/Sao_Paulo America/Scoresbysund America/Shiprock America/Sitka America/St_Barthelemy
America/St_Johns America/St_Kitts America/St_Lucia America/St_Thomas America/St_Vincent America/Swift_Current
America/Tegucigalpa America/Thule America/Thunder_Bay America/Tijuana America/Toronto America/Tortola
America/Vancouver America/Virgin America/Whitehorse America/Winnipeg America/Yakutat America/Yellowknife
Antarctica/Casey Antarctica/Davis Antarctica/DumontDUrville Antarctica/Macquarie Antarctica/Mawson Antarctica/McMurdo
Antarctica/Palmer Antarctica/Rothera Antarctica/South_Pole Antarctica/Syowa Antarctica/Troll Antarctica/Vostok
Arctic/Longyearbyen Asia/Aden Asia/Almaty Asia/Amman Asia/Anadyr Asia/Aqtau Asia/Aqtobe Asia/Ashgabat Asia/Ashkhabad
Asia/Atyrau Asia/Baghdad Asia/Bahrain Asia/Baku Asia/Bangkok Asia/Barnaul Asia/Beirut Asia/Bishkek Asia/Brunei
Asia/Calcutta Asia/Chita Asia/Choibalsan Asia/Chongqing Asia/Chungking Asia/Colombo Asia/Dacca Asia/Damascus
Asia/Dhaka Asia/Dili Asia/Dubai Asia/Dushanbe Asia/Famagusta Asia/Gaza Asia/Harbin Asia/Hebron Asia/Ho_Chi_Minh
Asia/Hong_Kong Asia/Hovd Asia/Irkutsk Asia/Istanbul Asia/Jakarta Asia/Jayapura Asia/Jerusalem Asia/Kabul
Asia/Kamchatka Asia/Karachi Asia/Kashgar Asia/Kathmandu Asia/Katmandu Asia/Khandyga Asia/Kolkata Asia/Krasnoyarsk
Asia/Kuala_Lumpur Asia/Kuching Asia/Kuwait Asia/Macao Asia/Macau Asia/Magadan Asia/Makassar Asia/Manila Asia/Muscat
Asia/Nicosia Asia/Novokuznetsk Asia/Novosibirsk Asia/Omsk Asia/Oral Asia/Phnom_Penh Asia/Pontianak Asia/Pyongyang
Asia/Qatar Asia/Qostanay Asia/Qyzylorda Asia/Rangoon Asia/Riyadh Asia/Saigon Asia/Sakhalin Asia/Samarkand Asia/Seoul
Asia/Shanghai Asia/Singapore Asia/Srednekolymsk Asia/Taipei Asia/Tashkent Asia/Tbilisi Asia/Tehran Asia/Tel_Aviv
Asia/Thimbu Asia/Thimphu Asia/Tokyo Asia/Tomsk Asia/Ujung_Pandang Asia/Ulaanbaatar Asia/Ulan_Bator Asia/Urumqi
Asia/Ust-Nera Asia/Vientiane Asia/Vladivostok Asia/Yakutsk Asia/Yangon Asia/Yekaterinburg Asia/Yerevan Atlantic/Azores
Atlantic/Bermuda Atlantic/Canary Atlantic/Cape_Verde Atlantic/Faeroe Atlantic/Faroe Atlantic/Jan_Mayen
Atlantic/Madeira Atlantic/Reykjavik Atlantic/South_Georgia Atlantic/St_Helena Atlantic/Stanley Australia/ACT
Australia/Adelaide Australia/Brisbane Australia/Broken_Hill Australia/Canberra Australia/Currie Australia/Darwin
Australia/Eucla Australia/Hobart Australia/LHI Australia/Lindeman Australia/Lord_Howe Australia/Melbourne
Australia/NSW Australia/North Australia/Perth Australia/Queensland Australia/South Australia/Sydney Australia/Tasmania
Australia/Victoria Australia/West Australia/Yancowinna Brazil/Acre Brazil/DeNoronha Brazil/East Brazil/West CET
CST6CDT Canada/Atlantic Canada/Central Canada/Eastern Canada/Mountain Canada/Newfoundland Canada/Pacific
Canada/Saskatchewan Canada/Yukon Chile/Continental Chile/EasterIsland Cuba EET EST EST5EDT Egypt Eire Etc/GMT
Etc/GMT+0 Etc/GMT+1 Etc/GMT+10 Etc/GMT+11 Etc/GMT+12 Etc/GMT+2 Etc/GMT+3 Etc/GMT+4 Etc/GMT+5 Etc/GMT+6 Etc/GMT+7
Etc/GMT+8 Etc/GMT+9 Etc/GMT-0 Etc/GMT-1 Etc/GMT-10 Etc/GMT-11 Etc/GMT-12 Etc/GMT-13 Etc/GMT-14 Etc/GMT-2 Etc/GMT-3
Etc/GMT-4 Etc/GMT-5 Etc/GMT-6 Etc/GMT-7 Etc/GMT-8 Etc/GMT-9 Etc/GMT0 Etc/Greenwich Etc/UCT Etc/UTC Etc/Universal
Etc/Zulu Europe/Amsterdam Europe/Andorra Europe/Astrakhan Europe/Athens Europe/Belfast Europe/Belgrade Europe/Berlin
Europe/Bratislava Europe/Brussels Europe/Bucharest Europe/Budapest Europe/Busingen Europe/Chisinau Europe/Copenhagen
Europe/Dublin Europe/Gibraltar Europe/Guernsey Europe/Helsinki Europe/Isle_of_Man Europe/Istanbul Europe/Jersey
Europe/Kaliningrad Europe/Kiev Europe/Kirov Europe/Kyiv Europe/Lisbon Europe/Ljubljana Europe/London Europe/Luxembourg
Europe/Madrid Europe/Malta Europe/Mariehamn Europe/Minsk Europe/Monaco Europe/Moscow Europe/Nicosia Europe/Oslo
Europe/Paris Europe/Podgorica Europe/Prague Europe/Riga Europe/Rome Europe/Samara Europe/San_Marino Europe/Sarajevo
Europe/Saratov Europe/Simferopol Europe/Skopje Europe/Sofia Europe/Stockholm Europe/Tallinn Europe/Tirane
Europe/Tiraspol Europe/Ulyanovsk Europe/Uzhgorod Europe/Vaduz Europe/Vatican Europe/Vienna Europe/Vilnius
Europe/Volgograd Europe/Warsaw Europe/Zagreb Europe/Zaporozhye Europe/Zurich Factory GB GB-Eire GMT GMT+0 GMT-0 GMT0
Greenwich HST Hongkong Iceland Indian/Antananarivo Indian/Chagos Indian/Christmas Indian/Cocos Indian/Comoro
Indian/Kerguelen Indian/Mahe Indian/Maldives Indian/Mauritius Indian/Mayotte Indian/Reunion Iran Israel Jamaica Japan
Kwajalein Libya MET MST MST7MDT Mexico/BajaNorte Mexico/BajaSur Mexico/General NZ NZ-CHAT Navajo PRC PST8PDT
Pacific/Apia Pacific/Auckland Pacific/Bougainville Pacific/Chatham Pacific/Chuuk Pacific/Easter Pacific/Efate
Pacific/Enderbury Pacific/Fakaofo Pacific/Fiji Pacific/Funafuti Pacific/Galapagos Pacific/Gambier Pacific/Guadalcanal
Pacific/Guam Pacific/Honolulu Pacific/Johnston Pacific/Kanton Pacific/Kiritimati Pacific/Kosrae Pacific/Kwajalein
Pacific/Majuro Pacific/Marquesas Pacific/Midway Pacific/Nauru Pacific/Niue Pacific/Norfolk Pacific/Noumea
Pacific/Pago_Pago Pacific/Palau Pacific/Pitcairn Pacific/Pohnpei Pacific/Ponape Pacific/Port_Moresby Pacific/Rarotonga
Pacific/Saipan Pacific/Samoa Pacific/Tahiti Pacific/Tarawa Pacific/Tongatapu Pacific/Truk Pacific/Wake Pacific/Wallis
Pacific/Yap Poland Portugal ROC ROK Singapore Turkey UCT US/Alaska US/Aleutian US/Arizona US/Central US/East-Indiana
US/Eastern US/Hawaii US/Indiana-Starke US/Michigan US/Mountain US/Pacific US/Samoa UTC Universal W-SU WET Zulu
"""

ZONES: Final = frozenset(_NAMES.split())
"""IANA's zone names, 2025b. The list is fixed: storing a message must not depend on the zone files of a replica."""

PATTERN: Final = b"Nats-Schedule"
ZONE: Final = b"Nats-Schedule-Time-Zone"
TARGET: Final = b"Nats-Schedule-Target"
SOURCE: Final = b"Nats-Schedule-Source"
TTL: Final = b"Nats-Schedule-TTL"
ROLLUP: Final = b"Nats-Schedule-Rollup"
NEXT: Final = b"Nats-Schedule-Next"
SCHEDULER: Final = b"Nats-Scheduler"
PURGE: Final = b"purge"

_DISABLED: Final = errors.by_code(10188)
_BAD_PATTERN: Final = errors.by_code(10189)
_BAD_TARGET: Final = errors.by_code(10190)
_BAD_TTL: Final = errors.by_code(10191)
_BAD_ROLLUP: Final = errors.by_code(10192)
_BAD_SOURCE: Final = errors.by_code(10203)
_BAD_SCHEDULER: Final = errors.by_code(10212)
_BAD_ZONE: Final = errors.by_code(10223)
_TTL_DISABLED: Final = errors.by_code(10166)

_NO_PATTERN: Final = b"too long"
_FROM_ELSEWHERE: Final = b"imported"
"""Replaces a scheduler's subject: every stream refuses it (10212)."""

LastHeaders = Callable[[bytes], bytes | None]
"""Returns the header block of the last message of a literal subject; None when there is no message."""


def check_schedule(
    rules: StreamRules, subject: bytes, fields: Mapping[bytes, bytes], ts: int, last_headers: LastHeaders
) -> ApiError | None:
    """Fault in the schedule fields of a message published at `ts` (Unix nanoseconds), or None."""
    if PATTERN not in fields and ZONE not in fields and NEXT not in fields and SCHEDULER not in fields:
        return None
    return _check_pattern(rules, subject, fields, ts) or _check_scheduler(rules, subject, fields, last_headers)


def pattern_of(fields: Mapping[bytes, bytes]) -> Pattern | None:
    """Pattern in a stored schedule's fields; None when it has no pattern."""
    value = fields.get(PATTERN)
    return parse(value, fields.get(ZONE)) if value else None


def _check_pattern(rules: StreamRules, subject: bytes, fields: Mapping[bytes, bytes], ts: int) -> ApiError | None:
    zone = fields.get(ZONE)
    error = None
    if zone is not None and not _is_zone(zone):
        error = _BAD_ZONE
    elif not fields.get(PATTERN):
        return None
    else:
        pattern = pattern_of(fields)
        if pattern is None or not _fires(pattern, ts):
            error = _BAD_PATTERN
    if not rules.allow_msg_schedules:
        return _DISABLED
    return error or _check_options(rules, fields) or _check_subjects(rules, subject, fields)


def _check_options(rules: StreamRules, fields: Mapping[bytes, bytes]) -> ApiError | None:
    ttl = fields.get(TTL)
    if ttl and parse_ttl(ttl) is None:
        return _BAD_TTL
    if fields.get(ROLLUP, b"") not in (b"", b"sub"):
        return _BAD_ROLLUP
    return _TTL_DISABLED if ttl and not rules.allow_msg_ttl else None


def _check_subjects(rules: StreamRules, subject: bytes, fields: Mapping[bytes, bytes]) -> ApiError | None:
    target, source = fields.get(TARGET, b""), fields.get(SOURCE, b"")
    if target == subject or not is_own(rules, target):
        return _BAD_TARGET
    if source and (source in (target, subject) or not is_own(rules, source)):
        return _BAD_SOURCE
    return None if fields.get(b"Nats-Rollup", b"").lower() in (b"", b"sub") else _BAD_ROLLUP


def _check_scheduler(
    rules: StreamRules, subject: bytes, fields: Mapping[bytes, bytes], last_headers: LastHeaders
) -> ApiError | None:
    scheduler = fields.get(SCHEDULER)
    if not fields.get(NEXT):
        return _BAD_SCHEDULER if scheduler else None
    if fields[NEXT] != PURGE or not scheduler or scheduler == subject or not is_valid_literal(scheduler):
        return _BAD_SCHEDULER
    if not rules.allow_msg_schedules:
        return _DISABLED
    headers = last_headers(scheduler)
    if headers is not None and not header_block.get(headers, PATTERN):
        return _BAD_SCHEDULER
    return None


def is_own(rules: StreamRules, subject: bytes) -> bool:
    """True for a literal subject of the stream's own."""
    return is_valid_literal(subject) and any(matches(subject, own) for own in rules.subjects)


def with_rollup(headers: bytes, fields: dict[bytes, bytes]) -> bytes:
    """Adds a rollup to a schedule's block and `fields`: it replaces the previous one on its subject."""
    if not fields.get(PATTERN) or fields.get(b"Nats-Rollup"):
        return headers
    fields[b"Nats-Rollup"] = b"sub"
    return appended(headers, b"Nats-Rollup", b"sub")


def without_schedule(headers: bytes) -> bytes:
    """The header block of a message of another account (with Nats-Request-Info): fields that would make or delete a
    schedule are replaced by one that every replica refuses (10212)."""
    fields = nats_fields(headers)
    found = [key for key in (PATTERN, ZONE, NEXT, SCHEDULER) if key in fields]
    for key in found:
        headers = header_block.remove(headers, key)
    return appended(headers, SCHEDULER, _FROM_ELSEWHERE) if found else headers


def shortened(headers: bytes) -> bytes:
    """Replaces a client's pattern that takes milliseconds to parse by one that every replica refuses (10189)."""
    pattern = header_block.get(headers, PATTERN)
    return (
        replaced(headers, PATTERN, _NO_PATTERN) if pattern is not None and len(pattern) > MAX_PATTERN_BYTES else headers
    )


class Schedules:
    """The index of due times."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self.index = DueIndex(store, SIDE_SCHEDULES)
        self.plans: dict[tuple[bytes, str], tuple[int, int]] = {}
        """Memory of the `Scheduler`, not of the state: by cron pattern and zone, a time and the next match after it."""

    def note(self, seq: int, ts: int, fields: Mapping[bytes, bytes]) -> None:
        """Notes a stored schedule. One with a zone is due at once: the leader then proposes its real time."""
        pattern = pattern_of(fields)
        assert pattern is not None  # checked
        self.index.add(ts if pattern.zone else pattern.next_after(ts), [seq])
        self.index.sweep(self._store.contains)


def _fires(pattern: Pattern, ts: int) -> bool:
    try:
        pattern.next_after(ts)
    except CronError:
        return False
    return True


def _is_zone(name: bytes) -> bool:
    return name.decode("latin-1") in ZONES or name == LOCAL.encode()


_DROPPED_PREFIXES = (b"Nats-Schedule", b"Nats-Expected-")
"""The first includes Nats-Scheduler."""
_DROPPED = frozenset((b"Nats-Msg-Id", b"Nats-TTL", b"Nats-Rollup"))


def fire(store: BlockStore, rules: StreamRules, due: Schedules, firings: Sequence[Firing]) -> Batch | None:
    """Moves the entries of the index on; returns the messages to store in the same command. Raises DamagedError."""
    made: list[tuple[bytes, bytes, bytes]] = []
    index = due.index
    for firing in firings:
        if not index.has(firing.due, firing.seq):
            continue
        index.remove(firing.due, firing.seq)
        schedule = store.get(firing.seq)
        if schedule is None or store.last_seq_of(schedule.subject) != firing.seq:
            continue
        if firing.next_due:
            index.add(firing.next_due, [firing.seq])
        if not firing.planned_only and (message := produced(store, rules, schedule, firing.next_text)) is not None:
            made.append(message)
    if not made:
        return None
    subjects, headers, payloads = zip(*made, strict=True)
    return Batch.of(subjects, headers, payloads)


def produced(
    store: BlockStore, rules: StreamRules, schedule: Msg, next_text: bytes
) -> tuple[bytes, bytes, bytes] | None:
    """Subject, header block and payload of the message that a schedule produces; None when its target is no longer a
    subject of the stream. `next_text` goes into Nats-Schedule-Next: a time, or "purge" at the last firing."""
    fields = nats_fields(schedule.headers)
    target = fields.get(TARGET, b"")
    if not is_own(rules, target):
        return None
    content = schedule
    source = fields.get(SOURCE)
    if source and (last := store.last_seq_of(source)):
        content = store.get(last) or schedule
    headers = without(content.headers, _DROPPED, _DROPPED_PREFIXES)
    headers = appended(headers, SCHEDULER, schedule.subject)
    headers = appended(headers, NEXT, next_text)
    ttl, rollup = fields.get(TTL), fields.get(ROLLUP)
    if ttl:
        headers = appended(headers, b"Nats-TTL", ttl)
    if rollup:
        headers = appended(headers, b"Nats-Rollup", rollup)
    return target, headers, content.payload
