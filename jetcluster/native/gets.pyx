"""`plain_get`, `message_head` and `frames_of`: a Direct Get request read, and the header blocks of its answer written.

The twins are `stream.read.get_request.GetRequest`, and `DirectGet` with `model.times.rfc3339_bytes`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcmp

from jetcluster.native.source cimport SOURCE_DIGEST
from jetcluster.native.writing cimport digits, put, put_number

SOURCE = SOURCE_DIGEST.decode()
"""`native.source_digest` of the sources it was compiled from."""

cdef enum:
    MAX_DIGITS = 18
    REST_BYTES = 256  # 169: the constant parts of a header block, three numbers of 64 bits and the time


cdef inline Py_ssize_t _blank(const char *data, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    return at + 1 if at < end and data[at] == 32 else at


def plain_get(bytes payload not None):
    """Returns the sequence of `{"seq":5}` or the subject of `{"last_by_subj":"a.b"}`. None for all other requests, also
    for those two with a wildcard, an escape, a byte that is not printable ASCII, or a number of no message."""
    cdef const char *data = PyBytes_AS_STRING(payload)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(payload), at = 0, begin
    cdef long long number = 0
    if end < 9 or data[0] != 123 or data[end - 1] != 125:  # braces
        return None
    at = _blank(data, 1, end)
    if end - at > 6 and memcmp(data + at, b'"seq":', 6) == 0:
        at = begin = _blank(data, at + 6, end)
        while 48 <= data[at] <= 57:
            if at - begin == MAX_DIGITS:
                return None
            number = number * 10 + (data[at] - 48)
            at += 1
        if not number or data[begin] == 48 or _blank(data, at, end) != end - 1:
            return None
        return number
    if end - at > 15 and memcmp(data + at, b'"last_by_subj":', 15) == 0:
        at = _blank(data, at + 15, end)
        if data[at] != 34:  # "
            return None
        at = begin = at + 1
        while 32 < data[at] < 127 and data[at] not in (34, 92, 42, 62):  # " \ * >
            at += 1
        if data[at] != 34 or at == begin or _blank(data, at + 1, end) != end - 1:
            return None
        return PyBytes_FromStringAndSize(data + begin, at - begin)
    return None


cdef inline char *_put_padded(char *out, Py_ssize_t number, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t at = size
    while at:
        at -= 1
        out[at] = 48 + number % 10
        number //= 10
    return out + size


cdef char *_put_time(char *out, long long ns) noexcept nogil:
    """Writes Unix nanoseconds as RFC 3339 in UTC, 0 as Go's zero time. Days to dates as in "chrono-Compatible Low-Level Date
    Algorithms" (H. Hinnant), where a year begins in March."""
    cdef long long second = ns // 1000000000, fraction = ns % 1000000000
    cdef long long days = second // 86400 + 719468, era, year
    cdef long long of_era, year_of_era, of_year, month, size = 9
    if not ns:
        return put(out, b"0001-01-01T00:00:00Z", 20)
    second %= 86400
    era = days // 146097
    of_era = days - era * 146097
    year_of_era = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month = (5 * of_year + 2) // 153
    year = year_of_era + era * 400 + (month >= 10)
    out = put(_put_padded(out, year, 4), b"-", 1)
    out = put(_put_padded(out, month + 3 if month < 10 else month - 9, 2), b"-", 1)
    out = put(_put_padded(out, of_year - (153 * month + 2) // 5 + 1, 2), b"T", 1)
    out = put(_put_padded(out, second // 3600, 2), b":", 1)
    out = put(_put_padded(out, second // 60 % 60, 2), b":", 1)
    out = _put_padded(out, second % 60, 2)
    if fraction:
        while fraction % 10 == 0:
            fraction //= 10
            size -= 1
        out = _put_padded(put(out, b".", 1), fraction, size)
    return put(out, b"Z", 1)


cdef bytes _head(
    bytes start, bytes subject, unsigned long long seq, long long time, bint with_pending, unsigned long long pending,
    bint with_last, unsigned long long last,
):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(start) + PyBytes_GET_SIZE(subject)
    cdef char rest[REST_BYTES]
    cdef char *out = rest
    cdef bytes head
    out = put_number(put(out, b"\r\nNats-Sequence: ", 17), seq)
    out = _put_time(put(out, b"\r\nNats-Time-Stamp: ", 19), time)
    if with_pending:
        out = put_number(put(out, b"\r\nNats-Num-Pending: ", 20), pending)
    if with_last:
        out = put_number(put(out, b"\r\nNats-Last-Sequence: ", 22), last)
    out = put(out, b"\r\n\r\n", 4)
    head = PyBytes_FromStringAndSize(NULL, size + (out - rest))
    put(put(put(PyBytes_AS_STRING(head), PyBytes_AS_STRING(start), PyBytes_GET_SIZE(start)),
            PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject)), rest, out - rest)
    return head


def message_head(bytes start not None, bytes subject not None, unsigned long long seq, long long time, pending=-1, last=-1):
    """Returns the header block of a stored message: `start`, the subject, the sequence, the time (Unix nanoseconds), and,
    unless they are negative, Nats-Num-Pending and Nats-Last-Sequence. Sequences go up to 2^64 - 1."""
    cdef bint with_pending = pending >= 0, with_last = last >= 0
    return _head(start, subject, seq, time, with_pending, pending if with_pending else 0, with_last, last if with_last else 0)


def frames_of(
    object columns not None, object start_of, bint no_headers, long long pending, unsigned long long last, long long room
):
    """Returns (frames, their bytes, and `pending`, `last` and `room` after them): each message of the five lists
    `columns` as (header block, payload), until `room` bytes of messages are used up. `start_of` returns the `start` of
    `message_head` for a stored header block; `pending` is the number of messages from the first one on."""
    cdef list seqs, times, subjects, stored, payloads, frames = []
    cdef Py_ssize_t i, size = 0
    cdef unsigned long long seq
    cdef bytes head = b"", plain = start_of(b""), block, subject, payload
    seqs, times, subjects, stored, payloads = columns
    if not len(seqs) == len(times) == len(subjects) == len(stored) == len(payloads):
        raise ValueError("columns have equal lengths")
    for i in range(len(seqs)):
        seq, block, subject, payload = seqs[i], stored[i], subjects[i], payloads[i]
        if block is None or subject is None or payload is None:
            raise TypeError("columns have no gaps")
        pending -= 1
        if not no_headers:
            head = _head(start_of(block) if block else plain, subject, seq, times[i], pending >= 0, pending, True, last)
        frames.append((head, payload))
        last = seq
        size += PyBytes_GET_SIZE(head) + PyBytes_GET_SIZE(payload)
        room -= PyBytes_GET_SIZE(subject) + PyBytes_GET_SIZE(block) + PyBytes_GET_SIZE(payload)
        if room <= 0:
            break
    return frames, size, pending, last, room
