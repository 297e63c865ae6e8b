"""`Columns`: the messages of an answer to a batched Direct Get, from the bytes of a connection straight into columns; and
`header_fields`: the fields of their header blocks.

The twins are `client.connection.Connection`, which makes two objects of each message, and `arrow.convert`, which finds
the fields in them with Arrow's kernels.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from jetcluster.native.source cimport SOURCE_DIGEST

SOURCE = SOURCE_DIGEST.decode()
"""`native.source_digest` of the sources it was compiled from."""

cdef extern from "string.h" nogil:
    void *memrchr(const void *data, int byte, size_t size)

cdef enum:
    MAX_DIGITS = 9  # of a size
    MAX_SEQ_DIGITS = 19
    PLAIN_BYTES = 10  # NATS/1.0\r\n
    OWN_LINES = 6
    FRAME_BYTES = 64  # less than any frame with a message has
    MAX_COLUMN_BYTES = 2147483647  # offsets have 32 bits

cdef int64_t SECOND = 1000000000

cdef enum Fault:
    NONE
    STREAM
    SUBJECT
    SEQUENCE
    TIME
    SIZE

_FAULTS = {
    STREAM: "a message without Nats-Stream",
    SUBJECT: "a message without Nats-Subject where it belongs",
    SEQUENCE: "a message without Nats-Sequence where it belongs",
    TIME: "a message without Nats-Time-Stamp where it belongs",
    SIZE: "an answer of more than 2 GiB",
}


cdef inline int64_t _number(const char *data, Py_ssize_t at, Py_ssize_t end, Py_ssize_t most) noexcept nogil:
    """The decimal number in data[at:end]; -1 for anything else."""
    cdef uint64_t number = 0  # 19 digits fit
    if not 0 < end - at <= most:
        return -1
    while at < end:
        if not 48 <= data[at] <= 57:
            return -1
        number = number * 10 + <uint64_t>(data[at] - 48)
        at += 1
    return <int64_t>number if number >> 63 == 0 else -1


cdef inline Py_ssize_t _line_end(const char *data, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """The place of the CRLF of the line that begins at `at`; -1 for none before `end`."""
    cdef const char *found = <const char *>memchr(data + at, 13, end - at)
    while found != NULL:
        if found + 1 < data + end and found[1] == 10:
            return found - data
        found = <const char *>memchr(found + 1, 13, data + end - found - 1)
    return -1


cdef inline int _two(const char *data) noexcept nogil:
    if not (48 <= data[0] <= 57 and 48 <= data[1] <= 57):
        return -1
    return (data[0] - 48) * 10 + data[1] - 48


cdef int64_t _time(const char *data, Py_ssize_t size, bint *good) noexcept nogil:
    """Unix nanoseconds of a time like 2026-11-22T10:00:00.123Z. Dates to days as in
    "chrono-Compatible Low-Level Date Algorithms" (H. Hinnant)."""
    cdef int64_t year, days, era, of_era, fraction = 0
    cdef int month, day, hour, minute, second, century
    cdef Py_ssize_t at
    good[0] = False
    if size < 20 or size > 30 or data[size - 1] != 90 or data[4] != 45 or data[7] != 45 or data[10] != 84 or (
            data[13] != 58 or data[16] != 58):
        return 0
    century, year, month, day = _two(data), _two(data + 2), _two(data + 5), _two(data + 8)
    hour, minute, second = _two(data + 11), _two(data + 14), _two(data + 17)
    if century < 0 or year < 0 or not 1 <= month <= 12 or not 1 <= day <= 31 or not 0 <= hour <= 23 or (
            not 0 <= minute <= 59) or not 0 <= second <= 59:
        return 0
    if size > 20:
        if data[19] != 46 or size == 21:
            return 0
        for at in range(20, 29):
            fraction *= 10
            if at < size - 1:
                if not 48 <= data[at] <= 57:
                    return 0
                fraction += data[at] - 48
    year += century * 100
    if not 1678 <= year <= 2261:  # what fits 64 bits of nanoseconds
        return 0
    if day > 28 and day > (28 + (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)) if month == 2 else
                           30 + ((month + month // 8) & 1)):
        return 0
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    days = era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + (153 * ((month + 9) % 12) + 2) // 5
    days += day - 1 - 719468
    good[0] = True
    return (((days * 24 + hour) * 60 + minute) * 60 + second) * SECOND + fraction


cdef struct Place:
    Py_ssize_t at
    Py_ssize_t size


cdef struct Message:  # places in the input
    Place stored
    Place stream
    Place subject
    Place payload
    int64_t seq
    int64_t time
    int64_t pending
    Py_ssize_t end
    int lines  # of the block, from Nats-Stream on


cdef inline bint _field(const char *data, Py_ssize_t *at, Py_ssize_t end, const char *name, Py_ssize_t size,
                        Place *value) noexcept nogil:
    """Reads the line at `at` if it is the field `name`, and goes to the next one."""
    cdef Py_ssize_t stop
    if end - at[0] < size or memcmp(data + at[0], name, size) != 0:
        return False
    stop = _line_end(data, at[0], end)
    if stop < 0:
        return False
    value.at, value.size = at[0] + size, stop - at[0] - size
    at[0] = stop + 2
    return True


cdef Py_ssize_t _own_fields(const char *data, Py_ssize_t begin, Py_ssize_t end) noexcept nogil:
    """The place of the last line that begins with Nats-Stream; -1 for none. Stored fields may have that name, too."""
    cdef const char *found
    cdef Py_ssize_t at = end
    while at > begin:
        found = <const char *>memrchr(data + begin, 10, at - begin)
        if found == NULL:
            return -1
        at = found - data
        if end - at > 14 and memcmp(data + at + 1, b"Nats-Stream: ", 13) == 0 and data[at - 1] == 13:
            return at + 1
    return -1


cdef Fault _fields(const char *data, Py_ssize_t begin, Py_ssize_t end, Message *found) noexcept nogil:
    """Reads the header block data[begin:end]. Most have nothing but the server's own fields, each once: those are read
    from the begin, and are right if nothing is left behind them."""
    if end - begin > PLAIN_BYTES + 13 and memcmp(data + begin + PLAIN_BYTES, b"Nats-Stream: ", 13) == 0:
        if _fields_from(data, begin, begin + PLAIN_BYTES, end, found) == NONE and found.lines == OWN_LINES:
            return NONE
    return _fields_from(data, begin, _own_fields(data, begin, end), end, found)


cdef Fault _fields_from(const char *data, Py_ssize_t begin, Py_ssize_t at, Py_ssize_t end, Message *found) noexcept nogil:
    """Reads the server's own fields from `at` on; -1: there are none."""
    cdef Place value
    cdef bint good
    if at < 0 or not _field(data, &at, end, b"Nats-Stream: ", 13, &found.stream):
        return STREAM
    found.stored.at, found.stored.size = begin, found.stream.at - 13 - begin
    if not _field(data, &at, end, b"Nats-Subject: ", 14, &found.subject):
        return SUBJECT
    if not _field(data, &at, end, b"Nats-Sequence: ", 15, &value):
        return SEQUENCE
    found.seq = _number(data, value.at, value.at + value.size, MAX_SEQ_DIGITS)
    if found.seq < 0:
        return SEQUENCE
    if not _field(data, &at, end, b"Nats-Time-Stamp: ", 17, &value):
        return TIME
    found.time = _time(data + value.at, value.size, &good)
    if not good:
        return TIME
    found.pending = -1
    found.lines = 4
    while at < end - 2:
        found.lines += 1
        if _field(data, &at, end, b"Nats-Num-Pending: ", 18, &value):
            found.pending = _number(data, value.at, value.at + value.size, MAX_SEQ_DIGITS)
        elif not _field(data, &at, end, b"", 0, &value):
            break
    return NONE


