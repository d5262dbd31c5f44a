/* Work that repeats gives what it gives when it is enqueued by itself, whatever its memory holds by
 * then; what a device recorded is launched in its place, made again where scratch has moved, and
 * given up where it cannot be made. CUDA: 1 */
#include <stdlib.h>
#include <string.h>

#include "base/device.h"
#include "base/mem.h"
#include "tests/check.h"

enum { R = 70, C = 48, N = R * C, LARGE = 700 };

/* y = gelu(x w) and its column sums: products, kernels, scratch. */
struct job {
	struct occ_device *d;
	void *d_x, *d_w, *d_h, *d_y, *d_large;
	float *d_sums;
	int64_t rows; /* of the sums; more than before: scratch grows */
	int waits;    /* against the contract */
	int calls;
};

static void work(void *arg)
{
	struct job *j = arg;
	const struct occ_device_ops *o = j->d->ops;
	struct occ_gemm g = {
		.m = R, .n = C, .k = C, .lda = C, .ldb = C, .ldc = C, .c_type = j->d->type};
	j->calls++;
	o->gemm(j->d, &g, j->d_x, j->d_w, NULL, j->d_h);
	if (j->waits)
		o->sync(j->d);
	o->gelu_forward(j->d, N, j->d_h, j->d_y);
	o->zero(j->d, j->d_sums, C * sizeof(float));
	o->bias_backward(j->d, R, C, j->d_y, j->d_sums);
	if (j->rows)
		o->bias_backward(j->d, j->rows, C, j->d_large, j->d_sums);
}

static void put_drawn(struct job *j, void *d_x, int64_t n, uint32_t id)
{
	float *x = occ_alloc((size_t)n, sizeof(*x));
	for (int64_t i = 0; i < n; i++) {
		x[i] = (float)occ_rng_normal(7, id, (uint64_t)i);
		if (j->d->type == OCC_BF16)
			((uint16_t *)x)[i] = occ_f32_to_bf16(x[i]);
	}
	j->d->ops->put(j->d, d_x, x, (size_t)n * occ_type_size(j->d->type));
	j->d->ops->sync(j->d);
	occ_free(x);
}

static void begin(struct job *j, struct occ_device *d)
{
	size_t t = occ_type_size(d->type);
	*j = (struct job){.d = d};
	j->d_x = j->d->ops->alloc(j->d, N * t);
	j->d_w = j->d->ops->alloc(j->d, C * C * t);
	j->d_h = j->d->ops->alloc(j->d, N * t);
	j->d_y = j->d->ops->alloc(j->d, N * t);
	j->d_large = j->d->ops->alloc(j->d, LARGE * C * t);
	j->d_sums = j->d->ops->alloc(j->d, C * sizeof(float));
	put_drawn(j, j->d_w, C * C, 1);
	put_drawn(j, j->d_large, LARGE * C, 2);
}

static void end(struct job *j, void *r)
{
	void *all[] = {j->d_x, j->d_w, j->d_h, j->d_y, j->d_large, j->d_sums};
	j->d->ops->repeat_close(j->d, r);
	for (int i = 0; i < 6; i++)
		j->d->ops->free(j->d, all[i]);
}

struct result {
	char y[N * sizeof(float)];
	float sums[C];
};

static void fetch(struct job *j, struct result *out)
{
	memset(out, 0, sizeof(*out));
	j->d->ops->get(j->d, out->y, j->d_y, N * occ_type_size(j->d->type));
	j->d->ops->get(j->d, out->sums, j->d_sums, sizeof(out->sums));
}

/* Once more with new values of x; 1: the work was called for it. */
static int once(struct job *j, void *r, uint32_t id)
{
	static struct result got, want;
	int before = j->calls;
	put_drawn(j, j->d_x, N, id);
	j->d->ops->repeat(j->d, r, work, j);
	int called = j->calls - before;
	fetch(j, &got);
	j->waits = 0;
	work(j);
	fetch(j, &want);
	CHECK(!memcmp(&got, &want, sizeof(got)), "%s, type %d, values %u", j->d->ops->name,
	      j->d->type, id);
	return called;
}

/* Before round 4 another's work has needed more scratch (grows: its rows), or the queue is another
 * one. `pattern`: which rounds call the work where it is recorded: as it comes, to record it, then
 * no more. */
static void rounds(struct occ_device *d, int64_t grows, enum occ_queue then, const char *pattern)
{
	struct job j;
	begin(&j, d);
	void *r = d->ops->repeat_open(d);
	int records = !strcmp(d->ops->name, "cuda");
	CHECK((r != NULL) == records, "%s", d->ops->name);
	for (uint32_t i = 0; pattern[i]; i++) {
		if (i == 4 && grows)
			d->ops->bias_backward(d, grows, C, j.d_large, j.d_sums);
		if (i == 4)
			d->ops->queue(d, then);
		int called = once(&j, r, 10 + i);
		CHECK(called == (records ? pattern[i] - '0' : 1), "%s: round %u: %d calls",
		      d->ops->name, i, called);
	}
	end(&j, r);
	d->ops->queue(d, OCC_COMPUTE);
}

/* Work that breaks the contract when it is recorded: nothing of the recording is executed. */
static void broken(struct occ_device *d, int64_t rows, int waits)
{
	struct job j;
	begin(&j, d);
	void *r = d->ops->repeat_open(d);
	for (uint32_t i = 0; i < 4; i++) {
		j.rows = i == 1 ? rows : 0;
		j.waits = i == 1 ? waits : 0;
		int called = once(&j, r, 20 + i);
		CHECK(!r || called == (i == 1 ? 2 : 1), "%s: round %u: %d calls", d->ops->name, i,
		      called);
	}
	end(&j, r);
}

static void device(const char *name, enum occ_type type)
{
	struct occ_err e = {0};
	struct occ_device *d = occ_device_open(name, type, 1, &e);
	struct job j;
	occ_check(d, "%s", e.text);
	setenv("OCC_GRAPHS", "off", 1);
	CHECK(!d->ops->repeat_open(d), "%s: recorded without being asked for", name);
	setenv("OCC_GRAPHS", "on", 1);
	rounds(d, 0, OCC_COMPUTE, "11000000");
	rounds(d, LARGE / 2, OCC_COMPUTE, "11001100");
	rounds(d, 0, OCC_DATA, "11001100");
	broken(d, LARGE, 0);
	broken(d, 0, 1);
	begin(&j, d); /* without a record */
	CHECK(once(&j, NULL, 30) == 1 && once(&j, NULL, 31) == 1, "%s", name);
	end(&j, NULL);
	occ_device_close(d);
}

int main(void)
{
	static const char *const host[] = {"ref", "cpu", "strict"};
	const char *only = check_device(NULL);
	for (int i = 0; i < (only ? 1 : 3); i++) {
		device(only ? only : host[i], OCC_F32);
		device(only ? only : host[i], OCC_BF16);
	}
	return check_done();
}
