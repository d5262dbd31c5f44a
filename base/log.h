/* Lines for people who look for a fault, on standard error; results and progress go elsewhere.
 *
 * OCC_LOG=LEVEL[:RANK] in the environment: error (the default), info or debug, of all ranks or of
 * one. Each thread reads it once. A line is one write, with the rank before it below `error`; an
 * error is spoken by one rank and needs none. Never inside a kernel or per message: rare by design.
 */
#ifndef OCC_BASE_LOG_H
#define OCC_BASE_LOG_H

enum occ_log_level { OCC_LOG_ERROR, OCC_LOG_INFO, OCC_LOG_DEBUG };

void occ_log_rank(int rank); /* of this thread; -1 (none) until set */
void occ_log(enum occ_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
