"""The two ends of a publish at its stream's leader: what comes together, and the acks for it.

The twins are `stream.lead.ingest.Ingest.on_messages` and `stream.lead.answers.PubAcks.render`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_SIZE
from libc.string cimport memcmp

from jetcluster.native.source cimport SOURCE_DIGEST
from jetcluster.native.writing cimport digits, put, put_number

SOURCE = SOURCE_DIGEST.decode()
"""`native.source_digest` of the sources it was compiled from."""


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
