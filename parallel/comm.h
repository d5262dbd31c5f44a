/* Transports: ranks that post sends and receives of host memory and wait for them.
 *
 * No blocking send exists: 1F1B with blocking sends deadlocks above the eager size for every
 * P >= 2, M >= 2. Everything that waits has the time limit of its world; past it the rank dies (7)
 * with a line that names peer and tag. Transport errors die the same way; nothing here returns an
 * error but opening. Collectives are our own algorithms over posted sends (collect.c), the same on
 * every transport: results are bit-identical on all ranks and on `self`, `thread` and `mpi`.
 *
 * Messages of one (sender, receiver, comm, tag) arrive in the order posted. */
#ifndef OCC_PARALLEL_COMM_H
#define OCC_PARALLEL_COMM_H

#include "base/err.h"
#include "base/type.h"
#include "parallel/traffic.h"

/* Every tag there is. */
enum occ_tag {
	OCC_TAG_ACT = 1,     /* dense, or of a known length */
	OCC_TAG_ACT_LENGTH,  /* of a wire that varies, sent before it */
	OCC_TAG_ACT_VARYING, /* that wire: a tag of its own, as its receive is posted late */
	OCC_TAG_GRAD,
	OCC_TAG_GRAD_LENGTH,
	OCC_TAG_GRAD_VARYING,
	OCC_TAG_COLL,
	OCC_TAG_AGREE,
	OCC_TAG_TRACE,
	OCC_TAG_TEST,
	OCC_TAG_BLAME /* who waits for whom, once time is up */
};

/* Parts of one large message that are under way at once. */
enum { OCC_REQ_PARTS = 16 };

struct occ_comm;

/* A posted send or receive. Embedded in its owner, which must outlive the wait; zero when idle. */
struct occ_req {
	int active, peer, nparts;
	enum occ_tag tag;
	const void *src; /* borrowed until waited for */
	void *dst;
	size_t bytes;
	int done;             /* thread transport */
	struct occ_req *next; /* thread transport */
	struct occ_comm *comm;
	void *part[OCC_REQ_PARTS];
};

struct occ_comm_ops {
	const char *name; /* self, thread, mpi, nccl, dry */
	int dry;          /* 1: data stays where it is, only counters move */
	void (*post_send)(struct occ_comm *c, const void *x, size_t bytes, int peer,
			  enum occ_tag tag, struct occ_req *r);
	void (*post_recv)(struct occ_comm *c, void *x, size_t bytes, int peer, enum occ_tag tag,
			  struct occ_req *r);
	int (*test)(struct occ_comm *c, struct occ_req *r); /* 1 when complete; progresses */
	void (*idle)(struct occ_comm *c);                   /* one yield between tests */
	/* Collective. Ranks of equal color form a group, in the order of key, then rank; NULL for
	 * color < 0. */
	struct occ_comm *(*split)(struct occ_comm *c, int color, int key);
	/* Instead of split where the members need not be asked: those world ranks, in that order.
	 */
	struct occ_comm *(*choose)(struct occ_comm *c, const int *ranks, int n);
	int (*node)(struct occ_comm *c); /* collective: lowest rank on this node */
	void (*close)(struct occ_comm *c);
	void (*abort)(int code); /* ends every rank; process-wide */
};

struct occ_comm {
	const struct occ_comm_ops *ops;
	int rank, size;
	double timeout_s;      /* of every wait; inherited by split */
	struct occ_comm *root; /* the world communicator, itself there; borrowed */
	int *world;            /* [size] rank in the world communicator; owned */
	const int *node_of;    /* [world size] node of each world rank; borrowed; NULL: one node */
	const char *what;      /* whom it joins, for messages; NULL: nothing to say */
	int lanes;             /* in the root: device memory travels by lanes (parallel/lane.h) */
	struct occ_traffic *traffic; /* where collectives count; borrowed; NULL: uncounted */
	void *impl;
};

/* Opening. `self` is one rank. */
struct occ_comm *occ_comm_open_self(double timeout_s);
/* MPI_Init and the world; called once a process, before any thread; sets
 * OMPI_MCA_mpi_yield_when_idle=1 and OMPI_MCA_btl_tcp_flags=1 first, unless they are set. Refusal
 * (5) where srun started N tasks that do not see each other. Without MPI in the build: refusal (2).
 * `close` of the world finalises MPI. */
