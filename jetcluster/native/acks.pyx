"""`read_acks` and `ack_subjects`: many acks of one consumer read, and the reply subjects of its deliveries written.

The twins are `consumer.owner.acks.Acks.received` and `consumer.owner.ack_subject.Renderer`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_SIZE
from libc.string cimport memchr, memcmp

from jetcluster.native.source cimport SOURCE_DIGEST
from jetcluster.native.writing cimport put, put_number

SOURCE = SOURCE_DIGEST.decode()
"""`native.source_digest` of the sources it was compiled from."""

cdef enum:
    MAX_DIGITS = 18
    NUMBERS_BYTES = 128  # 86: four numbers of 64 bits, with dots


cdef unsigned long long _sequence(bytes subject, int place) noexcept:
    """The stream sequence in an ack's subject, its token number `place` from 0; 0 for what Python has to look at."""
    cdef const char *at = PyBytes_AS_STRING(subject)
    cdef const char *end = at + PyBytes_GET_SIZE(subject)
    cdef const char *begin
    cdef unsigned long long number = 0
    cdef int token
    for token in range(place):
        at = <const char *>memchr(at, 46, end - at)
        if at == NULL:
            return 0
        at += 1
    begin = at
    while at < end and 48 <= at[0] <= 57 and at - begin < MAX_DIGITS:
        number = number * 10 + (at[0] - 48)
        at += 1
    return number if at < end and at[0] == 46 else 0


cdef inline bint _is_ack(bytes payload) noexcept:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(payload)
    cdef const char *data = PyBytes_AS_STRING(payload)
    return not size or (size == 4 and memcmp(data, b"+ACK", 4) == 0) or (size == 3 and memcmp(data, b"+OK", 3) == 0)


def read_acks(list messages not None, unsigned long long delivered, int place):
    """Returns (sequences, reply subjects) of the plain acks that `messages`, as of `protocol.bus.Outgoing`, begin with:
    those without a word but +ACK or +OK, of messages up to `delivered`. `place`: index of the stream sequence among the tokens of their
    subjects."""
    cdef list sequences = [], replies = []
    cdef unsigned long long sequence
    for message in messages:
        if not PyTuple_CheckExact(message) or PyTuple_GET_SIZE(message) != 4:
            raise TypeError("a message is a tuple of four bytes")
        subject, reply, _, payload = message
        if not (PyBytes_CheckExact(subject) and PyBytes_CheckExact(payload)):
            raise TypeError("a message is a tuple of four bytes")
        sequence = _sequence(subject, place)
        if not sequence or sequence > delivered or not _is_ack(payload):
            break
        sequences.append(sequence)
        if reply:
            replies.append(reply)
    return sequences, replies


cdef inline char *_put_signed(char *out, long long number) noexcept nogil:
    if number >= 0:
        return put_number(out, number)
    return put_number(put(out, b"-", 1), 0 - <unsigned long long>number)


def ack_subjects(bytes prefix not None, seqs, cseqs, times, pending):
    """Returns `<prefix>1.<stream sequence>.<consumer sequence>.<time ns>.<pending>` for each of the columns' rows. Both
    sequences go up to 2^64 - 1."""
    cdef list subjects = []
    cdef char numbers[NUMBERS_BYTES]
    cdef char *out
    cdef char *into
    cdef bytes subject
    cdef Py_ssize_t size = PyBytes_GET_SIZE(prefix)
    for seq, cseq, time, left in zip(seqs, cseqs, times, pending, strict=True):
        out = put_number(put(numbers, b"1.", 2), seq)
        out = put_number(put(out, b".", 1), cseq)
        out = _put_signed(put(out, b".", 1), time)
        out = _put_signed(put(out, b".", 1), left)
        subject = PyBytes_FromStringAndSize(NULL, size + (out - numbers))
        into = put(PyBytes_AS_STRING(subject), PyBytes_AS_STRING(prefix), size)
        put(into, numbers, out - numbers)
        subjects.append(subject)
    return subjects
