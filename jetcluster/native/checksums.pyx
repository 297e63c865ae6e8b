"""`crc32`: the checksum of zlib, by the processor's carry-less multiplication. The twin is `zlib.crc32`.

Folding and constants are those of "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (V. Gopal
and others, Intel, 2009), bit-reflected. Only 128-bit registers are used: wider ones made what ran next slower.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t

from jetcluster.native.source cimport SOURCE_DIGEST

SOURCE = SOURCE_DIGEST.decode()
"""`native.source_digest` of the sources it was compiled from."""

cdef enum:
    BLOCK = 64
    LONG_BYTES = 1 << 17  # 10 us: other threads may run meanwhile


cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>

    static int can_fold(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    }

    #define TIMES(a, k, halves) _mm_clmulepi64_si128((a), (k), (halves))
    #define XOR(a, b) _mm_xor_si128((a), (b))
    #define LOAD(at) _mm_loadu_si128((const __m128i *)(at))
    #define FOLD(a, k, next) XOR(XOR(TIMES((a), (k), 0x11), TIMES((a), (k), 0x00)), (next))

    /* `size`: at least 64, and a multiple of 16; `crc` and the result are inverted. */
    __attribute__((target("pclmul,sse4.1")))
    static uint32_t fold(const unsigned char *at, size_t size, uint32_t crc) {
        const __m128i by64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
        const __m128i by16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
        const __m128i by8 = _mm_set_epi64x(0, 0x0163cd6124);
        const __m128i poly = _mm_set_epi64x(0x01f7011641, 0x01db710641);
        const __m128i low = _mm_setr_epi32(~0, 0, ~0, 0);
        __m128i a = XOR(LOAD(at), _mm_cvtsi32_si128((int)crc)), b = LOAD(at + 16), c = LOAD(at + 32), d = LOAD(at + 48);
        __m128i rest;
        for (at += 64, size -= 64; size >= 64; at += 64, size -= 64) {
            a = FOLD(a, by64, LOAD(at));
            b = FOLD(b, by64, LOAD(at + 16));
            c = FOLD(c, by64, LOAD(at + 32));
            d = FOLD(d, by64, LOAD(at + 48));
        }
        a = FOLD(a, by16, b);
        a = FOLD(a, by16, c);
        a = FOLD(a, by16, d);
        for (; size >= 16; at += 16, size -= 16)
            a = FOLD(a, by16, LOAD(at));
        a = XOR(_mm_srli_si128(a, 8), TIMES(a, by16, 0x10));  /* 128 to 64 bits */
        a = XOR(_mm_srli_si128(a, 4), TIMES(_mm_and_si128(a, low), by8, 0x00));
        rest = _mm_and_si128(TIMES(_mm_and_si128(a, low), poly, 0x10), low);  /* Barrett's reduction to 32 */
        a = XOR(a, TIMES(rest, poly, 0x00));
        return (uint32_t)_mm_extract_epi32(a, 1);
    }
    #else
    static int can_fold(void) { return 0; }
    static uint32_t fold(const unsigned char *at, size_t size, uint32_t crc) { return crc; }
    #endif
    """
    bint can_fold() nogil
    uint32_t fold(const unsigned char *at, size_t size, uint32_t crc) nogil


CAN_FOLD = bool(can_fold())
"""Whether the processor has the instructions."""

cdef uint32_t table[256]


cdef void _fill() noexcept:
    cdef uint32_t crc
    cdef int number, bit
    for number in range(256):
        crc = number
        for bit in range(8):
            crc = (crc >> 1) ^ (<uint32_t>0xEDB88320 if crc & 1 else 0)
        table[number] = crc


_fill()


cdef uint32_t _crc(const unsigned char *at, Py_ssize_t size, uint32_t crc) noexcept nogil:
    cdef Py_ssize_t folded = 0, i
    crc = ~crc
    if size >= BLOCK and can_fold():
        folded = size & ~15
        crc = fold(at, folded, crc)
    for i in range(folded, size):
        crc = table[(crc ^ at[i]) & 255] ^ (crc >> 8)
    return ~crc


def crc32(data, value=0, /):
    """Returns the CRC-32 of the bytes of `data`, begun with the value of those before them, of which 32 bits count."""
    cdef Py_buffer view
    cdef uint32_t crc = <uint32_t>(value & 0xFFFFFFFF)
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len > LONG_BYTES:
            with nogil:
                crc = _crc(<const unsigned char *>view.buf, view.len, crc)
        else:
            crc = _crc(<const unsigned char *>view.buf, view.len, crc)
    finally:
        PyBuffer_Release(&view)
    return crc