struct occ_comm *occ_comm_open_mpi(double timeout_s, struct occ_err *e);
/* Rank `rank` of a world of `size`, alone: counts and moves nothing (`plan`). */
struct occ_comm *occ_comm_open_dry(int rank, int size);
/* Runs body(world, arg) on n threads of this process; returns the largest of their results. */
int occ_comm_run_threads(int n, double timeout_s, int (*body)(struct occ_comm *world, void *arg),
			 void *arg);
void occ_comm_close(struct occ_comm *c); /* NULL allowed */

/* Node of each world rank: by shared memory (mpi), or all on one node (self, thread); with
 * ranks_per_node > 0 emulated, rank / ranks_per_node. Fills node_of[size]. Collective. */
void occ_comm_nodes(struct occ_comm *world, int ranks_per_node, int *node_of);

/* Point to point. Return at once. */
void occ_comm_post_send(struct occ_comm *c, const void *x, size_t bytes, int peer, enum occ_tag tag,
			struct occ_req *r);
void occ_comm_post_recv(struct occ_comm *c, void *x, size_t bytes, int peer, enum occ_tag tag,
			struct occ_req *r);
void occ_comm_wait(struct occ_comm *c, struct occ_req *r); /* idle requests return at once */
int occ_comm_test(struct occ_comm *c, struct occ_req *r);  /* 1: complete, or idle */
/* Lets the rank that caused a failure speak and end the job first; signals do not cut it short. */
void occ_comm_hold(double seconds);
/* Most ranks wait for one that waits itself. So that one line names the cause, those that give up
 * tell each other whom they wait for: world rank `peer`, or w's size if they do not know. The one
 * who is to speak returns at once, the others late: whoever returns ends the job. */
void occ_comm_compare_notes(struct occ_comm *w, int peer);
int occ_comm_crosses(const struct occ_comm *c, int peer); /* 1 if peer is on another node */

/* Pure: the first row of slice t of T, floor(t*rows/T). Slice t ends where slice t+1 begins. */
int64_t occ_slice_row(int64_t rows, int t, int T);

/* Collectives over all of c, host memory. Sums are made in rank order 0..size-1 in fp32 for each
 * element and rounded once, so neither chunks nor transport change a bit. They count
 * 2(size-1) messages a rank and 2(size-1)*bytes in all, as a ring would. */
size_t occ_comm_scratch(const struct occ_comm *c, int64_t n, enum occ_type type); /* bytes */
void occ_comm_sum(struct occ_comm *c, void *x, int64_t n, enum occ_type type, void *scratch);
void occ_comm_max(struct occ_comm *c, float *x, int64_t n, void *scratch);  /* NaN wins */
void occ_comm_count_sum(struct occ_comm *c, int64_t n, enum occ_type type); /* what a sum counts */
/* Rank r contributes bytes[r]; all (concatenated in rank order) holds own part in place already. */
void occ_comm_gather(struct occ_comm *c, void *all, const size_t *bytes);
void occ_comm_count_gather(struct occ_comm *c, size_t own); /* what it counts for own bytes */
/* Pure: the binomial tree that broadcasts go down; -1: the root has no parent. Returns children. */
int occ_tree(int rank, int size, int root, int *parent, int child[32]);
void occ_comm_bcast(struct occ_comm *c, void *x, size_t bytes, int root);
/* Small, uncounted. Sums in rank order, the same bits everywhere. */
void occ_comm_sum_double(struct occ_comm *c, double *x, int n);
void occ_comm_max_int64(struct occ_comm *c, int64_t *x, int n);
void occ_comm_barrier(struct occ_comm *c);

/* Collective. The lowest rank with a failure prints its line, with its place if others had none;
 * every rank returns its code, or 0. */
int occ_agree(struct occ_comm *c, const struct occ_err *e);
/* Collective. Nonzero if the ranks do not all pass the same word. */
int occ_differs(struct occ_comm *c, uint64_t word);

#endif
