/* Streams: nothing is lost between messages, a step that did not count leaves no trace, and what a
 * stream keeps in memory. Every codec, every device. CUDA: 1 */
#include "tests/codec_kit.h"

enum { N = 12, M = 20, NM = N * M };

static const size_t nm_bytes = NM * sizeof(float);

/* A stream and where its messages lie. */
struct end {
	struct occ_stream s;
	struct occ_device *d;
	void *d_x, *d_wire, *d_y; /* d_x, d_y of the stream's type; d_y is for support too */
};

static void open_end(struct end *e, struct occ_device *d, const struct kit_row *r, int feedback,
		     int undo)
{
	struct occ_stream_conf conf = {.knobs = r->knobs, .feedback = feedback, .undo = undo};
	conf.key = 5;
	conf.id = 6;
	e->d = d;
	occ_stream_init(&e->s, d, &conf, N, M, r->type);
	e->d_x = d->ops->alloc(d, nm_bytes);
	e->d_y = d->ops->alloc(d, nm_bytes);
	e->d_wire = d->ops->alloc(d, occ_codec_bound(&r->knobs, N, M, r->type));
}

static void close_end(struct end *e)
{
	occ_stream_release(&e->s);
	e->d->ops->free(e->d, e->d_x);
	e->d->ops->free(e->d, e->d_y);
	e->d->ops->free(e->d, e->d_wire);
}

static enum occ_type type_of(const struct end *e)
{
	return e->s.codec.type;
}

/* Message number `key`, already rounded to the stream's type. */
static float *message(const struct end *e, uint64_t key)
{
	float *x = kit_normals(NM, key);
	for (int i = 0; i < NM; i++) /* rows of unlike size */
		x[i] *= (float)(1 + i / M) / 4;
	kit_round(NM, x, type_of(e));
	return x;
}

static struct kit_wire encode(struct end *e, const float *x)
{
	void *d_x = kit_put_type(e->d, x, NM, type_of(e));
	struct kit_wire w = {NULL, occ_stream_encode(&e->s, d_x, e->d_wire)};
	w.at = kit_get(e->d, e->d_wire, w.bytes);
	e->d->ops->free(e->d, d_x);
	return w;
}

static struct kit_wire encode_message(struct end *e, uint64_t key)
{
	float *x = message(e, key);
	struct kit_wire w = encode(e, x);
	occ_free(x);
	return w;
}

/* One value that is no number among usual ones. */
static void encode_bad(struct end *e, float bad)
{
	float *x = message(e, 999);
	x[17] = bad;
	struct kit_wire w = encode(e, x);
	occ_free(w.at);
	occ_free(x);
}

static int same_wire(const struct kit_wire *a, const struct kit_wire *b)
{
	return a->bytes == b->bytes && !memcmp(a->at, b->at, a->bytes);
}

/* ---- What a stream remembers, as bits. ---- */

struct memory {
	uint64_t e, state;
	int64_t calls;
};

static uint64_t bits(const struct end *e, const float *d_x, int64_t n)
{
	if (!d_x)
		return 0;
	float *x = kit_get(e->d, d_x, (size_t)n * sizeof(*x));
	uint64_t sum = kit_fnv(x, (size_t)n * sizeof(*x));
	occ_free(x);
	return sum;
}

static struct memory memory(const struct end *e)
{
	const struct occ_codec *c = &e->s.codec;
	return (struct memory){bits(e, e->s.d_e, NM), bits(e, c->d_state, occ_codec_state(c)),
			       c->calls};
}

static int same(struct memory a, struct memory b)
{
	return a.e == b.e && a.state == b.state && a.calls == b.calls;
}

/* ---- Conservation. ---- */

/* 200 messages: what came across and what is kept add up to what went in, each time and in all; and
 * no residual is larger than what was to be sent. */
