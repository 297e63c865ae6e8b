"""`native.source_digest` of all sources, as `scripts/native.py` passes it to the C compiler."""


cdef extern from *:
    """
    #ifndef SOURCE_DIGEST
    #define SOURCE_DIGEST ""
    #endif
    """
    const char *SOURCE_DIGEST
