/* Transports and collectives. comm [thread|mpi] [N] [--sum]: threads run every size 1..8 or only N;
 * under mpirun the world is what it is. --sum prints a checksum of the results, equal on both. RUN:
 * mpi=1,3,8 */
#include "parallel/comm.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tests/check.h"

enum { LARGE = 3 << 20 }; /* elements: several pieces of a sum */

/* All results of rank 0 go in here (FNV-1a). */
static uint64_t digest = 1469598103934665603u;

static void note(const struct occ_comm *c, const void *x, size_t bytes)
{
	const unsigned char *p = x;
	for (size_t i = 0; c->rank == 0 && i < bytes; i++)
		digest = (digest ^ p[i]) * 1099511628211u;
}

/* Values whose sum depends on the order of adding. */
static float value(int rank, int64_t i)
{
	static const float scale[4] = {1, 1e4f, 1e-3f, 3e7f};
	return ((float)occ_rng_uniform((uint64_t)rank + 7, (uint64_t)i) - 0.5f) *
	       scale[(rank + i) & 3];
}

static void put(enum occ_type t, void *x, int64_t i, float v)
{
	if (t == OCC_F32)
		((float *)x)[i] = v;
	else
		((uint16_t *)x)[i] = occ_f32_to_bf16(v);
}

static float get(enum occ_type t, const void *x, int64_t i)
{
	return t == OCC_F32 ? ((const float *)x)[i] : occ_bf16_to_f32(((const uint16_t *)x)[i]);
}

/* The serial truth: rank order in fp32, one rounding. */
static void expect(enum occ_type t, int size, int64_t n, int max, void *out)
{
	float own[1];
	for (int64_t i = 0; i < n; i++) {
		float acc = 0;
		for (int r = 0; r < size; r++) {
			put(t, own, 0, value(r, i));
			float v = get(t, own, 0);
			acc = r == 0 ? v : max ? fmaxf(acc, v) : acc + v;
		}
		put(t, out, i, acc);
	}
}

static void check_counts(struct occ_comm *c, int64_t n, size_t each, const struct occ_traffic *t)
{
	int64_t all[3] = {t->raw_bytes, t->wire_bytes, t->inter_node_raw_bytes};
	double total[3] = {(double)all[0], (double)all[1], (double)all[2]};
	int64_t messages = 2 * (c->size - 1), bytes = messages * n * (int64_t)each;
	occ_comm_sum_double(c, total, 3);
	CHECK(t->messages == messages, "size %d n %lld: %lld messages", c->size, (long long)n,
	      (long long)t->messages);
	CHECK(total[0] == (double)bytes && total[1] == (double)bytes && total[2] == 0,
	      "size %d n %lld: %g bytes of %lld", c->size, (long long)n, total[0],
	      (long long)bytes);
}

static void check_reduce(struct occ_comm *c, int64_t n, enum occ_type type, int max)
{
	size_t each = occ_type_size(type), room = (size_t)n + 1;
	char *x = occ_alloc(room, each), *want = occ_alloc(room, each);
	void *scratch = occ_alloc(occ_comm_scratch(c, n, type), 1);
	struct occ_traffic t = {0};
	for (int64_t i = 0; i < n; i++)
		put(type, x, i, value(c->rank, i));
	put(type, x, n, 77); /* a guard behind the end */
	expect(type, c->size, n, max, want);
	c->traffic = &t;
	if (max)
		occ_comm_max(c, (void *)x, n, scratch);
	else
		occ_comm_sum(c, x, n, type, scratch);
	c->traffic = NULL;
	CHECK(memcmp(x, want, (size_t)n * each) == 0 && get(type, x, n) == 77,
	      "size %d n %lld type %d max %d: bits", c->size, (long long)n, (int)type, max);
	check_counts(c, n, each, &t);
	note(c, x, (size_t)n * each);
	occ_free(scratch);
	occ_free(want);
	occ_free(x);
}

static void check_reduces(struct occ_comm *c)
{
	for (int64_t n = 0; n <= 40; n++)
		for (int t = OCC_F32; t <= OCC_BF16; t++)
			check_reduce(c, n, (enum occ_type)t, 0);
	for (int64_t n = 0; n <= 20; n++)
		check_reduce(c, n, OCC_F32, 1);
	check_reduce(c, 5000, OCC_F32, 1);
	check_reduce(c, 4099, OCC_BF16, 0);
	if (c->size == 3 || c->size == 4 || c->size == 8)
		check_reduce(c, LARGE + 5, c->size == 3 ? OCC_BF16 : OCC_F32, 0);
}