static void check_conserves(struct occ_device *d, const struct kit_row *r)
{
	static double in[NM], out[NM];
	struct end e;
	float *before = kit_floats(NM), *y = kit_floats(NM);
	memset(in, 0, sizeof(in));
	memset(out, 0, sizeof(out));
	open_end(&e, d, r, 1, 0);
	int half = e.s.codec.type == OCC_BF16;
	for (uint64_t k = 0; k < 200; k++) {
		float *x = message(&e, k);
		struct kit_wire w = encode(&e, x);
		kit_decode(&e.s.codec, &w, OCC_SET, y);
		for (int i = 0; i < NM && half; i++) /* what the receiver makes of it */
			y[i] = occ_bf16_to_f32(occ_f32_to_bf16(y[i]));
		float *after = kit_get(d, e.s.d_e, nm_bytes);
		for (int i = 0; i < NM; i++) {
			in[i] += (double)x[i];
			out[i] += (double)y[i];
			before[i] += x[i]; /* what the codec saw */
			y[i] += after[i];
		}
		double seen = kit_norm(NM, before), lost = kit_norm(NM, after);
		CHECK(kit_distance(NM, before, y) <= 1e-6 * seen, "%s, %s, message %d: %g of %g",
		      d->ops->name, r->what, (int)k, kit_distance(NM, before, y), seen);
		/* the receiver's rounding, at most 2^-9 of what came across, stays too */
		CHECK(lost <= (1 + (half ? 0x1p-8 : 1e-6)) * seen,
		      "%s, %s, message %d: %g left of %g", d->ops->name, r->what, (int)k, lost,
		      seen);
		CHECK(fabs(occ_stream_residual2(&e.s) - lost * lost) <= 1e-9 * lost * lost,
		      "%s, %s: residual", d->ops->name, r->what);
		memcpy(before, after, nm_bytes);
		occ_free(w.at);
		occ_free(after);
		occ_free(x);
	}
	double miss = 0, size = 0;
	for (int i = 0; i < NM; i++) {
		miss += pow(in[i] - out[i] - (double)before[i], 2);
		size += in[i] * in[i];
	}
	CHECK(sqrt(miss) <= 1e-5 * sqrt(size), "%s, %s: %g of %g are lost", d->ops->name, r->what,
	      sqrt(miss), sqrt(size));
	close_end(&e);
	occ_free(before);
	occ_free(y);
}

/* What occ_stream_decode gives is the codec's matrix in the stream's type; a stream that only
 * decodes keeps nothing. */
static void check_decodes(struct occ_device *d, const struct kit_row *r)
{
	struct occ_stream_conf conf = {.knobs = r->knobs, .feedback = 1, .decodes = 1, .undo = 1};
	struct occ_stream to;
	struct end e;
	float *y = kit_floats(NM);
	int64_t words = NM * (int64_t)occ_type_size(r->type) / 4;
	open_end(&e, d, r, 1, 0);
	occ_stream_init(&to, d, &conf, N, M, r->type);
	CHECK(!to.d_e && !to.d_e0 && !to.d_state0 && !to.codec.d_state && !to.feedback && !to.undo,
	      "%s, %s: a stream that decodes keeps something", d->ops->name, r->what);
	for (uint64_t k = 0; k < 3; k++) {
		struct kit_wire w = encode_message(&e, k);
		struct memory was = memory(&e);
		kit_decode(&e.s.codec, &w, OCC_SET, y);
		occ_stream_decode(&to, e.d_wire, w.bytes, e.d_y);
		void *d_want = kit_put_type(d, y, NM, r->type);
		CHECK(bits(&e, d_want, words) == bits(&e, e.d_y, words), "%s, %s: decoded",
		      d->ops->name, r->what);
		occ_stream_decode(&e.s, e.d_wire, w.bytes, e.d_y);
		CHECK(bits(&e, d_want, words) == bits(&e, e.d_y, words), "%s, %s: decoded",
		      d->ops->name, r->what);
		CHECK(same(was, memory(&e)), "%s, %s: decoding has changed a stream", d->ops->name,
		      r->what);
		d->ops->free(d, d_want);
		occ_free(w.at);
	}
	occ_stream_end(&to, 0);
	occ_stream_release(&to);
	close_end(&e);
	occ_free(y);
}

/* ---- Memory. ---- */

static int64_t grows(struct occ_device *d, const struct kit_row *r, int feedback, int undo)
{
	struct end e;
	int64_t before = occ_mem_live();
	open_end(&e, d, r, feedback, undo);
	int64_t held = occ_mem_live() - before;
	CHECK(!e.s.d_e == !feedback && !e.s.d_e0 == !(feedback && undo),
	      "%s, %s: feedback %d undo %d", d->ops->name, r->what, feedback, undo);
	close_end(&e);
	CHECK(occ_mem_live() == before, "%s, %s: not freed", d->ops->name, r->what);
	return held;
}

static void check_memory(struct occ_device *d, const struct kit_row *r)
{
	struct occ_codec c = {.ops = r->knobs.codec, .knobs = r->knobs, .n = N, .m = M};
	int64_t state = occ_codec_state(&c) * (int64_t)sizeof(float);
	int64_t plain = grows(d, r, 0, 0), fed = grows(d, r, 1, 0);
	int64_t undone = grows(d, r, 0, 1), both = grows(d, r, 1, 1);
	int64_t half = r->type == OCC_BF16 ? NM * 2 : 0; /* what the receiver gets */
	CHECK(fed - plain == NM * 4 + half, "%s, %s: E takes %lld bytes", d->ops->name, r->what,
	      (long long)(fed - plain));
	CHECK(undone - plain == state && both - fed == NM * 4 + state,
	      "%s, %s: copies take %lld and %lld bytes", d->ops->name, r->what,
	      (long long)(undone - plain), (long long)(both - fed));
}

