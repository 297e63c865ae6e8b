/* Requests to the valgrind that runs this process; without one they do nothing. */
#include <valgrind/callgrind.h>

int under_valgrind(void) { return RUNNING_ON_VALGRIND; }
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
