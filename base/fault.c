/* The table of wanted failures is parsed once per thread; nothing is shared between ranks. */
#include "base/fault.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { MAX_FAULTS = 8, ANY_RANK = -1 };

struct fault {
	char point[32];
	int rank;
	long nth, calls;
};

static _Thread_local int loaded, nfaults;
static _Thread_local struct fault faults[MAX_FAULTS];

/* One "point:rank:nth"; returns what follows it. */
static const char *parse(const char *text, struct fault *f)
{
	char rank[16], end = 0;
	int used = 0;
	memset(f, 0, sizeof(*f));
	if (sscanf(text, "%31[^:,]:%15[0-9*]:%ld%n", f->point, rank, &f->nth, &used) != 3)
		occ_die(OCC_E_CONFIG, "OCC_FAULT: expected point:rank:nth, found '%s'", text);
	end = text[used];
	if (f->nth < 1 || (end != ',' && end != 0))
		occ_die(OCC_E_CONFIG, "OCC_FAULT: expected point:rank:nth, found '%s'", text);
	f->rank = rank[0] == '*' ? ANY_RANK : atoi(rank);
	return text + used + (end == ',');
}

static void load(void)
{
	const char *text = getenv("OCC_FAULT");
	loaded = 1;
	while (text && *text && nfaults < MAX_FAULTS)
		text = parse(text, &faults[nfaults++]);
}

int occ_fault(const char *point, int rank)
{
	int hit = 0;
	if (!loaded)
		load();
	for (int i = 0; i < nfaults; i++) {
		struct fault *f = &faults[i];
		if (strcmp(f->point, point) || (f->rank != ANY_RANK && f->rank != rank))
			continue;
		hit |= ++f->calls == f->nth;
	}
	return hit;
}