/* Without feedback a message is the codec's and nothing else. */
static void check_plain(struct occ_device *d, const struct kit_row *r)
{
	struct end e;
	struct occ_codec c;
	open_end(&e, d, r, 0, 0);
	occ_codec_init(&c, d, &r->knobs, N, M, r->type);
	occ_codec_start(&c, 5, 6);
	for (uint64_t k = 0; k < 5; k++) {
		float *x = message(&e, k);
		struct kit_wire a = encode(&e, x), b = kit_encode(&c, x, 0);
		CHECK(same_wire(&a, &b), "%s, %s: message %d", d->ops->name, r->what, (int)k);
		occ_free(a.at);
		occ_free(b.at);
		occ_free(x);
	}
	CHECK(occ_stream_residual2(&e.s) == 0, "%s, %s: residual", d->ops->name, r->what);
	occ_codec_release(&c);
	close_end(&e);
}

/* ---- Steps that do not count. ---- */

/* The next messages of both are the same. */
static void check_same_future(struct end *a, struct end *b, uint64_t from, const char *what)
{
	for (uint64_t k = from; k < from + 3; k++) {
		struct kit_wire x = encode_message(a, k), y = encode_message(b, k);
		CHECK(same_wire(&x, &y) && same(memory(a), memory(b)), "%s, %s: message %d",
		      a->d->ops->name, what, (int)k);
		occ_free(x.at);
		occ_free(y.at);
	}
}

static void check_undo(struct occ_device *d, const struct kit_row *r, int feedback)
{
	const float bad[] = {1, NAN, INFINITY};
	struct end e, twin;
	open_end(&e, d, r, feedback, 1);
	open_end(&twin, d, r, feedback, 1);
	for (int step = 0; step < 6; step++) {
		struct memory was = memory(&e);
		for (int i = 0; i <= step; i++)
			encode_bad(&e, bad[step % 3]);
		occ_stream_end(&e.s, 0);
		CHECK(same(was, memory(&e)), "%s, %s: step %d is not undone", d->ops->name, r->what,
		      step);
		occ_stream_end(&e.s, 0); /* of a step without messages */
		CHECK(same(was, memory(&e)), "%s, %s: an empty step", d->ops->name, r->what);
		check_same_future(&e, &twin, (uint64_t)(3 * step), r->what);
		occ_stream_end(&e.s, 1);
		occ_stream_end(&twin.s, 1);
	}
	close_end(&e);
	close_end(&twin);
}

/* Evaluation: messages of a frozen stream leave no trace, not even in a step that is undone. */
static void check_frozen(struct occ_device *d, const struct kit_row *r)
{
	struct end e, twin;
	open_end(&e, d, r, 1, 1);
	open_end(&twin, d, r, 1, 1);
	check_same_future(&e, &twin, 0, r->what);
	occ_stream_end(&e.s, 1);
	occ_stream_end(&twin.s, 1);
	struct memory was = memory(&e);
	e.s.frozen = 1;
	for (uint64_t k = 0; k < 4; k++) {
		struct kit_wire w = encode_message(&e, 50 + k);
		occ_free(w.at);
		CHECK(same(was, memory(&e)), "%s, %s: frozen message %d", d->ops->name, r->what,
		      (int)k);
	}
	CHECK(!e.s.touched, "%s, %s: frozen and touched", d->ops->name, r->what);
	occ_stream_end(&e.s, 0);
	e.s.frozen = 0;
	check_same_future(&e, &twin, 3, r->what);
	close_end(&e);
	close_end(&twin);
}

/* ---- Messages that follow a support. ---- */