cdef inline void _put(bytearray column, Py_ssize_t *size, const char *data, const Place *value) noexcept nogil:
    memcpy((<char *>(<PyByteArray *>column).ob_start) + size[0], data + value.at, value.size)
    size[0] += value.size


cdef extern from "Python.h":
    ctypedef struct PyByteArray "PyByteArrayObject":
        char *ob_start


cdef class Columns:
    """Messages whose frames begin with `HMSG <subject> <sid> `, which `prefix` is."""

    cdef bytes prefix
    cdef bytearray seqs, times, subjects, subject_ends, blocks, block_ends, payloads, payload_ends
    cdef Py_ssize_t subjects_size, blocks_size, payloads_size
    cdef bytes answered
    cdef Fault wrong
    cdef readonly Py_ssize_t count
    cdef readonly int64_t first_pending
    cdef readonly int64_t last_pending
    """The counts of messages that follow, of the first message and of the last one; -1 for none."""

    def __init__(self, bytes prefix not None):
        self.prefix = prefix
        self.seqs, self.times, self.subjects, self.blocks, self.payloads = (bytearray() for _ in range(5))
        self.subject_ends, self.block_ends, self.payload_ends = bytearray(4), bytearray(4), bytearray(4)
        self.answered = b""
        self.first_pending = self.last_pending = -1

    @property
    def stream(self):
        """The stream whose replica answered, by the last message."""
        return self.answered

    @property
    def fault(self):
        """What is wrong with a frame, behind which nothing was taken; "" for nothing."""
        return _FAULTS.get(self.wrong, "")

    def take(self, bytes data not None, Py_ssize_t at):
        """Takes the complete messages that begin at `at`. Returns the place behind them: of an end of the data, of a
        frame that is not complete, or of any that is not a message of this answer."""
        cdef const char *begin = PyBytes_AS_STRING(data)
        cdef const char *prefix = PyBytes_AS_STRING(self.prefix)
        cdef Py_ssize_t prefix_size = PyBytes_GET_SIZE(self.prefix), end = PyBytes_GET_SIZE(data), count = self.count
        cdef Py_ssize_t room
        cdef Message message
        cdef Place stream
        stream.at = stream.size = 0
        if not 0 <= at <= end:
            raise ValueError("not a place")
        if self.wrong != NONE:
            return at
        self._grow(end - at)
        with nogil:
            while self._next(begin, at, end, prefix, prefix_size, &message):
                if self.subjects_size + message.subject.size > MAX_COLUMN_BYTES or (
                        self.blocks_size + message.stored.size + 2 > MAX_COLUMN_BYTES) or (
                        self.payloads_size + message.payload.size > MAX_COLUMN_BYTES):
                    self.wrong = SIZE
                    break
                self._add(begin, &message)
                stream = message.stream
                at = message.end
        if self.count > count:
            self.answered = PyBytes_FromStringAndSize(begin + stream.at, stream.size)
        return at

    cdef bint _next(self, const char *data, Py_ssize_t at, Py_ssize_t end, const char *prefix, Py_ssize_t prefix_size,
                    Message *found) noexcept nogil:
        cdef Py_ssize_t eol, blank, head, size, body
        if end - at < prefix_size + FRAME_BYTES or memcmp(data + at, prefix, prefix_size) != 0:
            return False
        at += prefix_size
        eol = _line_end(data, at, end)
        if eol < 0:
            return False
        blank = at
        while blank < eol and data[blank] != 32:
            blank += 1
        head, size = _number(data, at, blank, MAX_DIGITS), _number(data, blank + 1, eol, MAX_DIGITS)
        body = eol + 2
        if head < PLAIN_BYTES or size < head or body + size + 2 > end:
            return False
        found.payload.at, found.payload.size, found.end = body + head, size - head, body + size + 2
        if memcmp(data + body, b"NATS/1.0\r\n", PLAIN_BYTES) != 0:  # a status, or a message stored with another line
            return _fields_from(data, body, _own_fields(data, body, body + head), body + head, found) == NONE
        self.wrong = _fields(data, body, body + head, found)
        return self.wrong == NONE

    cdef void _add(self, const char *data, const Message *message) noexcept nogil:
        cdef Py_ssize_t count = self.count
        (<int64_t *>(<PyByteArray *>self.seqs).ob_start)[count] = message.seq
        (<int64_t *>(<PyByteArray *>self.times).ob_start)[count] = message.time
        _put(self.subjects, &self.subjects_size, data, &message.subject)
        if message.stored.size != PLAIN_BYTES or memcmp(data + message.stored.at, b"NATS/1.0\r\n", PLAIN_BYTES) != 0:
            _put(self.blocks, &self.blocks_size, data, &message.stored)
            memcpy((<PyByteArray *>self.blocks).ob_start + self.blocks_size, b"\r\n", 2)
            self.blocks_size += 2
        _put(self.payloads, &self.payloads_size, data, &message.payload)
        if not count:
            self.first_pending = message.pending
        self.last_pending = message.pending
        count += 1
        (<int32_t *>(<PyByteArray *>self.subject_ends).ob_start)[count] = self.subjects_size
        (<int32_t *>(<PyByteArray *>self.block_ends).ob_start)[count] = self.blocks_size
        (<int32_t *>(<PyByteArray *>self.payload_ends).ob_start)[count] = self.payloads_size
        self.count = count

    cdef _grow(self, Py_ssize_t more):
        """Makes room for the messages in `more` bytes. Columns grow by half at least."""
        cdef Py_ssize_t rows = more // FRAME_BYTES + 1
        _reserve(self.seqs, self.count * 8, rows * 8)
        _reserve(self.times, self.count * 8, rows * 8)
        _reserve(self.subject_ends, self.count * 4 + 4, rows * 4)
        _reserve(self.block_ends, self.count * 4 + 4, rows * 4)
        _reserve(self.payload_ends, self.count * 4 + 4, rows * 4)
        _reserve(self.subjects, self.subjects_size, more)
        _reserve(self.blocks, self.blocks_size, more)
        _reserve(self.payloads, self.payloads_size, more)

    def finish(self):
        """Returns the columns (sequences and times in nanoseconds as int64; subjects, stored header blocks and payloads,
        each as offsets of 32 bits and bytes) of all messages, and takes no more."""
        PyByteArray_Resize(self.seqs, self.count * 8)
        PyByteArray_Resize(self.times, self.count * 8)
        PyByteArray_Resize(self.subject_ends, self.count * 4 + 4)
        PyByteArray_Resize(self.block_ends, self.count * 4 + 4)
        PyByteArray_Resize(self.payload_ends, self.count * 4 + 4)
        PyByteArray_Resize(self.subjects, self.subjects_size)
        PyByteArray_Resize(self.blocks, self.blocks_size)
        PyByteArray_Resize(self.payloads, self.payloads_size)
        self.prefix = b"\0"
        return (self.seqs, self.times, (self.subject_ends, self.subjects), (self.block_ends, self.blocks),
                (self.payload_ends, self.payloads))


