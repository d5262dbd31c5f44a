/* How the program fails: three kinds, each with its exit code (docs/design.md, section 6).
 *
 *   refusal  the user can act        return occ_fail(e, code, ...); agreed later by all ranks
 *   fault    the world failed        occ_die(code, ...): one line, then the whole job aborts
 *   our bug  a broken invariant      occ_check(cond, ...): always on, exit code 70
 *
 * Only code that reads something from outside (config, data, checkpoint, topology) returns errors.
 * Such a function takes `struct occ_err *` last, fills it once and sets its outputs only on
 * success. Every line is put out by one write(2), control characters replaced, and ends in a
 * newline. */
#ifndef OCC_BASE_ERR_H
#define OCC_BASE_ERR_H

enum occ_exit {
	OCC_OK = 0,
	OCC_E_CONFIG = 2,  /* usage or config */
	OCC_E_DATA = 3,    /* training data, init.load */
	OCC_E_CKPT = 4,    /* checkpoint or metrics cannot be read or written */
	OCC_E_LAUNCH = 5,  /* the ranks do not fit the layout */
	OCC_E_NUMERIC = 6, /* non-finite loss or gradient */
	OCC_E_COMM = 7,    /* transport failure or a wait past its time limit */
	OCC_E_DEVICE = 8,  /* device or memory */
	OCC_E_BUG = 70,
	OCC_E_STOPPED = 75, /* stopped on request, checkpoint complete */
};

struct occ_err {
	int code;        /* OCC_OK or the exit code of the first failure */
	char text[1024]; /* fit to be shown as it is: what is wrong, where, what would be right */
};

/* Records a failure if `e` holds none yet (the first one is the cause). Returns -1. */
int occ_fail(struct occ_err *e, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* "occ-train: TEXT\n" on standard error, no rank in it: a refusal of all ranks is spoken once. */
void occ_err_print(const struct occ_err *e);

/* "occ-train: PLACE: TEXT\n": a refusal that is this rank's alone. */
void occ_err_print_place(const struct occ_err *e);

/* "occ-train: PLACE: TEXT\n" on standard error, then the abort hook, then _exit(code).
 * If several threads die at once, the first speaks and ends the process. */
void occ_die(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3), noreturn));

/* Who this thread is, "rank 3 (dp 0 pp 1 tp 1) host a"; copied; per thread. "" until set. */
void occ_err_place(const char *place);

/* What occ_die calls to end the other ranks (MPI_Abort); process-wide; NULL for none. */
void occ_err_on_abort(void (*hook)(int code));

#define occ_check(cond, ...)                                                                       \
	do {                                                                                       \
		if (!(cond))                                                                       \
			occ_bug(__FILE__, __LINE__, #cond, __VA_ARGS__);                           \
	} while (0)

void occ_bug(const char *file, int line, const char *cond, const char *fmt, ...)
	__attribute__((format(printf, 4, 5), noreturn));

#endif