static void check_follow(struct occ_device *d, const struct kit_row *r)
{
	struct end act, grad;
	if (!r->knobs.codec->follow_encode)
		return;
	float *before = kit_floats(NM);
	open_end(&act, d, r, 1, 1);
	open_end(&grad, d, r, 1, 1);
	void *d_values = d->ops->alloc(d, r->knobs.codec->follow_bound(&grad.s.codec));
	for (uint64_t k = 0; k < 20; k++) {
		struct kit_wire w = encode_message(&act, k);
		float *x = message(&grad, 100 + k), *y = kit_floats(NM);
		void *d_x = kit_put_type(d, x, NM, r->type);
		size_t bytes = occ_stream_follow(&grad.s, act.d_wire, d_x, d_values);
		CHECK(bytes == r->knobs.codec->follow_bound(&grad.s.codec), "%s: %zu bytes",
		      r->what, bytes);
		void *d_y = kit_put(d, before, nm_bytes);
		r->knobs.codec->follow_decode(&grad.s.codec, act.d_wire, d_values, OCC_SET, d_y);
		d->ops->get(d, y, d_y, nm_bytes);
		float *after = kit_get(d, grad.s.d_e, nm_bytes);
		for (int i = 0; i < NM; i++) {
			before[i] += x[i];
			y[i] += after[i];
		}
		CHECK(kit_distance(NM, before, y) <= 1e-6 * kit_norm(NM, before), "%s, %s: %d",
		      d->ops->name, r->what, (int)k);
		memcpy(before, after, nm_bytes);
		d->ops->free(d, d_x);
		d->ops->free(d, d_y);
		occ_free(after);
		occ_free(w.at);
		occ_free(x);
		occ_free(y);
	}
	d->ops->free(d, d_values);
	occ_free(before);
	close_end(&act);
	close_end(&grad);
}

/* ---- Sums over ranks. ---- */

enum { RANKS = 3 };

/* Rounds of a sum, parts added on the host. */
static void exchange(struct end *e, const float *const *d_in)
{
	struct occ_device *d = e[0].d;
	const struct occ_codec_ops *c = e[0].s.codec.ops;
	int rounds = c->rounds(&e[0].s.codec);
	for (int k = 0; k < rounds; k++) {
		int64_t n = c->part(&e[0].s.codec, k);
		size_t bytes = (size_t)n * sizeof(float);
		float *sum = kit_floats(n), *d_part = d->ops->alloc(d, bytes);
		for (int i = 0; i < RANKS; i++) {
			c->offer(&e[i].s.codec, k, d_in[i], d_part);
			if (k == rounds - 1)
				occ_stream_sum_own(&e[i].s);
			float *part = kit_get(d, d_part, bytes);
			for (int64_t j = 0; j < n; j++)
				sum[j] += part[j];
			occ_free(part);
		}
		d->ops->put(d, d_part, sum, bytes);
		d->ops->sync(d);
		for (int i = 0; i < RANKS; i++)
			c->take(&e[i].s.codec, k, d_part);
		d->ops->free(d, d_part);
		occ_free(sum);
	}
}

/* All ranks' E added up. */
static void residuals(struct end *e, float *to)
{
	memset(to, 0, nm_bytes);
	for (int i = 0; i < RANKS; i++) {
		float *x = kit_get(e[i].d, e[i].s.d_e, nm_bytes);
		for (int j = 0; j < NM; j++)
			to[j] += x[j];
		occ_free(x);
	}
}

/* One sum of messages; seen: all X and E before, got: the result and all E after. */
static void sum_once(struct end *e, uint64_t key, float *seen, float *got)
{
	struct occ_device *d = e[0].d;
	const float *d_in[RANKS];
	residuals(e, seen);
	for (int i = 0; i < RANKS; i++) {
		float *x = message(&e[i], RANKS * key + (uint64_t)i);
		d->ops->put(d, e[i].d_x, x, nm_bytes);
		d->ops->sync(d);
		d_in[i] = occ_stream_sum_begin(&e[i].s, e[i].d_x);
		for (int j = 0; j < NM; j++)
			seen[j] += x[j];
		occ_free(x);
	}
	exchange(e, d_in);
	residuals(e, got);
	for (int i = 0; i < RANKS; i++)
		occ_stream_sum_finish(&e[i].s, e[i].d_x);
	float *y = kit_get(d, e[0].d_x, nm_bytes);
	for (int j = 0; j < NM; j++)
		got[j] += y[j];
	for (int i = 1; i < RANKS; i++)
		CHECK(bits(&e[i], e[i].d_x, NM) == bits(&e[0], e[0].d_x, NM), "rank %d", i);
	occ_free(y);
}

