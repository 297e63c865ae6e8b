"""`WriteQueue`: a queue of jobs for one thread, which runs writes to files without the interpreter's lock. So a write
begins while the event loop's turn goes on, and its end wakes the loop at once.

The twin of a `Write` is `raft.journal.disk.FileDisk.write`. Jobs for Python return to the thread's loop in
`raft.journal.queued_writer`, in their order among the writes.
"""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.pythread cimport (
    WAIT_LOCK,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_release_lock,
    PyThread_type_lock,
)
from cpython.ref cimport PyObject
from libc.errno cimport EINTR, EIO, errno
from libc.stdlib cimport free, malloc

from jetcluster.native.source cimport SOURCE_DIGEST

SOURCE = SOURCE_DIGEST.decode()
"""`native.source_digest` of the sources it was compiled from."""

cdef enum:
    MAX_PARTS = 1024  # of one system call: IOV_MAX of Linux and macOS


cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    Py_ssize_t pwritev(int fd, const iovec *parts, int count, long long offset)

cdef extern from "<unistd.h>" nogil:
    Py_ssize_t write(int fd, const void *data, size_t size)

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int clock, timespec *now)

cdef extern from * nogil:
    """
    #define ended_load(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
    #define ended_store(place) __atomic_store_n(place, 1, __ATOMIC_RELEASE)
    """
    int ended_load(int *place)
    void ended_store(int *place)


cdef struct Item:
    Item *next
    PyObject *job  # whose item this is; the loop keeps it until it has ended
    int fd  # -1: a job for Python
    int error
    int ended
    Py_ssize_t count
    iovec *parts
    long long offset
    long long queued  # nanoseconds of the monotonic clock
    long long began
    long long finished


cdef inline long long _now() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <long long>now.tv_sec * 1000000000 + now.tv_nsec


cdef int _write(Item *item) noexcept nogil:
    """Write all parts; a write that stops early goes on. Return 0 or the error's number."""
    cdef iovec *part = item.parts
    cdef Py_ssize_t left = item.count, written
    cdef long long offset = item.offset
    while left:
        written = pwritev(item.fd, part, <int>min(left, MAX_PARTS), offset)
        if written < 0:
            if errno == EINTR:
                continue
            return errno
        if written == 0:
            return EIO
        offset += written
        while left and written >= <Py_ssize_t>part.iov_len:
            written -= part.iov_len
            part += 1
            left -= 1
        if left:
            part.iov_base = <char *>part.iov_base + written
            part.iov_len -= written
    return 0


cdef class Job:
    """One job for the thread. It runs once, and must be kept until it has ended."""

    cdef Item item
    cdef readonly object call
    """What a job for Python calls."""
    cdef public object raised
    """What that has raised; None for nothing."""

    def __cinit__(self, call=None, *_):
        self.item.job = <PyObject *>self
        self.item.fd = -1
        self.item.parts = NULL
        self.call = call

    cdef int _begin(self) except -1:
        """Refuse a second run: the first one's end would count for it."""
        if self.item.queued:
            raise ValueError("a job runs once")
        self.item.queued = _now()
        return 0

    @property
    def ended(self):
        return ended_load(&self.item.ended) != 0

    @property
    def error(self):
        """The error's number of a write that has ended; 0 for none."""
        return self.item.error

    @property
    def waited_ns(self):
        """Nanoseconds between the queueing and the begin of a job that has ended."""
        return self.item.began - self.item.queued

    @property
    def seconds(self):
        """The time that a write took that has ended."""
        return (self.item.finished - self.item.began) / 1e9