/* NaN of any rank wins a maximum, on every rank. */
static void check_nan(struct occ_comm *c)
{
	float x[16];
	void *s = occ_alloc(occ_comm_scratch(c, 16, OCC_F32), 1);
	for (int i = 0; i < 16; i++)
		x[i] = i % c->size == c->rank ? NAN : -INFINITY;
	occ_comm_max(c, x, 16, s);
	for (int i = 0; i < 16; i++)
		CHECK(isnan(x[i]), "size %d: element %d is %g", c->size, i, x[i]);
	occ_free(s);
}

/* Rank r gives uneven[r] bytes: some none, one long. */
static void check_gather(struct occ_comm *c)
{
	static const size_t uneven[8] = {3, 0, 70001, 64, 1, 0, 300000, 17};
	struct occ_traffic t = {0};
	size_t total = 0, at = 0;
	for (int r = 0; r < c->size; r++) {
		at += r < c->rank ? uneven[r] : 0;
		total += uneven[r];
	}
	unsigned char *all = occ_alloc(total, 1);
	for (size_t i = 0; i < uneven[c->rank]; i++)
		all[at + i] = (unsigned char)(at + i * 7 + 1);
	c->traffic = &t;
	occ_comm_gather(c, all, uneven);
	c->traffic = NULL;
	at = 0;
	int wrong = 0;
	for (int r = 0; r < c->size; at += uneven[r++])
		for (size_t i = 0; i < uneven[r]; i++)
			wrong += all[at + i] != (unsigned char)(at + i * 7 + 1);
	CHECK(wrong == 0, "size %d rank %d: %d wrong bytes gathered", c->size, c->rank, wrong);
	CHECK(t.messages == c->size - 1 && t.wire_bytes == (int64_t)uneven[c->rank] * (c->size - 1),
	      "size %d: gather counts %lld", c->size, (long long)t.messages);
	note(c, all, total);
	occ_free(all);
}

static void check_bcast(struct occ_comm *c)
{
	size_t bytes = 1000003;
	unsigned char *x = occ_alloc(bytes, 1);
	for (int root = 0; root < c->size; root++) {
		struct occ_traffic t = {0};
		memset(x, c->rank == root ? root + 1 : 0, bytes);
		c->traffic = &t;
		occ_comm_bcast(c, x, bytes, root);
		c->traffic = NULL;
		int64_t sent = t.messages, wrong = 0;
		double total = (double)sent;
		for (size_t i = 0; i < bytes; i++)
			wrong += x[i] != root + 1;
		occ_comm_sum_double(c, &total, 1);
		CHECK(wrong == 0 && total == c->size - 1, "size %d root %d: %lld wrong, %g sent",
		      c->size, root, (long long)wrong, total);
	}
	occ_free(x);
}

static void check_small(struct occ_comm *c)
{
	double d[150], want;
	int64_t m[150];
	for (int i = 0; i < 150; i++) {
		d[i] = value(c->rank, i);
		m[i] = (i & 1 ? -1 : 1) * (int64_t)(c->rank + 1) * (1LL << 40);
	}
	occ_comm_sum_double(c, d, 150);
	occ_comm_max_int64(c, m, 150);
	for (int i = 0; i < 150; i++) {
		want = value(0, i);
		for (int r = 1; r < c->size; r++)
			want += value(r, i);
		CHECK(memcmp(&d[i], &want, sizeof(want)) == 0, "size %d: double %d", c->size, i);
		CHECK(m[i] == (i & 1 ? -1 : c->size) * (1LL << 40), "size %d: word %d is %lld",
		      c->size, i, (long long)m[i]);
	}
	note(c, d, sizeof(d));
	CHECK(!occ_differs(c, 0xfedcba9876543210u), "equal words differ");
	if (c->size > 1)
		for (int odd = 0; odd < c->size; odd++)
			CHECK(occ_differs(c, c->rank == odd ? 1u << 31 : 5),
			      "odd word of %d unseen", odd);
}

/* 4 MiB messages both ways at once with every peer, several in flight, of one tag. */
static void check_large_both_ways(struct occ_comm *c)
{
	size_t bytes = c->size > 4 ? 1 << 20 : 4 << 20;
	struct occ_req out[2] = {0}, in[2] = {0};
	int to = (c->rank + 1) % c->size, from = (c->rank + c->size - 1) % c->size, wrong = 0;
	unsigned char *x = occ_alloc(4, bytes);
	for (int k = 0; k < 2; k++)
		memset(x + (size_t)k * bytes, 16 * c->rank + k, bytes);
	for (int k = 0; k < 2; k++) {
		occ_comm_post_send(c, x + (size_t)k * bytes, bytes, to, OCC_TAG_TEST, &out[k]);
		occ_comm_post_recv(c, x + (size_t)(k + 2) * bytes, bytes, from, OCC_TAG_TEST,
				   &in[k]);
	}
	for (int k = 1; k >= 0; k--) { /* waits need no order */
		occ_comm_wait(c, &in[k]);
		occ_comm_wait(c, &out[k]);
		for (size_t i = 0; i < bytes; i++)
			wrong += x[(size_t)(k + 2) * bytes + i] != (unsigned char)(16 * from + k);
	}
	CHECK(wrong == 0, "size %d: %d bytes of 4 MiB messages wrong", c->size, wrong);
	occ_comm_wait(c, &in[0]); /* idle: returns at once */
	occ_free(x);
}