static void check_sum(struct occ_device *d, const struct kit_row *r)
{
	struct end e[RANKS];
	if (!r->knobs.codec->rounds || r->type != OCC_F32)
		return;
	float *seen = kit_floats(NM), *got = kit_floats(NM);
	for (int i = 0; i < RANKS; i++)
		open_end(&e[i], d, r, 1, 1);
	for (uint64_t k = 0; k < 40; k++) {
		struct memory was[RANKS];
		for (int i = 0; i < RANKS; i++)
			was[i] = memory(&e[i]);
		sum_once(e, k, seen, got);
		CHECK(kit_distance(NM, seen, got) <= 3e-6 * kit_norm(NM, seen),
		      "%s, %s, sum %d: %g", d->ops->name, r->what, (int)k,
		      kit_distance(NM, seen, got));
		for (int i = 0; i < RANKS; i++) {
			CHECK(e[i].s.codec.calls == was[i].calls + 1, "%s, %s: calls", d->ops->name,
			      r->what);
			occ_stream_end(&e[i].s, k % 4 != 3);
			CHECK(k % 4 != 3 || same(was[i], memory(&e[i])), "%s, %s: sum %d undone",
			      d->ops->name, r->what, (int)k);
		}
	}
	for (int i = 0; i < RANKS; i++)
		close_end(&e[i]);
	occ_free(seen);
	occ_free(got);
}

/* ---- What is measured. ---- */

static void check_measure(struct occ_device *d, const struct kit_row *r)
{
	struct end e;
	double want = 0;
	open_end(&e, d, r, 1, 1);
	e.s.measure = 1;
	for (uint64_t k = 0; k < 5; k++) {
		float *seen = kit_get(d, e.s.d_e, nm_bytes), *x = message(&e, k);
		for (int i = 0; i < NM; i++)
			seen[i] += x[i];
		want += pow(kit_norm(NM, seen), 2);
		struct kit_wire w = encode(&e, x);
		occ_free(w.at);
		occ_free(seen);
		occ_free(x);
	}
	occ_stream_settle(&e.s);
	CHECK(e.s.x_count == 5 && fabs(e.s.x_norm2 - want) <= 1e-6 * want, "%s, %s: %g, want %g",
	      d->ops->name, r->what, e.s.x_norm2, want);
	close_end(&e);
}

/* What is dropped is a part of the residual before each message, and nothing else is lost. */
static void check_forgets(struct occ_device *d)
{
	static const float parts[] = {0, 0.25f, 1};
	for (int p = 0; p < 3; p++) {
		struct occ_stream_conf conf = {.feedback = 1, .forget = parts[p], .key = 1};
		struct occ_stream s;
		double held[NM] = {0};
		conf.knobs = (struct occ_knobs){.codec = &occ_codec_topk, .fraction = 0.1};
		occ_stream_init(&s, d, &conf, N, M, OCC_F32);
		float *d_y = d->ops->alloc(d, nm_bytes);
		void *d_wire = d->ops->alloc(d, s.codec.ops->bound(&s.codec));
		for (uint32_t k = 0; k < 30; k++) {
			double wrong = 0;
			float *d_x = d->ops->alloc(d, nm_bytes);
			d->ops->draw(d, NM, 5, k, d_x);
			size_t bytes = occ_stream_encode(&s, d_x, d_wire);
			occ_stream_decode(&s, d_wire, bytes, d_y);
			float *x = kit_get(d, d_x, nm_bytes), *y = kit_get(d, d_y, nm_bytes);
			float *e = kit_get(d, s.d_e, nm_bytes);
			for (int i = 0; i < NM; i++) {
				held[i] = (double)(1 - parts[p]) * held[i] + (double)x[i];
				held[i] -= (double)y[i];
				wrong = fmax(wrong, fabs(held[i] - (double)e[i]));
			}
			CHECK(wrong < 1e-5, "%s, forget %g, message %d: off by %g", d->ops->name,
			      (double)parts[p], (int)k, wrong);
			occ_free(x);
			occ_free(y);
			occ_free(e);
			d->ops->free(d, d_x);
		}
		d->ops->free(d, d_wire);
		d->ops->free(d, d_y);
		occ_stream_release(&s);
	}
}

static void check_on(const char *name)
{
	for (int i = 0; i < KIT_ROWS; i++) {
		const struct kit_row *r = &kit_rows[i];
		struct occ_device *d = kit_open(name, r->type);
		check_conserves(d, r);
		check_decodes(d, r);
		if (d->ops->host_visible)
			check_memory(d, r);
		check_plain(d, r);
		check_undo(d, r, 0);
		check_undo(d, r, 1);
		if (!r->knobs.codec->state)
			check_frozen(d, r);
		check_follow(d, r);
		check_sum(d, r);
		check_measure(d, r);
		if (r->type == OCC_F32 && i == 0)
			check_forgets(d);
		occ_device_close(d);
	}
}

int main(void)
{
	for (int i = 0; i < 3; i++)
		if (kit_takes(i))
			check_on(kit_device(i));
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}
