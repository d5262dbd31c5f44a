/* Tests whose cases end their process when all is well: each runs in a child, and what it wrote is
 * looked through for a word. */
#ifndef OCC_TESTS_CUDA_CHILD_H
#define OCC_TESTS_CUDA_CHILD_H

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "tests/check.h"

struct Case {
	const char *name;
	void (*run)();
	const char *environment; /* "A=1 B=2" */
	const char *word;        /* "": the child ends well and says nothing */
};

/* In a child: says what is wrong and ends. */
#define REQUIRE(condition)                                                                         \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "line %d: wrong: %s\n", __LINE__, #condition);             \
			_exit(3);                                                                  \
		}                                                                                  \
	} while (0)

struct Outcome {
	bool ended_well;
	std::string text;
};

static inline void become(const Case &c, const std::string &environment)
{
	std::istringstream words(environment);
	std::string word;
	char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
	path[n < 0 ? 0 : n] = 0;
	while (words >> word)
		setenv(word.substr(0, word.find('=')).c_str(), word.c_str() + word.find('=') + 1,
		       1);
	execl(path, path, c.name, (char *)nullptr);
	_exit(127);
}

static inline Outcome run_child(const Case &c, const std::string &more)
{
	int ends[2], status = 0;
	char buffer[4096];
	Outcome out = {false, ""};
	ssize_t n;
	if (pipe(ends))
		return out;
	pid_t child = fork();
	if (child == 0) {
		dup2(ends[1], 1);
		dup2(ends[1], 2);
		close(ends[0]);
		become(c, std::string(c.environment) + " " + more);
	}
	close(ends[1]);
	while ((n = read(ends[0], buffer, sizeof(buffer))) > 0)
		out.text.append(buffer, (size_t)n);
	close(ends[0]);
	waitpid(child, &status, 0);
	out.ended_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
	return out;
}

static inline void check_case(const Case &c, const std::string &more)
{
	Outcome out = run_child(c, more);
	if (*c.word)
		CHECK(out.text.find(c.word) != std::string::npos, "%s %s: no \"%s\" in: %s", c.name,
		      more.c_str(), c.word, out.text.c_str());
	else
		CHECK(out.ended_well, "%s %s: %s", c.name, more.c_str(), out.text.c_str());
}

/* In a child: runs the case that the argument names. */
static inline void run_if_child(int argc, char **argv, const std::vector<Case> &cases)
{
	if (argc < 2)
		return;
	for (const Case &c : cases) {
		if (!strcmp(argv[1], c.name)) {
			c.run();
			exit(0);
		}
	}
	fprintf(stderr, "no case %s\n", argv[1]);
	_exit(127);
}

#endif
