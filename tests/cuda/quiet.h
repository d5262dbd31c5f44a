/* For tests that provoke refusals, which write a line each, and are silent themselves. */
#ifndef OCC_TESTS_CUDA_QUIET_H
#define OCC_TESTS_CUDA_QUIET_H

#include <fcntl.h>
#include <unistd.h>

/* Standard error goes nowhere while one lives. */
struct Quiet {
	int kept = dup(2);
	Quiet()
	{
		int nowhere = open("/dev/null", O_WRONLY);
		dup2(nowhere, 2);
		close(nowhere);
	}
	~Quiet()
	{
		dup2(kept, 2);
		close(kept);
	}
};

#endif
