"""Writing into memory that is large enough."""

from libc.string cimport memcpy


cdef inline char *put(char *out, const char *source, Py_ssize_t size) noexcept nogil:
    memcpy(out, source, size)
    return out + size


cdef inline char *put_number(char *out, unsigned long long number) noexcept nogil:
    """Writes a number in decimal digits."""
    cdef Py_ssize_t size = digits(number), at = size
    while at:
        at -= 1
        out[at] = 48 + <char>(number % 10)
        number //= 10
    return out + size


cdef inline Py_ssize_t digits(unsigned long long number) noexcept nogil:
    cdef Py_ssize_t count = 1
    while number > 9:
        number //= 10
        count += 1
    return count


cdef inline char *put_u32(char *out, Py_ssize_t number) noexcept nogil:
    """Writes 4 bytes, the highest first."""
    out[0] = <char>(number >> 24 & 255)
    out[1] = <char>(number >> 16 & 255)
    out[2] = <char>(number >> 8 & 255)
    out[3] = <char>(number & 255)
    return out + 4
