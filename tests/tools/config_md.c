/* Prints docs/config.md from the table of options (make docs); lint compares it with the file. */
#include "trainer/config.h"

int main(void)
{
	occ_opts_markdown(&occ_config_opts, stdout);
	return 0;
}