/* Many small messages of two tags, the receiver late or early, taken in another order of tags. */
static void check_order(struct occ_comm *c)
{
	enum { N = 40 };
	int to = (c->rank + 1) % c->size, from = (c->rank + c->size - 1) % c->size;
	int sent[2][N], got[2][N];
	struct occ_req out[2][N] = {0}, in[2][N] = {0};
	static const enum occ_tag tags[2] = {OCC_TAG_ACT, OCC_TAG_GRAD};
	for (int k = 0; k < N; k++)
		for (int t = 0; t < 2; t++) {
			sent[t][k] = 1000 * t + k + 10000 * c->rank;
			occ_comm_post_send(c, &sent[t][k], sizeof(int), to, tags[t], &out[t][k]);
		}
	if (c->rank & 1)
		usleep(1000);
	for (int t = 1; t >= 0; t--)
		for (int k = 0; k < N; k++)
			occ_comm_post_recv(c, &got[t][k], sizeof(int), from, tags[t], &in[t][k]);
	for (int k = 0; k < N; k++)
		for (int t = 0; t < 2; t++) {
			occ_comm_wait(c, &in[t][k]);
			occ_comm_wait(c, &out[t][k]);
			CHECK(got[t][k] == 1000 * t + k + 10000 * from, "tag %d: message %d is %d",
			      t, k, got[t][k]);
		}
}

/* Odd and even ranks, keys reversed; then the odd ones without anybody; then a split of a split. */
static void check_split(struct occ_comm *c)
{
	int node_of[8] = {0, 0, 1, 1, 2, 2, 3, 3};
	c->node_of = node_of;
	struct occ_comm *s = c->ops->split(c, c->rank & 1, -c->rank);
	int size = (c->size + !(c->rank & 1)) / 2;
	CHECK(s->size == size && s->world[s->rank] == c->rank, "split of %d: %d", c->size, s->size);
	for (int r = 0; r + 1 < s->size; r++)
		CHECK(s->world[r] == s->world[r + 1] + 2, "order by key of %d", c->size);
	double sum = c->rank;
	occ_comm_sum_double(s, &sum, 1);
	CHECK(sum == (c->rank & 1 ? size * size : size * (size - 1)), "group sum %g", sum);
	for (int r = 0; r < s->size; r++)
		CHECK(occ_comm_crosses(s, r) == (node_of[s->world[r]] != node_of[c->rank]),
		      "who crosses of %d", c->size);

	struct occ_comm *even = c->ops->split(c, c->rank & 1 ? -1 : 5, 0);
	CHECK((even == NULL) == (c->rank & 1), "color < 0 gives nothing");
	struct occ_comm *alone = s->ops->split(s, s->rank, 0);
	CHECK(alone->size == 1 && alone->world[0] == c->rank, "split of a split");
	occ_comm_close(alone);
	occ_comm_close(even);
	occ_comm_close(s);
	c->node_of = NULL;
}

/* The part that leaves a node: emulated nodes of 2 ranks, each rank's slice both ways. */
static void check_nodes(struct occ_comm *c)
{
	int node_of[8];
	double inter;
	int64_t n = 1000, outside = 0;
	float *x = occ_alloc((size_t)n, sizeof(*x));
	void *s = occ_alloc(occ_comm_scratch(c, n, OCC_F32), 1);
	struct occ_traffic t = {0};
	int thread = strcmp(c->ops->name, "thread") == 0;
	occ_comm_nodes(c, 0, node_of);
	int nodes =
		1; /* threads are on one; elsewhere numbered in the order of their first ranks */
	for (int r = 0; r < c->size; r++) {
		CHECK(node_of[r] >= 0 && node_of[r] <= (thread ? 0 : nodes) &&
			      (r || node_of[r] == 0),
		      "rank %d is on node %d", r, node_of[r]);
		nodes += node_of[r] == nodes;
	}
	occ_comm_nodes(c, 2, node_of);
	c->node_of = node_of;
	c->traffic = &t;
	occ_comm_sum(c, x, n, OCC_F32, s);
	c->traffic = NULL;
	for (int a = 0; a < c->size; a++)
		for (int b = 0; b < c->size; b++)
			if (a / 2 != b / 2)
				outside += 2 * 4 *
					   (occ_slice_row(n, a + 1, c->size) -
					    occ_slice_row(n, a, c->size));
	inter = (double)t.inter_node_wire_bytes;
	occ_comm_sum_double(c, &inter, 1);
	CHECK(inter == (double)outside, "size %d: %g bytes between nodes, not %lld", c->size, inter,
	      (long long)outside);
	c->node_of = NULL;
	occ_free(s);
	occ_free(x);
}

