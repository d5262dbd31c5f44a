/* Shared memory holds garbage when a block begins: NaN. The static variables of all kernels lie in
 * one section, and filling it for each block would cost more than many blocks do; so what a kernel
 * writes to is learned, piece by piece, and only that is filled again. */
#include "tests/cudaemu/emu_block.h"

#include <unordered_map>

namespace occ_emu
{
namespace
{
enum { PIECE = 256 };
typedef long long wide __attribute__((vector_size(16), aligned(1), may_alias));

struct Section {
	bool filled = false;
	std::vector<char *> written; /* pieces that the kernel has been seen to write to */
	bool learned = false;
};

/* By the place of the section, and by kernel. */
std::unordered_map<const void *, Section> &known = *new std::unordered_map<const void *, Section>;

/* These do not go through memset() and the like: ASan has its red zones in the section. */
__attribute__((no_sanitize("address"), optimize("no-tree-loop-distribute-patterns"))) void fill(
	char *p, char *end)
{
	for (; end - p >= 16; p += 16)
		*(wide *)p = (wide){-1, -1};
	for (; p < end; p++)
		*(volatile char *)p = -1;
}

__attribute__((no_sanitize("address"))) bool written(const char *p, const char *end)
{
	wide all = {-1, -1};
	for (; end - p >= 16; p += 16)
		all &= *(const wide *)p;
	signed char rest = -1;
	for (; p < end; p++)
		rest &= (signed char)*p;
	return (all[0] & all[1]) != -1 || rest != -1;
}

char *piece_end(char *p, char *end)
{
	return end - p < PIECE ? end : p + PIECE;
}

void fill_pieces(const Section &s, char *end)
{
	for (char *p : s.written)
		fill(p, piece_end(p, end));
}

/* Finds what is new, and leaves all of the section filled. */
void learn(Section &s, const Kernel &k)
{
	fill_pieces(s, k.shared_end);
	for (char *p = k.shared; p < k.shared_end; p += PIECE) {
		if (!written(p, piece_end(p, k.shared_end)))
			continue;
		fill(p, piece_end(p, k.shared_end));
		s.written.push_back(p);
	}
}
} // namespace

void shared_memory_of_block(const Kernel &k, size_t dynamic_bytes)
{
	fill((char *)dynamic_shared, (char *)dynamic_shared + dynamic_bytes);
	if (k.shared == k.shared_end)
		return;
	Section &whole = known[k.shared], &s = known[&k];
	if (!whole.filled)
		fill(k.shared, k.shared_end);
	whole.filled = true;
	if (s.learned)
		fill_pieces(s, k.shared_end);
	else
		learn(s, k);
}

void shared_memory_after(const Kernel &k)
{
	Section &s = known[&k];
	learn(s, k);
	s.learned = true;
}
} // namespace occ_emu
