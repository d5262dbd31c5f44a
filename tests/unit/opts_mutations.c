/* The fuzz target of the options engine over random mutations of a few texts, the same in each run.
 */
#include "tests/check.h"

#include "tests/fuzz/opts.c"

static uint64_t state = 1;

static uint64_t draw(uint64_t below)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (state >> 33) % below;
}

/* A few bytes of a text changed, doubled or dropped; often to a byte that means something in JSON.
 */
static size_t mutate(uint8_t *x, size_t n, size_t cap)
{
	static const char telling[] = "{}[]\",:.=\\u0d8e+-9 \n\x80\xff";
	for (uint64_t k = 1 + draw(4); k-- > 0 && n > 1;) {
		size_t at = 1 + draw(n - 1);
		uint8_t byte =
			draw(2) ? (uint8_t)telling[draw(sizeof(telling) - 1)] : (uint8_t)draw(256);
		switch (draw(3)) {
		case 0:
			x[at] = byte;
			break;
		case 1:
			memmove(x + at, x + at + 1, --n - at);
			break;
		default:
			if (n < cap) {
				memmove(x + at + 1, x + at, n++ - at);
				x[at] = byte;
			}
		}
	}
	return n;
}

/* The target aborts on a fault. */
static int mutations(int rounds)
{
	static const char *const seeds[] = {
		" {\"model\": {\"layers\": 2, \"dropout\": 1e-1}, \"log\": {\"dir\": "
		"\"\\ud83d\\ude00\\n\"}}",
		" {\"data\": {\"train\": [\"a\", \"\"], \"shuffle\": false}, \"log\": "
		"{\"trace_iters\": [1, 2]}}",
		" {\"compress\": {\"data_parallel\": {\"stages\": 0.5}, \"embedding\": {\"fused\": "
		"true}}}",
		"=optimizer.lr=3.5e-4",
		"=log.dir=\"a b\"",
		"=compress.data_parallel.stages=all",
		"=data.train=[\"x\"]",
		"=train.precision=bf16",
	};
	for (int i = 0; i < rounds; i++) {
		uint8_t x[256];
		const char *seed = seeds[draw(sizeof(seeds) / sizeof(seeds[0]))];
		size_t n = strlen(seed);
		memcpy(x, seed, n);
		LLVMFuzzerTestOneInput(x, mutate(x, n, sizeof(x)));
	}
	return rounds;
}

int main(void)
{
	CHECK(mutations(20000) == 20000, "the target aborts on a fault");
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}
