"""`publish_lines`: the PUB and HPUB lines of one portion of a client's input, parsed and delivered in one pass.

The twin of `protocol.parser.Parser` and `server.client.commands.Commands`. Whatever is not plain is left to them, line by
line: other verbs, unusual blanks, errors, replies outside of `_INBOX.`, traces, and lines that are not complete.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_SIZE
from libc.string cimport memchr, memcmp

from jetcluster.native.source cimport SOURCE_DIGEST
from jetcluster.native.writing cimport put

SOURCE = SOURCE_DIGEST.decode()
"""`native.source_digest` of the sources it was compiled from."""

cdef enum:
    PIECE_BYTES = 65536  # rendered messages to one taker that become one piece of its output
    LINE_REST_BYTES = 32  # the constant parts of a rendered message and its size, at most
    FRAME_BYTES = 24  # an estimate of the constant parts, as in `ClientSubscription.take`
    RUN_BYTES = 12288  # of messages that a taker gets together; another node gets them in one frame
    RUN_MESSAGES = 256
    FIRST_RUN = 8  # messages; runs that were taken whole are followed by longer ones
    MAX_DIGITS = 9  # as in `parser._size`
    TRACE_BYTES = 15  # of `commands.TRACE_DEST`
    SCHEDULE_BYTES = 13
    ACK_TOKENS = 5  # as in `sublist`


cdef struct Line:  # places and lengths in the input
    Py_ssize_t subject
    Py_ssize_t subject_size
    Py_ssize_t reply
    Py_ssize_t reply_size
    Py_ssize_t headers_size
    Py_ssize_t digits  # of the total size
    Py_ssize_t digits_size
    Py_ssize_t body  # headers and payload
    Py_ssize_t body_size
    Py_ssize_t end


cdef struct Input:
    const char *data
    Py_ssize_t size
    Py_ssize_t stop  # lines that begin here or later are not this portion's
    Py_ssize_t max_line
    Py_ssize_t max_payload
    bint headers  # the client has said that it understands headers
    bint restricted  # it has permissions


cdef struct Totals:
    Py_ssize_t messages
    Py_ssize_t bytes
    Py_ssize_t max_messages
    Py_ssize_t max_bytes
    bint congested  # a taker was, and may be closed


cdef inline Py_ssize_t _token(const char *data, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """The end of the token that begins at `at`, or `at` where none does."""
    while at < end and <unsigned char>data[at] > 32:
        at += 1
    return at


cdef inline Py_ssize_t _number(const char *data, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """The decimal number in data[at:end]; -1 for anything that is rendered differently, as "007"."""
    cdef Py_ssize_t number = 0
    if not 0 < end - at <= MAX_DIGITS or (data[at] == 48 and end - at > 1):
        return -1
    while at < end:
        if not 48 <= data[at] <= 57:
            return -1
        number = number * 10 + (data[at] - 48)
        at += 1
    return number


cdef bint _find(const char *data, Py_ssize_t size, const char *wanted, Py_ssize_t length) noexcept nogil:
    cdef const char *end = data + size - length + 1
    cdef const char *at = data
    while at < end:
        at = <const char *>memchr(at, wanted[0], end - at)
        if at == NULL:
            return False
        if memcmp(at, wanted, length) == 0:
            return True
        at += 1
    return False


cdef bint _read(const Input *source, Py_ssize_t at, Line *line) noexcept nogil:
    """Reads the line at `at` with its body. False for any that is not a plain PUB or HPUB, complete and permitted."""
    cdef const char *data = source.data
    cdef const char *found
    cdef bint headed = data[at] == 72  # H
    cdef Py_ssize_t begin = at + (5 if headed else 4), newline, end, token
    cdef Py_ssize_t starts[4]
    cdef Py_ssize_t ends[4]
    cdef int count = 0, sizes = 2 if headed else 1
    if at + 8 > source.size or memcmp(data + at, b"HPUB " if headed else b"PUB ", begin - at) != 0:
        return False
    found = <const char *>memchr(data + begin, 10, source.size - begin)
    if found == NULL:
        return False
    newline = end = found - data
    if newline - at > source.max_line:
        return False
    if data[end - 1] == 13:
        end -= 1
    while True:  # tokens; nats-py leaves two blanks where there is no reply subject
        while begin < end and data[begin] == 32:
            begin += 1
        token = _token(data, begin, end)
        if token == begin or count == 4:
            return False
        starts[count], ends[count] = begin, token
        count += 1
        if token == end:
            break
        if data[token] != 32:
            return False
        begin = token
    if not 1 + sizes <= count <= 2 + sizes or (headed and not source.headers):
        return False
    line.subject, line.subject_size = starts[0], ends[0] - starts[0]
    line.reply = line.reply_size = line.headers_size = 0
    if count == 2 + sizes:
        line.reply, line.reply_size = starts[1], ends[1] - starts[1]
        if line.reply_size < 8 or memcmp(data + line.reply, b"_INBOX.", 7) != 0:
            return False
    line.digits, line.digits_size = starts[count - 1], ends[count - 1] - starts[count - 1]
    line.body_size = _number(data, line.digits, ends[count - 1])
    line.body = newline + 1
    line.end = line.body + line.body_size + 2
    if line.body_size < 0 or line.body_size > source.max_payload or line.end > source.size:
        return False
    if data[line.end - 2] != 13 or data[line.end - 1] != 10:
        return False
    if headed:
        line.headers_size = _number(data, starts[count - 2], ends[count - 2])
        if not 0 < line.headers_size <= line.body_size:
            return False
        if _find(data + line.body, line.headers_size, b"Nats-Trace-Dest", TRACE_BYTES):
            return False
        if source.restricted and _find(data + line.body, line.headers_size, b"Nats-Schedule", SCHEDULE_BYTES):
            return False
    return True


cdef Py_ssize_t _render(const Input *source, Py_ssize_t at, Line *line, Totals *totals, bytes subject, taker, client,
                        Py_ssize_t max_output) except -1:
    """Renders the message in `line`, and those after it to the same subject, for the only taker, whose deliveries need
    nothing but an append. Returns where the next line begins. The twin is `ClientSubscription.take`."""
    cdef object owner = taker.owner
    cdef list out = owner.out
    cdef bytes mid = taker.mid, head
    cdef const char *data = source.data
    cdef const char *name = PyBytes_AS_STRING(subject)
    cdef const char *middle = PyBytes_AS_STRING(mid)
    cdef Py_ssize_t name_size = PyBytes_GET_SIZE(subject), mid_size = PyBytes_GET_SIZE(mid)
    cdef Py_ssize_t pending = owner.pending, mark = owner.congestion_mark
    cdef Py_ssize_t limit = min(mark, max_output) if owner is client else mark
    cdef Py_ssize_t count = 0, size = 0, need
    cdef char piece[PIECE_BYTES]
    cdef char *at_out = piece
    if not PyList_GET_SIZE(out):
        owner.wake()
    while True:
        need = name_size + mid_size + line.reply_size + line.body_size + LINE_REST_BYTES
        if at_out + need > piece + PIECE_BYTES and at_out > piece:
            out.append(PyBytes_FromStringAndSize(piece, at_out - piece))
            at_out = piece
        if need > PIECE_BYTES:
            head = b"MSG " + subject + mid
            if line.reply_size:
                head += data[line.reply : line.reply + line.reply_size] + b" "
            out.append(head + data[line.digits : line.digits + line.digits_size] + b"\r\n")
            out.append(PyBytes_FromStringAndSize(data + line.body, line.body_size + 2))
        else:
            at_out = put(at_out, b"MSG ", 4)
            at_out = put(at_out, name, name_size)
            at_out = put(at_out, middle, mid_size)
            if line.reply_size:
                at_out = put(at_out, data + line.reply, line.reply_size)
                at_out = put(at_out, b" ", 1)
            at_out = put(at_out, data + line.digits, line.digits_size)
            at_out = put(at_out, b"\r\n", 2)
            at_out = put(at_out, data + line.body, line.body_size + 2)
        count += 1
        size += line.body_size
        pending += line.body_size + name_size + line.reply_size + FRAME_BYTES
        totals.messages += 1
        totals.bytes += line.body_size
        at = line.end
        if pending > limit or not _goes_on(source, at, line, totals, False) or not _is(source, line, subject):
            break
    if at_out > piece:
        out.append(PyBytes_FromStringAndSize(piece, at_out - piece))
    owner.out_msgs += count
    owner.out_bytes += size
    owner.pending = pending
    taker.delivered += count
    if pending > mark:
        totals.congested = True
        owner.congested(client)
    return at


cdef bint _goes_on(const Input *source, Py_ssize_t at, Line *line, const Totals *totals, bint headed) noexcept nogil:
    """Reads the next line: True if it is of this portion, and without headers unless `headed`."""
    return (
        totals.messages < totals.max_messages and totals.bytes < totals.max_bytes and at < source.stop
        and _read(source, at, line) and (headed or not line.headers_size))


cdef struct Run:  # messages that a taker gets together
    Py_ssize_t most  # messages in the next one
    bint grows
    Py_ssize_t count
    Py_ssize_t size  # bytes of all their parts
    Py_ssize_t starts[RUN_MESSAGES]  # places of their lines
    Py_ssize_t bodies[RUN_MESSAGES]


cdef Py_ssize_t _collect(const Input *source, Py_ssize_t at, Line *line, Totals *totals, bytes subject, list messages,
                         Run *run, router, route, permissions) except -1:
    """Puts the message in `line` into `messages`, and those after it to the same subject, or to others that the same taker
    alone takes. Another node gets those with headers, too. Returns where the next line begins."""
    cdef object bulk = route.bulk, node = route.node
    run.count = run.size = 0
    while True:
        messages.append((
            subject, PyBytes_FromStringAndSize(source.data + line.reply, line.reply_size),
            PyBytes_FromStringAndSize(source.data + line.body, line.headers_size), PyBytes_FromStringAndSize(
                source.data + line.body + line.headers_size, line.body_size - line.headers_size)))
        run.starts[run.count], run.bodies[run.count] = at, line.body_size
        run.count += 1
        run.size += line.subject_size + line.reply_size + line.body_size
        totals.messages += 1
        totals.bytes += line.body_size
        at = line.end
        if run.count >= run.most or run.size >= RUN_BYTES or not _goes_on(source, at, line, totals, node is not None):
            return at
        if not _is(source, line, subject):
            subject = PyBytes_FromStringAndSize(source.data + line.subject, line.subject_size)
            if not _takes(router, subject, bulk, node) or not _permitted(permissions, subject):
                return at


cdef bint _permitted(permissions, bytes subject) except -1:
    """False when Python has to look: the subject is not permitted, or only as a reply that is open."""
    if permissions is None:
        return True
    answer = (<dict>permissions.publishes).get(subject)
    return bool(permissions.permits(subject) if answer is None else answer)


cdef bint _takes(router, bytes subject, bulk, node) except -1:
    """True when `bulk`, or `node` where it is None, alone takes the subject, whose route is at hand."""
    cdef dict literals = router.literals, shared
    cdef Py_ssize_t size = PyBytes_GET_SIZE(subject)
    cdef const char *name = PyBytes_AS_STRING(subject)
    cdef bint ack = size > 8 and memcmp(name, b"$JS.ACK.", 8) == 0
    route = None if ack else literals.get(subject)
    if route is None:
        size = _without(name, size, ACK_TOKENS if ack else 1)
        if size < 1:
            return False
        shared = router.index.deep if ack else router.index.prefixes
        route = shared.get(PyBytes_FromStringAndSize(name, size))
    return route is not None and route.bulk is bulk and route.node is node


cdef Py_ssize_t _without(const char *name, Py_ssize_t size, int tokens) noexcept nogil:
    """The size without the last tokens; 0 when there are not so many, or one is empty."""
    cdef Py_ssize_t end
    for _ in range(tokens):
        end = size
        while size and name[size - 1] != 46:
            size -= 1
        if size == end or not size:
            return 0
        size -= 1
    return size


cdef inline bint _is(const Input *source, const Line *line, bytes subject) noexcept:
    return line.subject_size == PyBytes_GET_SIZE(subject) and memcmp(
        source.data + line.subject, PyBytes_AS_STRING(subject), line.subject_size) == 0


cdef Py_ssize_t _taken(Run *run, Py_ssize_t taken, Py_ssize_t at, Totals *totals) noexcept nogil:
    """Returns where the first line begins that was not taken; `at` is the line after the run. One message is taken in any
    case: it would come again and again. A taker that does not take all gets no more at a time in this portion, as what
    it gives back is read again."""
    cdef Py_ssize_t place
    taken = max(taken, 1)
    if taken >= run.count:
        if run.grows:
            run.most = min(2 * run.most, RUN_MESSAGES)
        return at
    run.most, run.grows = taken, False
    for place in range(taken, run.count):
        totals.messages -= 1
        totals.bytes -= run.bodies[place]
    return run.starts[taken]


def publish_lines(commands, portion, parser, Py_ssize_t size, client, router):
    """Runs the plain PUBs and HPUBs that begin in the next `size` bytes of `parser`, up to the end of the portion; then
    `portion.over` is True. The session must be `plain`."""
    cdef bytes data = parser.waiting
    cdef Py_ssize_t at = parser.at
    cdef Input source
    cdef Totals totals
    cdef Line line
    cdef dict literals = router.literals
    cdef Py_ssize_t max_output = portion.output, length = size
    cdef bytes subject = None, reply, headers, payload
    cdef list messages
    cdef Run run
    cdef object permissions = client.session.permissions
    cdef object route = None, callback = None, taker = None
    source.data, source.size = PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)
    source.stop = min(at + length, source.size)
    source.max_line, source.max_payload, source.headers = parser.max_control_line, parser.max_payload, client.headers
    source.restricted = permissions is not None
    totals.messages, totals.bytes = portion.in_msgs, portion.in_bytes
    totals.max_messages, totals.max_bytes = portion.messages, portion.bytes
    totals.congested = False
    run.most, run.grows = FIRST_RUN, True
    while at < source.stop and _read(&source, at, &line):
        if subject is None or PyBytes_GET_SIZE(subject) != line.subject_size or memcmp(
                PyBytes_AS_STRING(subject), source.data + line.subject, line.subject_size) != 0:
            subject = PyBytes_FromStringAndSize(source.data + line.subject, line.subject_size)
            if not _permitted(permissions, subject):
                break
            route = None
        if route is None:
            route = literals.get(subject)
            if route is None:
                route = commands.look_up(router, subject, portion)
                totals.max_messages = portion.messages
            callback = route.single
            taker = None if callback is not None else route.client
            if taker is not None and (taker.closed or (taker.owner is client and not client.echo)):
                taker = None
        if taker is not None and not line.headers_size:
            at = _render(&source, at, &line, &totals, subject, taker, client, max_output)
            if totals.congested:
                totals.congested = False
                route = None
        elif not route.node.closed if route.node is not None else route.bulk is not None and not line.headers_size:
            messages = []
            at = _collect(&source, at, &line, &totals, subject, messages, &run, router, route, permissions)
            try:
                size = run.count
                if route.node is not None:
                    route.node.peer.send_run(router.account, messages, run.size)
                elif run.count == 1:
                    callback(subject, messages[0][1], b"", messages[0][3], client)
                else:
                    size = route.bulk(messages, client)
            except Exception:
                commands.lost(messages[0][0])
                size = 1
            at = _taken(&run, size, at, &totals)
            route = None
        else:
            totals.messages += 1
            totals.bytes += line.body_size
            at = line.end
            reply = PyBytes_FromStringAndSize(source.data + line.reply, line.reply_size)
            headers = PyBytes_FromStringAndSize(source.data + line.body, line.headers_size)
            payload = PyBytes_FromStringAndSize(
                source.data + line.body + line.headers_size, line.body_size - line.headers_size)
            if callback is not None:
                try:
                    callback(subject, reply, headers, payload, client)
                except Exception:
                    commands.lost(subject)
            else:
                commands.deliver(router, route, subject, reply, headers, payload, portion)
                totals.max_messages = portion.messages
            route = None  # the interest may have changed
        if client.pending > max_output or totals.messages >= totals.max_messages or totals.bytes >= totals.max_bytes \
                or client.valve is not None or client.close_reason:
            portion.over = True
            break
        if client.session.permissions is not permissions or not client.session.plain:
            break  # a callback has changed the client's rights
    portion.in_msgs, portion.in_bytes = totals.messages, totals.bytes
    parser.skip(at)
