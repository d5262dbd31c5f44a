/* Linked into builds with the address sanitizer only. Open MPI unloads its plugins before
 * LeakSanitizer looks, and what has been unloaded cannot be named by scripts/lsan.supp: so nothing
 * is unloaded. */
#include <dlfcn.h>

int dlclose(void *handle)
{
	(void)handle;
	return 0;
}