cdef _reserve(bytearray column, Py_ssize_t used, Py_ssize_t more):
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(column)
    if used + more > size:
        PyByteArray_Resize(column, max(used + more, size + size // 2))


cdef enum:
    MAX_FIELDS = 64  # of a block; each name is compared with those before it


def header_fields(bytearray ends not None, bytearray blocks not None, Py_ssize_t count):
    """Returns the fields of `count` header blocks, which are columns as of `Columns.finish`: (a bitmap of the blocks that
    are not empty, offsets of their fields, names and values as offsets and bytes). None where a block has a name twice, or
    very many fields."""
    cdef bytearray bits = bytearray((count + 7) // 8), offsets = bytearray(4 * count + 4), names, values, name_ends, value_ends
    cdef const int32_t *at = <const int32_t *>PyByteArray_AS_STRING(ends)
    cdef const char *data = PyByteArray_AS_STRING(blocks)
    cdef Fields fields
    cdef Py_ssize_t i, most
    if count < 0 or PyByteArray_GET_SIZE(ends) < 4 * count + 4 or at[0] < 0 or at[count] > PyByteArray_GET_SIZE(blocks):
        raise ValueError("not columns")
    most = (at[count] - at[0]) // 4 + 1  # a field has a name, a colon, and an end
    names, values = bytearray(at[count] - at[0]), bytearray(at[count] - at[0])
    name_ends, value_ends = bytearray(4 * most + 4), bytearray(4 * most + 4)
    fields.names, fields.values = PyByteArray_AS_STRING(names), PyByteArray_AS_STRING(values)
    fields.name_ends = <int32_t *>PyByteArray_AS_STRING(name_ends)
    fields.value_ends = <int32_t *>PyByteArray_AS_STRING(value_ends)
    fields.count = 0
    for i in range(count):
        if at[i + 1] < at[i]:
            raise ValueError("not columns")
        if at[i + 1] > at[i]:
            bits[i >> 3] |= 1 << (i & 7)
            if not _read_fields(data + at[i], at[i + 1] - at[i], &fields):
                return None
        (<int32_t *>PyByteArray_AS_STRING(offsets))[i + 1] = <int32_t>fields.count
    PyByteArray_Resize(names, fields.name_ends[fields.count])
    PyByteArray_Resize(values, fields.value_ends[fields.count])
    PyByteArray_Resize(name_ends, 4 * fields.count + 4)
    PyByteArray_Resize(value_ends, 4 * fields.count + 4)
    return bits, offsets, (name_ends, names), (value_ends, values)


cdef struct Fields:
    char *names
    char *values
    int32_t *name_ends
    int32_t *value_ends
    Py_ssize_t count


cdef bint _read_fields(const char *data, Py_ssize_t size, Fields *fields) noexcept nogil:
    """Adds the fields of a block. False for one that Python has to read."""
    cdef Py_ssize_t first = fields.count, at, eol, colon, begin, end, other, name
    cdef Py_ssize_t stop = size - 2  # its last line is empty
    at = _line_end(data, 0, size) + 2
    while 2 <= at < stop:
        eol = _line_end(data, at, size)
        if eol < 0 or eol > stop:
            break
        colon = at
        while colon < eol and data[colon] != 58:
            colon += 1
        if at < colon < eol:
            if fields.count - first == MAX_FIELDS:
                return False
            begin, end = colon + 1, eol
            while begin < end and (data[begin] == 32 or data[begin] == 9):
                begin += 1
            while begin < end and (data[end - 1] == 32 or data[end - 1] == 9):
                end -= 1
            name = fields.name_ends[fields.count]
            for other in range(first, fields.count):
                if fields.name_ends[other + 1] - fields.name_ends[other] == colon - at and memcmp(
                        fields.names + fields.name_ends[other], data + at, colon - at) == 0:
                    return False
            memcpy(fields.names + name, data + at, colon - at)
            memcpy(fields.values + fields.value_ends[fields.count], data + begin, end - begin)
            fields.name_ends[fields.count + 1] = <int32_t>(name + colon - at)
            fields.value_ends[fields.count + 1] = <int32_t>(fields.value_ends[fields.count] + end - begin)
            fields.count += 1
        at = eol + 2
    return True
