/* `occ-train tokenize`: texts to one llm.c token file. */
#include "trainer/tokenizer.h"

int occ_tokenize_files(const char *vocab, const char *out, char *const *texts, int n,
		       struct occ_err *e)
{
	(void)vocab, (void)out, (void)texts, (void)n;
	return occ_fail(e, OCC_E_CONFIG, "tokenize is not built yet");
}
