/* Looks into JSON, for scripts.
 *
 *   json FILE PATH KEY...   a line for each element of the array at PATH (one line, if what is
 * there is no array): the values of the keys, between tabs; "-": there is none
 *
 * A PATH or KEY is names and positions between slashes ("time/tail/total_ms", "ladder/0/name"); "."
 * is the whole. Fails if the file is not one whole JSON value, or if nothing is at PATH. */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *slurp(const char *path)
{
	FILE *f = fopen(path, "r");
	char *text = NULL;
	size_t bytes = 0;
	if (!f || getdelim(&text, &bytes, EOF, f) <= 0) {
		fprintf(stderr, "json: %s: cannot be read, or is empty\n", path);
		exit(1);
	}
	fclose(f);
	return text;
}

static const cJSON *follow(const cJSON *at, const char *path)
{
	char name[256];
	while (at && *path && strcmp(path, ".") != 0) {
		size_t n = strcspn(path, "/");
		snprintf(name, sizeof(name), "%.*s", (int)n, path);
		at = cJSON_IsArray(at) ? cJSON_GetArrayItem(at, atoi(name))
				       : cJSON_GetObjectItemCaseSensitive(at, name);
		path += n + (path[n] == '/');
	}
	return at;
}

static void print_value(const cJSON *v)
{
	if (!v)
		putchar('-');
	else if (cJSON_IsNumber(v))
		printf("%.17g", v->valuedouble);
	else if (cJSON_IsString(v))
		fputs(v->valuestring, stdout);
	else if (cJSON_IsArray(v))
		printf("%d values", cJSON_GetArraySize(v));
	else
		fputs(cJSON_IsNull(v) ? "null" : cJSON_IsTrue(v) ? "true" : "false", stdout);
}

static void print_row(const cJSON *at, char **keys, int n)
{
	for (int i = 0; i < n; i++) {
		print_value(follow(at, keys[i]));
		putchar(i + 1 < n ? '\t' : '\n');
	}
}

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "json FILE PATH KEY...\n");
		return 2;
	}
	char *text = slurp(argv[1]);
	cJSON *all = cJSON_ParseWithOpts(text, NULL, 1);
	const cJSON *at = follow(all, argv[2]), *one;
	if (!at)
		fprintf(stderr, "json: %s: %s\n", argv[1],
			all ? "nothing at that path" : "not one whole JSON value");
	if (cJSON_IsArray(at))
		cJSON_ArrayForEach(one, at) print_row(one, argv + 3, argc - 3);
	else if (at)
		print_row(at, argv + 3, argc - 3);
	int bad = !at;
	cJSON_Delete(all);
	free(text);
	return bad;
}
