"""`message_of` and `take_scattered`: messages cut out of encoded batches, from their bytes alone.

The twins are `store.batch.Batch.message` and `store.block_reader.BlockReader.take`; the layout of a batch stands there.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_Append
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from jetcluster.native.source cimport SOURCE_DIGEST

SOURCE = SOURCE_DIGEST.decode()
"""`native.source_digest` of the sources it was compiled from."""

cdef extern from "Python.h":
    PyObject *PyDict_GetItemWithError(object, object) except? NULL

cdef enum:
    FIXED = 12
    VERSION = 1
    MANY_SUBJECTS = 1
    HEADERS = 2
    SAME_LENGTH = 4
    WIDE_INDEX = 8
    KNOWN_FLAGS = 15
    MAX_COUNT = 1024  # the sums over the columns of a longer batch cost more than to unpack it once


cdef struct Message:
    const unsigned char *subject
    const unsigned char *headers
    const unsigned char *payload
    Py_ssize_t subject_size
    Py_ssize_t headers_size
    Py_ssize_t payload_size


cdef inline Py_ssize_t _u16(const unsigned char *column, Py_ssize_t i) noexcept nogil:
    cdef uint16_t number
    memcpy(&number, column + 2 * i, 2)
    return number


cdef inline Py_ssize_t _u32(const unsigned char *column, Py_ssize_t i) noexcept nogil:
    cdef uint32_t number
    memcpy(&number, column + 4 * i, 4)
    return number


cdef Py_ssize_t _sum_u16(const unsigned char *column, Py_ssize_t count) noexcept nogil:
    cdef uint32_t total = 0  # at most 65,535 numbers
    cdef Py_ssize_t i
    for i in range(count):
        total += <uint32_t>_u16(column, i)
    return total


cdef Py_ssize_t _sum_u32(const unsigned char *column, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t total = 0, i
    for i in range(count):
        total += _u32(column, i)
    return total


cdef bint _find(const unsigned char *at, Py_ssize_t left, Py_ssize_t i, Message *found) noexcept nogil:
    """Finds message `i` of the batch that is the next `left` bytes. False for a batch of another version, a longer one
    than MAX_COUNT, one without such a message, and for lengths that do not fit."""
    cdef Py_ssize_t count, subjects, number = 0, before = 0, step, subjects_size
    cdef const unsigned char *lengths
    cdef const unsigned char *names
    cdef int flags
    if left < FIXED + 2 or at[0] != VERSION:
        return False
    flags, count = at[1], _u16(at, 1)
    if flags & ~KNOWN_FLAGS or count > MAX_COUNT or not 0 <= i < count:
        return False
    subjects = _u16(at, FIXED // 2)
    lengths = at + FIXED + 2
    left -= FIXED + 2 + 2 * subjects
    if left < 0 or not subjects:
        return False
    names = at = lengths + 2 * subjects
    subjects_size = _sum_u16(lengths, subjects)
    left -= subjects_size
    at += subjects_size
    if flags & MANY_SUBJECTS:
        step = 2 if flags & WIDE_INDEX else 1
        left -= step * count
        if left < 0:
            return False
        number = _u16(at, i) if step == 2 else at[i]
        if number >= subjects:
            return False
        at += step * count
    found.headers_size = 0
    if flags & HEADERS:
        left -= 4 * count
        if left < 0:
            return False
        found.headers_size = _u32(at, i)
        before = _sum_u32(at, i)
        at += 4 * count
    step = 4 if flags & SAME_LENGTH else 4 * count
    left -= step
    if left < 0:
        return False
    if flags & SAME_LENGTH:
        found.payload_size = _u32(at, 0)
        before += i * found.payload_size
    else:
        found.payload_size = _u32(at, i)
        before += _sum_u32(at, i)
    if left < before + found.headers_size + found.payload_size:
        return False
    found.subject_size = _u16(lengths, number)
    found.subject = names + _sum_u16(lengths, number)
    found.headers = at + step + before
    found.payload = found.headers + found.headers_size
    return True


cdef inline bytes _copied(const unsigned char *data, Py_ssize_t size):
    return PyBytes_FromStringAndSize(<const char *>data, size)


cdef bint _find_in(object buffer, Py_ssize_t start, Py_ssize_t i, Message *found) except -1:
    if not PyBytes_CheckExact(buffer):
        raise TypeError("a batch is bytes")
    if not 0 <= start <= PyBytes_GET_SIZE(buffer):
        return False
    return _find(<const unsigned char *>PyBytes_AS_STRING(buffer) + start, PyBytes_GET_SIZE(buffer) - start, i, found)


def message_of(bytes buffer not None, Py_ssize_t start, Py_ssize_t i):
    """Returns (subject, header block, payload) of message `i` of the batch that begins at `start`, whose checksum was
    right; None for what is left to Python: a long batch, and whatever does not fit together."""
    cdef Message found
    if not _find_in(buffer, start, i, &found):
        return None
    return (
        _copied(found.subject, found.subject_size),
        _copied(found.headers, found.headers_size),
        _copied(found.payload, found.payload_size),
    )


cdef struct Table:
    const uint64_t *firsts
    const uint16_t *counts
    const uint16_t *lives
    const int64_t *times
    Py_ssize_t rows


cdef Py_ssize_t _row(const Table *table, uint64_t seq) noexcept nogil:
    """Returns the last row that begins at or below `seq`, -1 for none."""
    cdef Py_ssize_t low = 0, high = table.rows, middle
    while low < high:
        middle = (low + high) >> 1
        if table.firsts[middle] <= seq:
            low = middle + 1
        else:
            high = middle
    return low - 1


def take_scattered(
    object columns not None, list seqs not None, Py_ssize_t begin, Py_ssize_t size, tuple table not None,
    object batches, object stream, Py_ssize_t overhead, Py_ssize_t most,
):
    """Adds to `columns` (five lists, those of `store.api.Columns`) the messages at `seqs` from `begin` on, until `size`
    bytes are used up. Returns (position of the first sequence that it left, bytes left).

    It ends before a sequence of a block that is not cached, has deleted messages or more than `most` of the `seqs`, and
    before one that is not in the table or not found. `table`: firsts, counts, lives and times of a `BlockTable`, its
    bits, and its first sequence; `batches`: those of a `BlockCache`; `overhead`: bytes added to each payload."""
    cdef Py_buffer views[4]
    cdef Table rows
    cdef int opened = 0
    try:
        while opened < 4:
            PyObject_GetBuffer(table[opened], &views[opened], PyBUF_SIMPLE)
            opened += 1
        rows.firsts = <const uint64_t *>views[0].buf
        rows.counts = <const uint16_t *>views[1].buf
        rows.lives = <const uint16_t *>views[2].buf
        rows.times = <const int64_t *>views[3].buf
        rows.rows = views[0].len // 8
        if views[1].len != 2 * rows.rows or views[2].len != 2 * rows.rows or views[3].len != 8 * rows.rows:
            raise ValueError("the columns of a table have equal lengths")
        return _take(columns, seqs, begin, size, &rows, table[4], table[5], batches, stream, overhead, most)
    finally:
        while opened:
            opened -= 1
            PyBuffer_Release(&views[opened])


cdef tuple _take(
    object columns, list seqs, Py_ssize_t begin, Py_ssize_t size, const Table *table, dict bits, uint64_t lowest,
    object batches, object stream, Py_ssize_t overhead, Py_ssize_t most,
):
    cdef list found, times, subjects, headers, payloads
    cdef Py_ssize_t total = len(seqs), row = -1
    cdef uint64_t seq, first = 0, behind = 0
    cdef object buffer = None, key, batch, touch = batches.move_to_end
    cdef PyObject *kept
    cdef Py_ssize_t start = 0
    cdef Message one
    found, times, subjects, headers, payloads = columns
    while begin < total and size > 0:
        seq = seqs[begin]
        if not first <= seq < behind:
            row = _row(table, seq)
            if row < 0 or seq < lowest or not table.lives[row] or seq - table.firsts[row] >= table.counts[row]:
                break
            first = table.firsts[row]
            behind = first + table.counts[row]
            if (bits and first in bits) or (begin + most < total and <uint64_t>seqs[begin + most] < behind):
                break
            key = (stream, first)
            kept = PyDict_GetItemWithError(batches, key)
            if kept is NULL:
                break
            batch = (<object>kept)[0]
            touch(key)
            buffer, start = batch.buffer, batch.start
        if not _find_in(buffer, start, seq - first, &one):
            break
        PyList_Append(found, seqs[begin])
        PyList_Append(times, table.times[row] + <int64_t>(seq - first))
        PyList_Append(subjects, _copied(one.subject, one.subject_size))
        PyList_Append(headers, _copied(one.headers, one.headers_size))
        PyList_Append(payloads, _copied(one.payload, one.payload_size))
        size -= one.payload_size + overhead
        begin += 1
    return begin, size
