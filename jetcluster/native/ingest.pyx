"""The two ends of a publish at its stream's leader, what comes together and the acks for it; and acks read on their way.

The twins are `stream.lead.ingest.Ingest.on_messages`, `stream.lead.answers.PubAcks.render` and
`server.accounts.told.told`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_SIZE
from libc.string cimport memchr, memcmp

from jetcluster.native.source cimport SOURCE_DIGEST
from jetcluster.native.writing cimport digits, put, put_number

SOURCE = SOURCE_DIGEST.decode()
"""`native.source_digest` of the sources it was compiled from."""


cdef enum:
    START_BYTES = 11  # {"stream":"
    SEQ_BYTES = 7  # ,"seq":
    MAX_HEAD_BYTES = 1024
    MAX_DIGITS = 18


cdef extern from "Python.h":
    PyObject *PyTuple_GET_ITEM(object, Py_ssize_t)


def split_bare(list messages not None, Py_ssize_t most, Py_ssize_t max_subject, bytes mark not None):
    """Returns (subjects, replies, payloads, bytes of subjects and payloads) of the first `most` messages, which are
    taken to have no headers. None when a subject is longer than `max_subject`, or a reply ends with `mark`. A message is
    the tuple of `protocol.bus.Outgoing`."""
    cdef list subjects = [], replies = [], payloads = []
    cdef Py_ssize_t size = 0, place, length, ending = PyBytes_GET_SIZE(mark)
    cdef bytes subject, reply, payload
    cdef object message
    for message in messages[: max(most, 0)]:
        if not PyTuple_CheckExact(message) or PyTuple_GET_SIZE(message) != 4:
            raise TypeError("a message is a tuple of four bytes")
        for place in range(4):
            if not PyBytes_CheckExact(<object>PyTuple_GET_ITEM(message, place)):
                raise TypeError("a message is a tuple of four bytes")
        subject = <bytes>PyTuple_GET_ITEM(message, 0)
        reply = <bytes>PyTuple_GET_ITEM(message, 1)
        payload = <bytes>PyTuple_GET_ITEM(message, 3)
        length = PyBytes_GET_SIZE(reply)
        if PyBytes_GET_SIZE(subject) > max_subject or (length >= ending and memcmp(
                PyBytes_AS_STRING(reply) + length - ending, PyBytes_AS_STRING(mark), ending) == 0):
            return None
        size += PyBytes_GET_SIZE(subject) + PyBytes_GET_SIZE(payload)
        subjects.append(subject)
        replies.append(reply)
        payloads.append(payload)
    return subjects, replies, payloads, size


def stored_acks(bytes head not None, unsigned long long first, list replies not None):
    """Returns (reply, `head` + its sequence + "}") for each reply that is not empty; `replies[0]` has sequence `first`."""
    cdef list acks = []
    cdef Py_ssize_t size = PyBytes_GET_SIZE(head)
    cdef unsigned long long seq = first
    cdef bytes ack
    cdef object reply
    for reply in replies:
        if not PyBytes_CheckExact(reply):
            raise TypeError("a reply is bytes")
        if PyBytes_GET_SIZE(reply):
            ack = PyBytes_FromStringAndSize(NULL, size + digits(seq) + 1)
            put(put_number(put(PyBytes_AS_STRING(ack), PyBytes_AS_STRING(head), size), seq), b"}", 1)
            acks.append((reply, ack))
        seq += 1
    return acks


cdef Py_ssize_t _head_size(const char *data, Py_ssize_t size) noexcept nogil:
    """Returns the bytes of a PubAck before `"seq":`; 0 for any other payload."""
    cdef Py_ssize_t left = (size if size < MAX_HEAD_BYTES else <Py_ssize_t>MAX_HEAD_BYTES), at = START_BYTES
    cdef const char *comma
    if size < START_BYTES or memcmp(data, b'{"stream":"', START_BYTES) != 0:
        return 0
    while left - at >= SEQ_BYTES:
        comma = <const char *>memchr(data + at, 44, left - at - SEQ_BYTES + 1)
        if comma == NULL:
            return 0
        at = comma - data
        if memcmp(comma, b',"seq":', SEQ_BYTES) == 0:
            return at + 1
        at += 1
    return 0


cdef unsigned long long _seq_of(const char *data, Py_ssize_t size, Py_ssize_t head) noexcept nogil:
    """Returns the sequence of a PubAck of this head; 0 for one without, or that names its domain last."""
    cdef Py_ssize_t at = head + SEQ_BYTES - 1, begin = at
    cdef unsigned long long seq = 0
    while at < size and 48 <= data[at] <= 57:
        if at - begin == MAX_DIGITS:
            return 0
        seq = seq * 10 + (data[at] - 48)
        at += 1
    if at >= size or (data[at] != 125 and data[at] != 44):
        return 0
    if size - at >= 9 and memcmp(data + at, b',"domain"', 9) == 0:
        return 0
    return seq


def told_by(list messages not None, Py_ssize_t place, Py_ssize_t count):
    """Returns (stream, highest sequence) of the PubAcks in a row among `count` messages from `place` on. A message is a
    tuple whose last part is the payload."""
    cdef list found = []
    cdef Py_ssize_t at, size, head = 0, fresh, best_size = 0
    cdef const char *data
    cdef const char *best = NULL  # of the highest sequence of this stream so far; its message keeps it
    cdef object message, payload
    cdef unsigned long long seq, last = 0
    if place < 0:
        raise ValueError("not a place")
    at = min(len(messages), place + max(count, 0))
    while at > place:  # from the last on: it has the highest sequence most often, and the others are only compared
        at -= 1
        message = messages[at]
        if not PyTuple_CheckExact(message) or not PyTuple_GET_SIZE(message):
            raise TypeError("a message is a tuple")
        payload = <object>PyTuple_GET_ITEM(message, PyTuple_GET_SIZE(message) - 1)
        if not PyBytes_CheckExact(payload):
            raise TypeError("a payload is bytes")
        data, size = PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload)
        if best_size and size == best_size and memcmp(data, best, head + SEQ_BYTES - 1) == 0 and memcmp(
                data + head, best + head, size - head) <= 0:
            continue
        fresh = _head_size(data, size)
        seq = _seq_of(data, size, fresh) if fresh else 0
        if not seq:
            continue
        if fresh == head and memcmp(data, best, head) == 0:
            if seq > last:
                best, best_size, last = data, size, seq
            continue
        if head:
            found.append((PyBytes_FromStringAndSize(best, head), last))
        best, best_size, head, last = data, size, fresh, seq
    if head:
        found.append((PyBytes_FromStringAndSize(best, head), last))
    found.reverse()
    return found