cdef class Write(Job):
    """Write `parts` to `fd` at `offset`. The file is open with O_DSYNC: they are durable when it has ended."""

    cdef list held

    def __init__(self, int fd, list parts not None, long long offset):
        cdef Item *item = &self.item
        cdef bytes part
        if fd < 0 or offset < 0 or item.parts != NULL:
            raise ValueError("no file or place, or made before")
        self.call = None
        self.held = parts = list(parts)  # bytes, which nobody can change or free meanwhile
        item.parts = <iovec *>malloc(max(len(parts), 1) * sizeof(iovec))
        if item.parts == NULL:
            raise MemoryError
        item.count = 0
        for part in parts:
            if part is None:  # which Cython takes for bytes
                raise TypeError("no bytes")
            if PyBytes_GET_SIZE(part):
                item.parts[item.count].iov_base = PyBytes_AS_STRING(part)
                item.parts[item.count].iov_len = PyBytes_GET_SIZE(part)
                item.count += 1
        item.fd, item.offset = fd, offset

    def __call__(self):
        """Do it in the calling thread. Raises OSError."""
        cdef Item *item = &self.item
        self._begin()
        with nogil:
            item.began = item.queued
            item.error = _write(item)
            item.finished = _now()
            ended_store(&item.ended)
        if item.error:
            raise OSError(item.error, os.strerror(item.error))

    def __dealloc__(self):
        free(self.item.parts)


cdef class WriteQueue:
    """One thread serves it. `wake`: a pipe to which a byte is written for each job that has ended."""

    cdef PyThread_type_lock lock
    cdef PyThread_type_lock came  # held, but for a moment when `idle` ends: a condition costs two more system calls
    cdef bint idle
    cdef Item *first  # of those that wait
    cdef Item *last
    cdef int wake
    cdef bint closed

    def __cinit__(self, int wake):
        self.wake = wake
        self.first = self.last = NULL
        self.closed = self.idle = False
        self.lock = PyThread_allocate_lock()
        self.came = PyThread_allocate_lock()
        if self.lock == NULL or self.came == NULL:
            raise MemoryError
        PyThread_acquire_lock(self.came, WAIT_LOCK)

    def __dealloc__(self):
        if self.came != NULL:
            PyThread_free_lock(self.came)
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    def put(self, Job job not None):
        """Queue a job. Raises ValueError for one that was queued before."""
        job._begin()
        job.item.next = NULL
        PyThread_acquire_lock(self.lock, WAIT_LOCK)
        if self.last == NULL:
            self.first = &job.item
        else:
            self.last.next = &job.item
        self.last = &job.item
        self._unlock()

    def close(self):
        """Have `serve` return None once all jobs are done."""
        PyThread_acquire_lock(self.lock, WAIT_LOCK)
        self.closed = True
        self._unlock()

    cdef void _unlock(self) noexcept nogil:
        """Release the lock, and wake the thread where it waits."""
        cdef bint wakes = self.idle
        self.idle = False
        PyThread_release_lock(self.lock)
        if wakes:
            PyThread_release_lock(self.came)

    cdef Item *_next(self) noexcept nogil:
        """Take the first job. Return NULL when there will be none."""
        cdef Item *item
        while True:
            PyThread_acquire_lock(self.lock, WAIT_LOCK)
            item = self.first
            if item != NULL:
                self.first = item.next
                if self.first == NULL:
                    self.last = NULL
            self.idle = item == NULL and not self.closed
            if not self.idle:
                PyThread_release_lock(self.lock)
                return item
            PyThread_release_lock(self.lock)
            PyThread_acquire_lock(self.came, WAIT_LOCK)

    def serve(self):
        """Run writes until a job for Python comes; return that. `finished` must be called when it is done."""
        cdef Item *item
        with nogil:
            while True:
                item = self._next()
                if item == NULL:
                    break
                item.began = _now()
                if item.fd < 0:
                    break
                item.error = _write(item)
                self._end(item)
        return None if item == NULL else <Job>item.job

    def finished(self, Job job not None):
        """End a job of Python."""
        self._end(&job.item)

    cdef void _end(self, Item *item) noexcept nogil:
        item.finished = _now()
        ended_store(&item.ended)  # from here on the loop may let the job go
        write(self.wake, b"\0", 1)  # it cannot wait, and a full pipe wakes the loop as well
