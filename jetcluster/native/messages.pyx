"""Many messages at once: their frames for a client, and their columns for another node.

A message is the tuple (subject, reply, headers, payload) of `protocol.bus.Outgoing`. The twins are
`ClientSubscription.take_many` and `mesh.frames`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_SIZE
from libc.string cimport memchr, memcmp

from jetcluster.native.source cimport SOURCE_DIGEST
from jetcluster.native.writing cimport digits, put, put_number, put_u32

SOURCE = SOURCE_DIGEST.decode()
"""`native.source_digest` of the sources it was compiled from."""

cdef enum:
    PAYLOAD = 3  # the last of the four columns, of which equal values are sent one by one
    COLUMNS = 4


cdef extern from "Python.h":
    PyObject *PyTuple_GET_ITEM(object, Py_ssize_t)


cdef inline bytes _part(object message, Py_ssize_t place):
    return <bytes>PyTuple_GET_ITEM(message, place)


cdef int _check(object message) except -1:
    """Raises TypeError for anything but a tuple of four bytes: `_part` does not look."""
    cdef Py_ssize_t place
    if not PyTuple_CheckExact(message) or PyTuple_GET_SIZE(message) != COLUMNS:
        raise TypeError("a message is a tuple of four bytes")
    for place in range(COLUMNS):
        if not PyBytes_CheckExact(<object>PyTuple_GET_ITEM(message, place)):
            raise TypeError("a message is a tuple of four bytes")
    return 0


def render(bytes mid not None, list messages not None, bint shows_headers):
    """Returns (the frames of the messages as one piece, bytes of their headers and payloads, bytes of their subjects and
    replies). `mid`: see `ClientSubscription.mid`. Headers are left out unless `shows_headers`."""
    cdef Py_ssize_t total = 0, sizes = 0, names = 0, body, headed
    cdef bytes subject, reply, headers, payload, piece
    cdef char *out
    for message in messages:
        _check(message)
        subject, reply, headers, payload = _part(message, 0), _part(message, 1), _part(message, 2), _part(message, 3)
        headed = PyBytes_GET_SIZE(headers) if shows_headers else 0
        body = headed + PyBytes_GET_SIZE(payload)
        sizes += body
        names += PyBytes_GET_SIZE(subject) + PyBytes_GET_SIZE(reply)
        total += 8 + PyBytes_GET_SIZE(mid) + digits(body) + body  # MSG, a blank, two line ends
        if PyBytes_GET_SIZE(reply):
            total += 1
        if headed:
            total += 2 + digits(headed)  # H, a blank
    total += names
    piece = PyBytes_FromStringAndSize(NULL, total)
    out = PyBytes_AS_STRING(piece)
    for message in messages:
        subject, reply, headers, payload = _part(message, 0), _part(message, 1), _part(message, 2), _part(message, 3)
        headed = PyBytes_GET_SIZE(headers) if shows_headers else 0
        out = put(out, b"HMSG ", 5) if headed else put(out, b"MSG ", 4)
        out = put(out, PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject))
        out = put(out, PyBytes_AS_STRING(mid), PyBytes_GET_SIZE(mid))
        if PyBytes_GET_SIZE(reply):
            out = put(out, PyBytes_AS_STRING(reply), PyBytes_GET_SIZE(reply))
            out = put(out, b" ", 1)
        if headed:
            out = put_number(out, headed)
            out = put(out, b" ", 1)
        out = put_number(out, headed + PyBytes_GET_SIZE(payload))
        out = put(out, b"\r\n", 2)
        out = put(out, PyBytes_AS_STRING(headers), headed)
        out = put(out, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))
        out = put(out, b"\r\n", 2)
    assert out == PyBytes_AS_STRING(piece) + total
    return piece, sizes, names


cdef int _check_answer(object answer) except -1:
    cdef Py_ssize_t place, parts
    if not PyTuple_CheckExact(answer):
        raise TypeError("an answer is a tuple of two or three bytes")
    parts = PyTuple_GET_SIZE(answer)
    if not 2 <= parts <= 3:
        raise TypeError("an answer is a tuple of two or three bytes")
    for place in range(parts):
        if not PyBytes_CheckExact(<object>PyTuple_GET_ITEM(answer, place)):
            raise TypeError("an answer is a tuple of two or three bytes")
    return 0


cdef inline bytes _headers(object answer, bint shows_headers):
    return _part(answer, 1) if shows_headers and PyTuple_GET_SIZE(answer) == 3 else b""


def render_answers(bytes mid not None, list answers not None, Py_ssize_t first, Py_ssize_t head, bint shows_headers=False):
    """Returns (the frames of the answers from `first` on to one taker as one piece, how many, bytes of their headers and
    payloads, bytes of their subjects). An answer is a tuple (subject, payload) or (subject, headers, payload); those that
    follow the first one to its taker have the same first `head` bytes of the subject, and one token after them."""
    cdef Py_ssize_t total = 0, sizes = 0, names = 0, place, last, size, headed, body
    cdef bytes subject, headers, payload, piece
    cdef const char *name
    cdef const char *first_name = NULL
    cdef object answer
    cdef char *out
    if first < 0 or head < 0:
        raise ValueError("not a place")
    last = first
    while last < len(answers):
        answer = answers[last]
        _check_answer(answer)
        name, size = PyBytes_AS_STRING(_part(answer, 0)), PyBytes_GET_SIZE(_part(answer, 0))
        if first_name == NULL:
            first_name = name  # the caller's, whatever it is
        elif size < head + 2 or name[head] != 46 or memcmp(name, first_name, head) != 0 or memchr(
                name + head + 1, 46, size - head - 1) != NULL:
            break
        headed = PyBytes_GET_SIZE(_headers(answer, shows_headers))
        body = headed + PyBytes_GET_SIZE(_part(answer, PyTuple_GET_SIZE(answer) - 1))
        names += size
        sizes += body
        total += 8 + PyBytes_GET_SIZE(mid) + digits(body)  # MSG, a blank, two line ends
        if headed:
            total += 2 + digits(headed)  # H, a blank
        last += 1
    total += names + sizes
    piece = PyBytes_FromStringAndSize(NULL, total)
    out = PyBytes_AS_STRING(piece)
    for place in range(first, last):
        answer = answers[place]
        subject, headers = _part(answer, 0), _headers(answer, shows_headers)
        payload = _part(answer, PyTuple_GET_SIZE(answer) - 1)
        headed = PyBytes_GET_SIZE(headers)
        out = put(out, b"HMSG ", 5) if headed else put(out, b"MSG ", 4)
        out = put(out, PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject))
        out = put(out, PyBytes_AS_STRING(mid), PyBytes_GET_SIZE(mid))
        if headed:
            out = put(put_number(out, headed), b" ", 1)
        out = put(put_number(out, headed + PyBytes_GET_SIZE(payload)), b"\r\n", 2)
        out = put(out, PyBytes_AS_STRING(headers), headed)
        out = put(out, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload))
        out = put(out, b"\r\n", 2)
    assert out == PyBytes_AS_STRING(piece) + total
    return piece, last - first, sizes, names


def render_frames(bytes lead not None, list frames not None, bint shows_headers):
    """Returns (the frames (headers, payload) of one reply as one piece, bytes of their headers and payloads). `lead`: what
    precedes the sizes in each, `MSG subject sid ` with its blank."""
    cdef Py_ssize_t total = 0, sizes = 0, size = PyBytes_GET_SIZE(lead), headed, body
    cdef const char *start = PyBytes_AS_STRING(lead)
    cdef bytes headers, payload, piece
    cdef object frame
    cdef char *out
    for frame in frames:
        _check_answer(frame)
        headed = PyBytes_GET_SIZE(_part(frame, 0)) if shows_headers else 0
        body = headed + PyBytes_GET_SIZE(_part(frame, 1))
        sizes += body
        total += 4 + size + digits(body) + body  # two line ends
        if headed:
            total += 2 + digits(headed)  # H, a blank
    piece = PyBytes_FromStringAndSize(NULL, total)
    out = PyBytes_AS_STRING(piece)
    for frame in frames:
        headers, payload = _part(frame, 0), _part(frame, 1)
        headed = PyBytes_GET_SIZE(headers) if shows_headers else 0
        if headed:
            out = put(put_number(put(put(out, b"H", 1), start, size), headed), b" ", 1)
        else:
            out = put(out, start, size)
        out = put(put_number(out, headed + PyBytes_GET_SIZE(payload)), b"\r\n", 2)
        out = put(out, PyBytes_AS_STRING(headers), headed)
        out = put(put(out, PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload)), b"\r\n", 2)
    assert out == PyBytes_AS_STRING(piece) + total
    return piece, sizes


def run_length(list messages not None, Py_ssize_t first, Py_ssize_t head, Py_ssize_t tokens):
    """Returns how many messages from `first` on have a subject with the same first `head` bytes, and as many `tokens`
    after them, none of which is empty. The first one counts in any case. A message is a tuple that begins with its
    subject."""
    cdef const char *name
    cdef const char *first_name = NULL
    cdef Py_ssize_t place = first, size, dots, at
    cdef object message
    if first < 0 or head < 0:
        raise ValueError("not a place")
    while place < len(messages):
        message = messages[place]
        if not PyTuple_CheckExact(message) or not PyTuple_GET_SIZE(message) or not PyBytes_CheckExact(
                <object>PyTuple_GET_ITEM(message, 0)):
            raise TypeError("a message is a tuple that begins with its subject")
        name, size = PyBytes_AS_STRING(_part(message, 0)), PyBytes_GET_SIZE(_part(message, 0))
        if first_name == NULL:
            first_name = name
            if size < head:
                raise ValueError("not a place")
        else:
            if size < head + 2 or name[head] != 46 or name[size - 1] == 46 or memcmp(name, first_name, head) != 0:
                break
            dots = 0
            for at in range(head, size):
                if name[at] == 46:
                    dots += 1
                    if name[at + 1] == 46:
                        return place - first  # an empty token
            if dots != tokens:
                break
        place += 1
    return place - first


def bare_length(list messages not None, Py_ssize_t first, Py_ssize_t most):
    """Returns how many messages from `first` on, and at most `most`, have no headers before one that has."""
    cdef Py_ssize_t place = first, end
    if first < 0 or most < 0:
        raise ValueError("not a place")
    end = min(first + most, len(messages))
    while place < end:
        message = messages[place]
        _check(message)
        if PyBytes_GET_SIZE(_part(message, 2)):
            break
        place += 1
    return place - first


def as_messages(answers not None, Py_ssize_t first, Py_ssize_t most, Py_ssize_t head):
    """Returns (messages for another node, bytes of all their parts) of the answers from `first` on, and at most `most`,
    that have a subject with the same first `head` bytes and one token after them, as in `run_length`. An answer is a
    tuple (subject, payload)."""
    cdef list some, messages = []
    cdef Py_ssize_t size = 0
    cdef object answer
    if first < 0 or most < 0:
        raise ValueError("not a place")
    some = list(answers[first : first + most])
    del some[run_length(some, 0, head, 1) :]
    for answer in some:
        _check_answer(answer)
        if PyTuple_GET_SIZE(answer) != 2:
            raise TypeError("an answer is a tuple of two bytes")
        messages.append((_part(answer, 0), b"", b"", _part(answer, 1)))
        size += PyBytes_GET_SIZE(_part(answer, 0)) + PyBytes_GET_SIZE(_part(answer, 1))
    return messages, size


def payload_bytes(list messages not None):
    """Returns the bytes of the headers and payloads of messages."""
    cdef Py_ssize_t size = 0
    for message in messages:
        _check(message)
        size += PyBytes_GET_SIZE(_part(message, 2)) + PyBytes_GET_SIZE(_part(message, 3))
    return size


cdef bint _is_same(list messages, Py_ssize_t place):
    """True when one value stands for the whole column."""
    cdef bytes first = _part(messages[0], place), value
    cdef Py_ssize_t size = PyBytes_GET_SIZE(first)
    if place == PAYLOAD and size:
        return False
    for message in messages:
        value = _part(message, place)
        if value is not first and (PyBytes_GET_SIZE(value) != size or memcmp(
                PyBytes_AS_STRING(value), PyBytes_AS_STRING(first), size) != 0):
            return False
    return True


def join_columns(list messages not None):
    """Returns the four columns of the messages, at least one, as in MSGS (`mesh.frames.encode_msgs`)."""
    cdef Py_ssize_t count = len(messages), total = 0, place
    cdef bint same[COLUMNS]
    cdef bytes value, joined
    cdef char *out
    if not count:
        raise ValueError("no messages")
    for message in messages:
        _check(message)
    for place in range(COLUMNS):
        same[place] = _is_same(messages, place)
        if same[place]:
            total += 5 + PyBytes_GET_SIZE(_part(messages[0], place))
            continue
        total += 1 + 4 * count
        for message in messages:
            total += PyBytes_GET_SIZE(_part(message, place))
    joined = PyBytes_FromStringAndSize(NULL, total)
    out = PyBytes_AS_STRING(joined)
    for place in range(COLUMNS):
        if same[place]:
            value = _part(messages[0], place)
            out[0] = 1
            out = put_u32(out + 1, PyBytes_GET_SIZE(value))
            out = put(out, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
            continue
        out[0] = 0
        out += 1
        for message in messages:
            out = put_u32(out, PyBytes_GET_SIZE(_part(message, place)))
        for message in messages:
            value = _part(message, place)
            out = put(out, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    assert out == PyBytes_AS_STRING(joined) + total
    return joined


cdef inline Py_ssize_t _u32(const unsigned char *data) noexcept nogil:
    return <Py_ssize_t>data[0] << 24 | <Py_ssize_t>data[1] << 16 | <Py_ssize_t>data[2] << 8 | data[3]


def split_columns(bytes buffer not None, Py_ssize_t at, Py_ssize_t end, Py_ssize_t count, Py_ssize_t max_bytes):
    """Returns the `count` messages whose columns are buffer[at:end]. None when the columns do not fit, a subject is
    empty, or the messages together have more than `max_bytes`."""
    cdef const unsigned char *data = <const unsigned char *>PyBytes_AS_STRING(buffer)
    cdef Py_ssize_t lengths[COLUMNS]  # where the lengths are; -1 for a column with one value
    cdef Py_ssize_t places[COLUMNS]  # of the next value
    cdef Py_ssize_t place, number, size, total = 0, need
    cdef list same = [None, None, None, None], messages
    if not 0 <= at <= end <= PyBytes_GET_SIZE(buffer) or count < 1:
        return None
    for place in range(COLUMNS):
        need = 5 if at < end and data[at] == 1 else 1 + 4 * count
        if at + need > end or data[at] > 1:
            return None
        if data[at]:
            size = _u32(data + at + 1)
            at += need
            if at + size > end:
                return None
            lengths[place] = -1
            same[place] = PyBytes_FromStringAndSize(<const char *>data + at, size)
            total += size * count
            at += size
        else:
            lengths[place] = at + 1
            at = places[place] = at + need
            for number in range(count):
                size = _u32(data + lengths[place] + 4 * number)
                if at + size > end or (place == 0 and not size):
                    return None
                at += size
            total += at - places[place]
        if total > max_bytes:
            return None
    if at != end or (lengths[0] < 0 and not same[0]):
        return None
    messages = []
    for number in range(count):
        messages.append((
            _value(data, lengths, places, 0, number, same), _value(data, lengths, places, 1, number, same),
            _value(data, lengths, places, 2, number, same), _value(data, lengths, places, 3, number, same)))
    return messages


cdef inline bytes _value(const unsigned char *data, Py_ssize_t *lengths, Py_ssize_t *places, Py_ssize_t place,
                         Py_ssize_t number, list same):
    cdef Py_ssize_t size, at
    if lengths[place] < 0:
        return <bytes>same[place]
    size, at = _u32(data + lengths[place] + 4 * number), places[place]
    places[place] = at + size
    return PyBytes_FromStringAndSize(<const char *>data + at, size)