/* Several ranks fail: one line, the lowest one's, and its code everywhere. The world's rank 0 looks
 * at the file that standard error was sent to; under mpirun each process has its own. */
static void check_agree(struct occ_comm *c)
{
	char path[] = "/tmp/occ-agree-XXXXXX";
	int file = -1, saved = -1, shared = strcmp(c->ops->name, "thread") == 0;
	struct occ_err e = {0};
	CHECK(occ_agree(c, &e) == 0, "nobody failed");
	if (c->rank >= c->size / 2)
		occ_fail(&e, 2 + c->rank % 3, "rank %d fails", c->rank);
	occ_comm_barrier(c);
	if (!shared || c->rank == 0) {
		file = mkstemp(path);
		saved = dup(STDERR_FILENO);
		dup2(file, STDERR_FILENO);
	}
	occ_comm_barrier(c);
	int code = occ_agree(c, &e);
	occ_comm_barrier(c);
	if (file >= 0) {
		char got[256] = "", want[64] = "";
		dup2(saved, STDERR_FILENO);
		close(saved);
		if (pread(file, got, sizeof(got) - 1, 0) < 0)
			CHECK(0, "cannot read %s", path);
		close(file);
		unlink(path);
		if (shared || c->rank == c->size / 2)
			snprintf(want, sizeof(want), "occ-train: rank %d fails\n", c->size / 2);
		CHECK(strcmp(got, want) == 0, "size %d rank %d: said '%s'", c->size, c->rank, got);
	}
	occ_comm_barrier(c);
	CHECK(code == 2 + c->size / 2 % 3, "size %d: agreed on %d", c->size, code);
}

static int body(struct occ_comm *c, void *arg)
{
	(void)arg;
	check_order(c);
	check_small(c);
	check_reduces(c);
	check_nan(c);
	check_gather(c);
	check_bcast(c);
	check_large_both_ways(c);
	check_split(c);
	check_nodes(c);
	check_agree(c);
	return c->rank;
}

static void check_self(void)
{
	struct occ_comm *c = occ_comm_open_self(1);
	float x[4] = {1, 2, 3, 4};
	struct occ_comm *s = c->ops->split(c, 3, 0);
	struct occ_traffic t = {0};
	CHECK(s && s->size == 1 && !c->ops->split(c, -1, 0), "split of one rank");
	c->traffic = &t;
	occ_comm_sum(c, x, 4, OCC_F32, NULL);
	occ_comm_max(c, x, 4, NULL);
	occ_comm_gather(c, x, (size_t[]){sizeof(x)});
	occ_comm_bcast(c, x, sizeof(x), 0);
	check_small(c);
	CHECK(x[3] == 4 && t.messages == 0 && occ_comm_scratch(c, 9, OCC_F32) == 0, "one rank");
	occ_comm_close(s);
	occ_comm_close(c);
	occ_comm_close(NULL);
}

static int run_threads(int from, int to)
{
	for (int n = from; n <= to; n++) {
		int top = occ_comm_run_threads(n, 60, body, NULL);
		CHECK(top == n - 1, "largest result of %d threads: %d", n, top);
	}
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return 1;
}

/* 1 on the rank that speaks; the others return their failures through it. */
static int run_mpi(void)
{
	struct occ_err e = {0};
	struct occ_comm *c = occ_comm_open_mpi(60, &e);
	if (!c) {
		occ_err_print(&e);
		exit(e.code);
	}
	int speaks = c->rank == 0;
	body(c, NULL);
	double failed = check_failed;
	occ_comm_sum_double(c, &failed, 1);
	check_failed = (int)failed;
	occ_comm_close(c);
	return speaks;
}

int main(int argc, char **argv)
{
	int mpi = getenv("OMPI_COMM_WORLD_SIZE") != NULL, sum = 0, n = 0;
	for (int i = 1; i < argc; i++) {
		mpi = strcmp(argv[i], "mpi") == 0 || (mpi && strcmp(argv[i], "thread") != 0);
		sum |= strcmp(argv[i], "--sum") == 0;
		n = atoi(argv[i]) > 0 ? atoi(argv[i]) : n;
	}
	check_self();
	int speaks = mpi ? run_mpi() : run_threads(n ? n : 1, n ? n : 8);
	if (!speaks)
		return check_failed > 0;
	if (sum)
		printf("checksum %016llx\n", (unsigned long long)digest);
	return check_done();
}
