/* yaml_limits.c - walks a YAML text's events, which keeps nothing. */
#include "recipe/yaml_limits.h"

#include <yaml.h>

enum { DEPTH = 16, KEYS = 1000, ANCHORS = 100 };

struct walk {
    int depth, anchors;
    bool mapping[DEPTH + 1];
    int count[DEPTH + 1];               /* of nodes in each open group */
};

static bool too_many(const yaml_event_t *e, const char *what, int most)
{
    return fail("line %zu: more than %d %s", e->start_mark.line + 1, most, what);
}

/* A node of the group that is open. */
static bool node_count(struct walk *w, const yaml_event_t *e, const yaml_char_t *anchor)
{
    w->anchors += anchor != NULL;
    if (w->anchors > ANCHORS)
        return too_many(e, "anchors and aliases", ANCHORS);
    if (++w->count[w->depth] > 2 * KEYS && w->mapping[w->depth])
        return too_many(e, "keys in a group", KEYS);
    return true;
}

static bool group_open(struct walk *w, const yaml_event_t *e, bool mapping)
{
    if (w->depth == DEPTH)
        return too_many(e, "groups within each other", DEPTH);
    w->mapping[++w->depth] = mapping;
    w->count[w->depth] = 0;
    return true;
}

static bool event_check(struct walk *w, const yaml_event_t *e)
{
    switch (e->type) {
    case YAML_SCALAR_EVENT:
        return node_count(w, e, e->data.scalar.anchor);
    case YAML_ALIAS_EVENT:
        return node_count(w, e, e->data.alias.anchor);
    case YAML_SEQUENCE_START_EVENT:
        return node_count(w, e, e->data.sequence_start.anchor) &&
               group_open(w, e, false);
    case YAML_MAPPING_START_EVENT:
        return node_count(w, e, e->data.mapping_start.anchor) && group_open(w, e, true);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        w->depth--;
        return true;
    default:
        return true;
    }
}

bool yaml_limits_check(const char *yaml, int64_t size)
{
    yaml_parser_t parser;
    yaml_event_t e;
    struct walk w = {0};
    bool ok = true, end = false;
    REQUIRE(yaml_parser_initialize(&parser));
    yaml_parser_set_input_string(&parser, (const unsigned char *)yaml, (size_t)size);
    while (ok && !end && yaml_parser_parse(&parser, &e)) {
        ok = event_check(&w, &e);
        end = e.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&e);
    }
    yaml_parser_delete(&parser);
    return ok;
}
