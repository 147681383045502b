/* hardware.c - a flat YAML file into struct hardware, by the table in hardware.def. */
#include "recipe/hardware.h"

#include "base/file.h"
#include "base/text.h"
#include "recipe/yaml_limits.h"

#include <math.h>
#include <yaml.h>

/* The source tree the program was built from: found from any folder. */
#define TABLES VLMOE_RECIPES "/hardware"

struct key { const char *name, *meaning; double least, most; size_t at; };
static const struct key key[] = {
#define HARDWARE(name, least, most, meaning)                                           \
    {#name, meaning, least, most, offsetof(struct hardware, name)},
#include "plan/hardware.def"
};
enum { SOURCE = COUNT(key), COMPUTE, KEYS };    /* texts come after the numbers */

static const char *key_name(int i)
{
    return i == SOURCE ? "source" : i == COMPUTE ? "compute" : key[i].name;
}

static int key_find(const char *name)
{
    const char *names[KEYS];
    for (int i = 0; i < KEYS; i++) {
        names[i] = key_name(i);
        if (strcmp(names[i], name) == 0)
            return i;
    }
    fail("no key '%s'; nearest is '%s'", name, text_nearest(name, names, KEYS));
    return -1;
}

static bool value_set(struct arena *a, int i, const char *value, struct hardware *out)
{
    if (i == SOURCE) {
        out->source = arena_copy(a, value, strlen(value));
        return true;
    }
    if (i == COMPUTE) {
        out->compute = strcmp(value, "bf16") ? DTYPE_F32 : DTYPE_BF16;
        return out->compute == DTYPE_BF16 || !strcmp(value, "f32") ||
               fail("compute '%s' is neither bf16 nor f32", value);
    }
    double *to = (double *)((char *)out + key[i].at);
    if (!text_number(value, to))
        return fail("%s '%s' is not a number (%s)", key[i].name, value, key[i].meaning);
    if (!(*to >= key[i].least && *to <= key[i].most))
        return fail("%s %s is outside %g to %g (%s)", key[i].name, value, key[i].least,
                    key[i].most, key[i].meaning);
    return true;
}

static const char *scalar(yaml_document_t *doc, int at)         /* NULL: it is none */
{
    const yaml_node_t *n = yaml_document_get_node(doc, at);
    bool is = n->type == YAML_SCALAR_NODE &&
              strlen((char *)n->data.scalar.value) == n->data.scalar.length;
    return is ? (char *)n->data.scalar.value : NULL;
}

static bool pairs_set(struct arena *a, yaml_document_t *doc, struct hardware *out)
{
    const yaml_node_t *top = yaml_document_get_root_node(doc);
    bool seen[KEYS] = {false};
    if (!top || top->type != YAML_MAPPING_NODE)
        return fail("expected lines of key: value");
    for (const yaml_node_pair_t *p = top->data.mapping.pairs.start;
         p < top->data.mapping.pairs.top; p++) {
        const char *name = scalar(doc, p->key), *value = scalar(doc, p->value);
        if (!name || !value)
            return fail("expected lines of key: value");
        int i = key_find(name);
        if (i < 0 || !value_set(a, i, value, out))
            return false;
        if (seen[i])
            return fail("'%s' is set a second time", name);
        seen[i] = true;
    }
    for (int i = 0; i < KEYS; i++)
        if (!seen[i])
            return fail("'%s' is missing", key_name(i));
    return true;
}

/* What no single number shows. */
static bool table_makes_sense(const struct hardware *h)
{
    if (h->node != floor(h->node))
        return fail("node %g is not a whole number of devices", h->node);
    if (h->memory > 0 && h->reserve >= h->memory)
        return fail("reserve %g leaves nothing of memory %g (bytes)", h->reserve,
                    h->memory);
    return true;
}

bool hardware_parse(struct arena *a, const char *name, const char *yaml, int64_t size,
                    struct hardware *out)
{
    yaml_parser_t parser;
    yaml_document_t doc;
    bool ok = yaml_limits_check(yaml, size);
    REQUIRE(yaml_parser_initialize(&parser));
    if (ok) {
        yaml_parser_set_input_string(&parser, (const unsigned char *)yaml,
                                     (size_t)size);
        ok = yaml_parser_load(&parser, &doc) ||
             fail("line %zu: %s", parser.problem_mark.line + 1,
                  parser.problem ? parser.problem : "not YAML");
        *out = (struct hardware){.name = arena_copy(a, name, strlen(name))};
        if (ok) {
            ok = pairs_set(a, &doc, out) && table_makes_sense(out);
            yaml_document_delete(&doc);
        }
        yaml_parser_delete(&parser);
    }
    return ok || fail_in("hardware: %s", name) || fail_kind(FAULT_USAGE);
}

/* The nearest of the tables that come with the program. */
static bool table_unknown(struct arena *a, const char *name)
{
    char **file;
    int64_t count;
    if (!folder_list(a, TABLES, &file, &count))
        return false;
    const char **table = NEW(a, const char *, count + 1);
    for (int64_t i = 0; i < count; i++)
        table[i] = arena_copy(a, file[i], strcspn(file[i], "."));
    const char *near = text_nearest(name, table, (int)count);
    return fail("no table '%s'; nearest is '%s' (or give a file's path)", name,
                near ? near : "none");
}

bool hardware_read(struct arena *a, const char *name, struct hardware *out)
{
    enum { MOST = 1 << 16 };
    struct bytes text;
    bool path = strchr(name, '/') || text_ends(name, ".yaml");
    const char *file = path ? name : arena_text(a, "%s/%s.yaml", TABLES, name);
    bool known = path || file_exists(file) || table_unknown(a, name);
    if (!known || !file_read(a, file, MOST, &text))
        return fail_in("hardware") || fail_kind(FAULT_USAGE);
    return hardware_parse(a, name, text.at, text.size, out);
}
