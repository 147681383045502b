/* test_source_json.c - every JSON spelling gives the same samples; what is wrong in one
 * sample is one bad sample that names its place. */
#include "tests/data/scratch.h"

#include "base/log.h"
#include "data/source/parts.h"

/* One JSONL record of this format, read. */
static char *one(struct scratch *s, const char *format, const char *record)
{
    const char *path = scratch_text(s, "one.jsonl", record);
    struct source *from = scratch_open(s, path, format);
    assert_int_equal(source_count(from), 1);
    char *text = read_text(s, from, 0);
    source_close(from);
    return text;
}

static void test_spellings(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    static const struct {
        const char *format, *record, *expected;
    } spelling[] = {
        {"llava",
         "{\"image\": \"a.png\", \"conversations\": [{\"from\": \"human\", "
         "\"value\": \"<image>\\nWhat?\"}, {\"from\": \"gpt\", \"value\": \"A "
         "cat.\"}]}",
         "user[<0>What?] assistant[A cat.]"},
        {"llava",
         "{\"image\": [\"a.png\"], \"conversations\": [{\"from\": \"human\", "
         "\"value\": \"What?\\n<image>\"}, {\"from\": \"gpt\", \"value\": \"A "
         "cat.\"}]}",
         "user[What?<0>] assistant[A cat.]"},
        {"qwen",
         "{\"images\": [\"a.png\", \"b.png\"], \"conversations\": [{\"from\": "
         "\"user\", \"value\": \"<image>\\n<image>\\n\\nDiffer?\"}, {\"from\": "
         "\"assistant\", \"value\": \"No.\"}]}",
         "user[<0><1>\nDiffer?] assistant[No.]"},
        {"qwen",
         "{\"images\": [\"a.png\", \"b.png\"], \"conversations\": [{\"from\": "
         "\"user\", \"value\": \"is <image> like <image>?\"}]}",
         "user[is <0> like <1>?]"},
        {"sharegpt",
         "{\"images\": [\"a.png\"], \"messages\": [{\"role\": \"user\", "
         "\"content\": \"<image>\\nWhat?\"}, {\"role\": \"assistant\", \"content\": "
         "\"A cat.\"}]}",
         "user[<0>\nWhat?] assistant[A cat.]"},
        {"sharegpt",
         "{\"system\": \"Be short.\", \"tools\": \"[]\", \"images\": [], "
         "\"conversations\": [{\"from\": \"human\", \"value\": \"Hi\"}, {\"from\": "
         "\"observation\", \"value\": \"5\"}]}",
         "system[Be short.] user[Hi] tool[5]"},
        {"openai",
         "{\"messages\": [{\"role\": \"system\", \"content\": \"Be short.\"}, "
         "{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
         "\"What?\"}, "
         "{\"type\": \"image_url\", \"image_url\": {\"url\": \"a.png\"}}, {\"type\": "
         "\"image\", \"image\": \"b.png\"}, {\"type\": \"image_url\", \"image_url\": "
         "\"c.png\"}]}, {\"role\": \"assistant\", \"content\": \"A cat.\", \"weight\": "
         "0}, "
         "{\"role\": \"tool\", \"content\": \"\"}]}",
         "system[Be short.] user[What?<0><1><2>] silent assistant[A cat.] tool[]"},
        /* an image part without a path takes the next beside the turns (TRL) */
        {"openai",
         "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\", "
         "\"text\": null}, {\"type\": \"text\", \"text\": \"?\", \"index\": null}, "
         "{\"type\": \"image\", \"url\": \"b.png\"}, {\"type\": \"image\"}]}], "
         "\"images\": [\"a.png\", {\"path\": \"c.png\", \"bytes\": null}]}",
         "user[<0>?<1><2>]"},
        {"alpaca",
         "{\"instruction\": \"Sum up.\", \"input\": \"Long.\", \"output\": \"Short.\", "
         "\"system\": \"Be brief.\", \"history\": [[\"a\", \"b\"]]}",
         "system[Be brief.] user[a] assistant[b] user[Sum up.\nLong.] "
         "assistant[Short.]"},
        {"alpaca",
         "{\"instruction\": \"<image>What?\", \"input\": \"\", \"output\": \"A cat.\", "
         "\"images\": [\"a.png\"]}",
         "user[<0>What?] assistant[A cat.]"},
        {"imagefolder", "{\"file_name\": \"a.png\", \"text\": \" A cat. \", \"id\": 7}",
         "user[<0>Describe the image.] assistant[A cat.]"},
        {"imagefolder",
         "{\"file_name\": \"a.png\", \"caption\": \"A cat.\", \"text\": \"A cat.\"}",
         "user[<0>Describe the image.] assistant[A cat.]"},
        /* which turns are trained on, in the world's spellings */
        {"openai",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"q\", \"loss\": false}, "
         "{\"role\": \"assistant\", \"content\": \"a\", \"loss\": false}, "
         "{\"role\": \"assistant\", \"content\": \"b\", \"train\": false}, "
         "{\"role\": \"assistant\", \"content\": \"c\", \"weight\": 0.0}, "
         "{\"role\": \"assistant\", \"content\": \"d\", \"loss\": true, \"weight\": "
         "1}, "
         "{\"role\": \"assistant\", \"content\": \"e\", \"loss\": null}]}",
         "user[q] silent assistant[a] silent assistant[b] silent assistant[c] "
         "assistant[d] assistant[e]"},
        /* calls as the family's template writes them */
        {"openai",
         "{\"messages\": [{\"role\": \"assistant\", \"content\": \"So:\", "
         "\"tool_calls\": [{\"id\": \"1\", \"type\": \"function\", \"function\": "
         "{\"name\": \"f\", \"arguments\": {\"a\": [1, \"\\u001F/\\u00e4\"], \"b\": "
         "null}}}, {\"name\": \"g\", \"arguments\": \"{ }\"}]}, {\"role\": "
         "\"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": "
         "\"h\", \"arguments\": {}}}]}]}",
         "assistant[So:\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, "
         "\"\\u001f/\xc3\xa4\"], \"b\": null}}\n</tool_call>\n<tool_call>\n{\"name\": "
         "\"g\", \"arguments\": { }}\n</tool_call>] assistant[<tool_call>\n{\"name\": "
         "\"h\", \"arguments\": {}}\n</tool_call>]"},
        /* nothing said beside the calls, in formats with places for images */
        {"sharegpt",
         "{\"images\": [\"a.png\"], \"messages\": [{\"role\": \"assistant\", "
         "\"content\": null, \"tool_calls\": [{\"name\": \"f\", \"arguments\": {}}]}, "
         "{\"role\": \"user\", \"content\": \"<image>\"}]}",
         "assistant[<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>] "
         "user[<0>]"},
        {"llava",
         "{\"image\": \"a.png\", \"conversations\": [{\"from\": \"human\", \"value\": "
         "\"<image>\"}, {\"from\": \"gpt\", \"tool_calls\": [{\"name\": \"f\", "
         "\"arguments\": {}}]}], \"messages\": null}",
         "user[<0>] assistant[<tool_call>\n{\"name\": \"f\", \"arguments\": "
         "{}}\n</tool_call>]"},
        /* and the tools that may be called, behind a system message or as one */
        {"openai",
         "{\"messages\": [{\"role\": \"system\", \"content\": \"Short.\"}, {\"role\": "
         "\"user\", \"content\": \"q\"}], \"tools\": [{\"type\":\"function\","
         "\"function\":{\"name\":\"f\"}}]}",
         "system[Short.\n\n"
         "# Tools\n\nYou may call one or more functions to assist with the user query."
         "\n\nYou are provided with function signatures within <tools></tools> XML "
         "tags:\n<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n"
         "</tools>\n\nFor each function call, return a json object with function name "
         "and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
         "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n"
         "</tool_call>] user[q]"},
        {"sharegpt",
         "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}], \"tools\": "
         "\"[{\\\"type\\\":\\\"function\\\",\\\"function\\\":{\\\"name\\\":"
         "\\\"f\\\"}}]\"}",
         "system["
         "# Tools\n\nYou may call one or more functions to assist with the user query."
         "\n\nYou are provided with function signatures within <tools></tools> XML "
         "tags:\n<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n"
         "</tools>\n\nFor each function call, return a json object with function name "
         "and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
         "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n"
         "</tool_call>] user[q]"},
        /* nothing is as good as not there */
        {"sharegpt",
         "{\"image\": \"\", \"videos\": [], \"odd\": {}, \"messages\": [{\"role\": "
         "\"user\", \"content\": \"q\", \"tool_calls\": null, \"odd\": \"\"}]}",
         "user[q]"},
        /* text stays text where the format has no placeholders */
        {"openai",
         "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
         "\"text\", \"text\": \"<image><|image_pad|>\"}, {\"type\": \"image\", "
         "\"image\": "
         "\"a.png\"}]}]}",
         "user[<image><|image_pad|><0>]"},
        {"openai", "{\"messages\": [{\"role\": \"user\", \"content\": \"\\u00e4\"}]}",
         "user[\xc3\xa4]"},
    };
    for (int i = 0; i < COUNT(spelling); i++)
        assert_string_equal(one(&s, spelling[i].format, spelling[i].record),
                            spelling[i].expected);
    scratch_remove(&s);
}

/* Counts of placeholders and images that differ: both counts, the place, the text. */
static void test_mismatch(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    static const char *const text[] = {
        "<image> and <image>: compare", "<image> alone",
        ("no mark at all, but eighty characters and more of "
         "text, so that it must be cut \xc3\xa4\xc3\xa4")};
    static const int marks[] = {2, 1, 0};
    static const char *const images[] = {"\"a\"", "\"a\", \"b\"", "\"a\""};
    static const int given[] = {1, 2, 1};
    for (int i = 0; i < 3; i++) {
        char *record = arena_text(&s.arena,
                                  "\n{\"images\": [%s], \"messages\": [{\"role\": "
                                  "\"user\", \"content\": \"%s\"}]}\n",
                                  images[i], text[i]);
        char *got = one(&s, "sharegpt", record);
        assert_non_null(strstr(got, "one.jsonl:2: "));
        assert_non_null(strstr(got, arena_text(&s.arena,
                                               "%d '<image>' placeholders but %d "
                                               "image(s);",
                                               marks[i], given[i])));
        assert_non_null(strstr(got, arena_text(&s.arena, "'%.79s", text[i])));
        assert_true(text_utf8(got, (int64_t)strlen(got)));
        assert_null(strstr(got, "\xc3\xa4\xc3\xa4"));
    }
    scratch_remove(&s);
}

static void test_bad(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    static const struct {
        const char *format, *record, *words;
    } bad[] = {
        {"llava", "{\"a\": 1}", "neither 'messages' nor 'conversations'"},
        {"llava", "{\"messages\": [1], \"conversations\": [1]}", "both"},
        {"llava", "{\"conversations\": []}", "conversations: is empty"},
        {"llava", "{\"conversations\": {}}", "conversations: is an object"},
        {"llava", "{\"conversations\": [7]}", "conversations[0]: is a number"},
        {"llava", "{\"conversations\": [{\"value\": \"x\"}]}",
         "neither 'role' nor 'from'"},
        {"llava", "{\"conversations\": [{\"from\": \"human\"}]}",
         "conversations[0].value: is missing"},
        {"openai", "{\"messages\": [{\"role\": \"user\", \"content\": null}]}",
         "messages[0].content: is null"},
        {"openai", "{\"messages\": [{\"role\": \"bot\", \"content\": \"x\"}]}",
         "messages[0].role: unknown role 'bot'"},
        {"openai",
         "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
         "\"video\"}]}]}",
         "messages[0].content[0]: type: unknown part 'video'"},
        {"openai", "{\"messages\": [{\"role\": \"user\", \"content\": [\"x\"]}]}",
         "messages[0].content[0]: type: is missing"},
        {"openai",
         "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
         "\"image_url\", \"image_url\": {\"url\": \"https://x/y.png\"}}]}]}",
         "is on the network"},
        {"openai",
         "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
         "\"image\", \"image\": \"a.png\", \"max_pixels\": 5}]}]}",
         "max_pixels"},
        {"openai",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"images\": "
         "[\"a\"]}",
         "format sharegpt"},
        {"openai",
         "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", "
         "\"weight\": 0.5}]}",
         "weight: is a number, expected 0 or 1"},
        {"sharegpt",
         "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
         "\"text\", \"text\": \"x\"}]}]}",
         "format openai"},
        {"sharegpt",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], "
         "\"images\": [3]}",
         "images[0]: is a number"},
        {"sharegpt",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"<image>\"}], "
         "\"images\": [\"\"]}",
         "path is empty"},
        {"sharegpt",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], "
         "\"videos\": [\"a.mp4\"]}",
         "videos: not supported"},
        {"sharegpt",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], "
         "\"tools\": \"[{}]\"}",
         "tools: [0]: expected {"},
        {"openai",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": 7}",
         "tools: expected a list of tools"},
        {"openai",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": "
         "[{\"name\": \"flat\"}]}",
         "tools: [0]: expected {"},
        {"sharegpt", "{\"messages\": [], \"messages\": []}", "duplicate"},
        {"llava",
         "{\"conversations\": [{\"from\": \"human\", \"value\": \"<image>\\nWhat?\"}]}",
         "'<image>' stands in the text, but no image is given; text begins '<image> "
         "What?'"},
        {"openai",
         "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", "
         "\"text\": \"<image>\"}]}]}",
         "no image is given"},
        {"alpaca", "{\"instruction\": \"<image>\", \"output\": \"x\"}",
         "no image is given"},
        {"alpaca", "{\"instruction\": \"x\", \"output\": \"<audio>\"}",
         "'<audio>' stands in the text, but marks nothing"},
        {"llava",
         "{\"conversations\": [{\"from\": \"human\", \"value\": \"<video>\\nWhat?\"}]}",
         "'<video>' stands in the text, but marks nothing that is given; text begins "
         "'<video> What?'"},
        {"sharegpt",
         "{\"system\": \"<|audio_pad|>\", \"messages\": [{\"role\": \"user\", "
         "\"content\": \"<image>\"}], \"images\": [\"a.png\"]}",
         "'<|audio_pad|>' stands in the text"},
        {"openai",
         "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", "
         "\"text\": \"see <|video_pad|>\"}, {\"type\": \"image\", \"image\": "
         "\"a.png\"}]}]}",
         "'<|video_pad|>' stands in the text"},
        {"imagefolder", "{\"file_name\": \"a.png\", \"text\": \"<video>\"}",
         "'<video>' stands in the text"},
        {"alpaca", "{\"instruction\": \"<|image_pad|>\", \"output\": \"x\"}",
         "'<|image_pad|>' stands in the text"},
        {"alpaca", "{\"instruction\": \"x\", \"input\": 7}", "expected strings"},
        {"alpaca", "{\"instruction\": \"x\"}", "output: expected a string"},
        {"alpaca", "{\"instruction\": \"x\", \"output\": \"y\", \"history\": [7]}",
         "history[0]: expected a pair"},
        {"alpaca", "{\"instruction\": \"x\", \"output\": \"y\", \"rejected\": \"z\"}",
         "the key 'rejected' is not read"},
        {"imagefolder", "{\"file_name\": \"a.png\", \"label\": 3, \"text\": \"x\"}",
         "the key 'label' is not read"},
        {"imagefolder", "{\"file_name\": \"a.png\"}", "neither 'text' nor 'caption'"},
        {"imagefolder", "{\"file_name\": 7, \"text\": \"x\"}",
         "expected an image's path"},
        {"imagefolder",
         "{\"file_name\": \"a.png\", \"text\": \"x\", \"caption\": \"y\"}",
         "'text' is another text than 'caption'"},
        {"openai",
         "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}",
         "messages[0].content[0]: image: no path, and no image beside the turns"},
        {"openai",
         "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}], "
         "\"images\": [\"a\", \"b\"]}",
         "2 images beside the turns, but image 2 has no part"},
        {"openai",
         "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\", "
         "\"image\": \"a\", \"url\": \"b\"}]}]}",
         "both 'image' and 'url' are given"},
        {"openai",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"loss\": true}]}",
         "messages[0].loss: asks to train on a turn that is not the assistant's"},
        {"openai",
         "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", \"loss\": "
         "false, \"weight\": 1}]}",
         "messages[0].loss: says the opposite"},
        {"openai",
         "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", \"train\": "
         "\"no\"}]}",
         "messages[0].train: is a string, expected 0 or 1"},
        {"openai",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"tool_calls\": "
         "[{}]}]}",
         "messages[0].tool_calls: in a turn that is not"},
        {"openai",
         "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", "
         "\"tool_calls\": [{\"name\": \"f\", \"arguments\": {\"a\": 0.1}}]}]}",
         "messages[0].tool_calls: [0]: arguments: expected a string"},
        {"openai",
         "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", "
         "\"tool_calls\": [{\"name\": \"f\", \"arguments\": {}, \"x\": 1}]}]}",
         "messages[0].tool_calls: [0]: the key 'x' is not read"},
        {"openai",
         "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", "
         "\"function_call\": {\"name\": \"f\"}}]}",
         "messages[0].function_call: not supported, expected tool_calls"},
        {"openai",
         "{\"messages\": [{\"role\": \"assistant\", \"content\": null, "
         "\"function_call\": {\"name\": \"f\"}}]}",
         "messages[0].function_call: not supported, expected tool_calls"},
        {"alpaca",
         "{\"instruction\": \"q\", \"output\": \"a\", \"messages\": [{\"role\": "
         "\"assistant\", \"content\": \"lost\"}]}",
         "both 'messages' and 'output' are given"},
        {"openai",
         "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\", "
         "\"reasoning_content\": \"hm\"}]}",
         "messages[0]: the key 'reasoning_content' is not read"},
        {"openai",
         "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", "
         "\"text\": \"x\", \"bold\": true}]}]}",
         "messages[0].content[0]: the key 'bold' is not read"},
        {"openai",
         "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", "
         "\"image_url\": {\"url\": \"x\", \"crop\": [1]}}]}]}",
         "messages[0].content[0]: image_url: the key 'crop' is not read"},
        {"sharegpt",
         "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"chosen\": 1}",
         "the key 'chosen' is not read"},
        {"sharegpt",
         "{\"images\": [{\"path\": \"a\", \"bytes\": \"AAAA\"}], \"messages\": "
         "[{\"role\": \"user\", \"content\": \"<image>\"}]}",
         "images[0]: the key 'bytes' is not read"},
        {"sharegpt", "{\"messages\": [{\"role\": \"user\", \"content\": \"\\u0000\"}]}",
         "not valid JSON"},
        {"sharegpt", "{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\"}]}",
         "not valid JSON"},
        {"sharegpt", "{\"messages\"", "not valid JSON"},
        {"sharegpt", "42", "not valid JSON"},
        {"sharegpt", "[[{\"messages\": []}]]", "must be a JSON object"},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        char *got = one(&s, bad[i].format, bad[i].record);
        if (!text_starts(got, "bad: ") || !strstr(got, bad[i].words) ||
            !strstr(got, *bad[i].record == '[' ? "one.jsonl[0]: " : "one.jsonl:1: "))
            fail_msg("case %d: '%s' is missing in: %s", i, bad[i].words, got);
    }
    scratch_remove(&s);
}

/* A list and lines hold the same samples; brackets and quotes in strings part nothing.
 */
static void test_list_and_lines(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    static const char *const record[] = {
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a ] } , [ { \\\" "
        "\\\\\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}], \"meta\": [[1, 2], "
        "{}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"c\"}]}"};
    const char *expected[] = {"user[a ] } , [ { \" \\]", "user[b]", "user[c]"};
    char *file[] = {arena_text(&s.arena, "\xef\xbb\xbf[\n %s ,%s,\r\n%s ]\n", record[0],
                               record[1], record[2]),
                    arena_text(&s.arena, "\xef\xbb\xbf%s\r\n\n  %s\n%s", record[0],
                               record[1], record[2])};
    static const char *const name[2][3] = {{"x.json[0]", "x.json[1]", "x.json[2]"},
                                           {"x.json:1", "x.json:3", "x.json:4"}};
    for (int k = 0; k < 2; k++) {
        struct source *from =
            scratch_open(&s, scratch_text(&s, "x.json", file[k]), "auto");
        assert_int_equal(source_count(from), 3);
        assert_string_equal(source_format(from), "openai");
        for (int i = 0; i < 3; i++) {
            struct sample got;
            assert_true(source_read(from, i, &s.arena, &got));
            assert_string_equal(sample_print(&s.arena, &got), expected[i]);
            assert_true(text_ends(got.name, name[k][i]));
        }
        source_close(from);
    }
    scratch_remove(&s);
}

static void test_list_broken(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    char *deep = NEW(&s.arena, char, 200002);
    memset(deep, '[', 200000);
    static const struct {
        const char *text, *words;
    } broken[] = {
        {"[{\"a\": 1},\n{\"b\": \"x", "x.json:2: the list ends inside the value"},
        {"[{}", "ends inside"},
        {"[{},]", "value is missing"},
        {"[{},,{}]", "value is missing"},
        {"[{}]]", "something follows"},
        {"[{}}]", "without its '{'"},
        {"[", "ends inside"},
        {"[]", "no samples of format llava: it holds no record"},
        {"", "no samples of format llava: it is an empty file"},
        {" \n", "no samples of format llava: it holds no record"},
    };
    for (int i = 0; i < COUNT(broken); i++) {
        const char *path = scratch_text(&s, "x.json", broken[i].text);
        struct source_options o = {.path = path, .format = "llava"};
        struct source *from;
        assert_false(source_open(&s.arena, &o, &from));
        ASSERT_SAYS("x.json", broken[i].words);
        assert_int_equal(fail_fault(), FAULT_DATA);
    }
    struct source_options o = {.path = scratch_text(&s, "x.json", deep)};
    struct source *from;
    assert_false(source_open(&s.arena, &o, &from));
    /* the depth of one line is the JSON parser's to limit */
    memset(deep, '{', 1);
    memcpy(deep, "{\"a\":", 5);
    assert_non_null(
        strstr(one(&s, "llava", deep), "not valid JSON: maximum parsing depth"));
    scratch_remove(&s);
}

/* Records as the world has them. */
static void test_cases(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    static const struct {
        const char *file, *format;
        int index;
        const char *expected;
    } row[] = {
        {"loss_false.jsonl", "openai", 0,
         "user[Hi] silent assistant[bad] user[Hi] assistant[good]"},
        {"tool_calls.jsonl", "openai", 0,
         "user[Hi] assistant[<tool_call>\n{\"name\": \"f\", \"arguments\": "
         "{}}\n</tool_call>] tool[7] assistant[Seven]"},
        {"trl.jsonl", "openai", 0, "user[<0>q] assistant[ok]"},
        {"box.jsonl", "openai", 0,
         "user[find it] assistant[<|box_start|>(1,2)<|box_end|>]"},
        {"think.json", "openai", 0,
         "user[q <|box_start|>(1,2)<|box_end|>] assistant[<think>z</think> a]"},
        {"fifo.jsonl", "openai", 0, "user[<0>] assistant[ok]"},
        {"null.json", "llava", 0,
         "bad: tests/data/rows/null.json[0]: '<image>' stands"},
        {"null.json", "llava", 1,
         "bad: tests/data/rows/null.json[1]: '<image>' stands"},
        {"null.json", "llava", 2,
         "bad: tests/data/rows/null.json[2]: '<image>' stands"},
        {"null.json", "llava", 3,
         "bad: tests/data/rows/null.json[3]: '<image>' stands"},
        {"null.json", "llava", 4,
         "bad: tests/data/rows/null.json[4]: '<image>' stands"},
        {"null.json", "llava", 5,
         "bad: tests/data/rows/null.json[5]: both 'image' and 'images' are given"}};
    for (int i = 0; i < COUNT(row); i++) {
        struct source *from =
            scratch_open(&s, path_join(&s.arena, "tests/data/rows", row[i].file), NULL);
        assert_string_equal(source_format(from), row[i].format);
        char *got = read_text(&s, from, row[i].index);
        if (!text_starts(got, row[i].expected))
            fail_msg("%s: expected %s, got %s", row[i].file, row[i].expected, got);
        source_close(from);
    }
    scratch_remove(&s);
}

/* Numbers that JSON does not have, or 64 bits do not hold, are nobody's business under
 * a key that is not read, and make a bad sample under any other. */
static void test_odd_numbers(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    static const char *const number[] = {"NaN", "-Infinity", "1e999", "-1E+999",
                                         "123456789012345678901234"};
    static const struct { const char *format, *record, *bad; } test[] = {
        {"openai", "{\"similarity\": %s, \"messages\": [{\"role\": \"user\", "
         "\"content\": \"NaN\", \"timestamp\": %s}]}", NULL},
        {"openai", "{\"meta\": {\"a\": [%s]}, \"messages\": [{\"role\": \"user\", "
         "\"content\": [{\"type\": \"text\", \"id\": %s, \"text\": \"NaN\"}]}]}", NULL},
        {"openai", "{\"mine\": {\"a\": [%s]}, \"messages\": [{\"role\": \"user\", "
         "\"content\": \"NaN\", \"mine\": %s}]}", NULL},
        {"openai", "{\"other\": %s, \"id\": %s, \"messages\": [{\"role\": \"user\", "
         "\"content\": \"x\"}]}", "other: is the number "},
        {"openai", "{\"id\": %s, \"messages\": [{\"role\": \"user\", "
         "\"content\": %s}]}",
         "messages: [0]: content: is the number "},
        {"openai", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"\", "
         "\"weight\": %s, \"id\": %s}]}", "messages: [0]: weight: is the number "},
        {"openai", "{\"id\": %s, \"messages\": [{\"role\": \"assistant\", "
         "\"content\": \"\", "
         "\"tool_calls\": [{\"name\": \"f\", \"arguments\": {\"id\": %s}}]}]}",
         "tool_calls: [0]: arguments: id: is the number "},
        {"alpaca", "{\"id\": %s, \"instruction\": \"x\", \"output\": %s}",
         "output: is the number "},
        {"openai", "{\"id\": %s, \"messages\": [{\"role\": \"user\", "
         "\"content\": x%s}]}",
         "not valid JSON: "},
    };
    for (int i = 0; i < COUNT(test); i++)
        for (int k = 0; k < COUNT(number); k++) {
            struct text record = text_make(&s.arena);
            const char *from = test[i].record, *gap;
            for (; (gap = strstr(from, "%s")); from = gap + 2) {
                text_add_bytes(&record, from, gap - from);
                text_add(&record, "%s", number[k]);
            }
            text_add(&record, "%s", from);
            struct source_options o = {.path = scratch_text(&s, "n.jsonl", record.at),
                                       .format = test[i].format, .ignore = "mine"};
            struct source *source;
            assert_ok(source_open(&s.arena, &o, &source));
            const char *got = read_text(&s, source, 0);
            if (test[i].bad ? !strstr(got, test[i].bad) : strcmp(got, "user[NaN]") != 0)
                fail_msg("%s: %s", record.at, got);
            source_close(source);
        }
    scratch_remove(&s);
}

/* What the source's 'ignore' names need not be read, at any depth; nothing else. */
static void test_ignore(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct source_options o = {
        .path = scratch_text(&s, "x.jsonl",
                             "{\"messages\": [{\"role\": \"user\", \"content\": "
                             "[{\"type\": \"text\", \"text\": \"a\", \"bold\": 1}], "
                             "\"note\": {\"x\": 1}}], \"judge\": 1}"),
    };
    static const char *const words[] = {"judge, note,bold", "judge note", "note bold",
                                        "judge bold", "judg note bold judges"};
    static const char *const expected[] = {"user[a]", "key 'bold'", "key 'judge'",
                                           "key 'note'", "key 'judge'"};
    for (int i = 0; i < COUNT(words); i++) {
        struct source *from;
        o.ignore = words[i];
        assert_ok(source_open(&s.arena, &o, &from));
        assert_non_null(strstr(read_text(&s, from, 0), expected[i]));
        source_close(from);
    }
    scratch_remove(&s);
}

/* The page that users read lists the keys that need not be named. */
static void test_page(void **state)
{
    (void)state;
    struct arena a = arena_make("page");
    struct bytes page;
    assert_ok(file_read(&a, "docs/data.md", 1 << 20, &page));
    const char *from[] = {"- of a record:", "- of a turn:", "- of a part,",
                          "- of a shard,"};
    int listed = 0, known = 0;
    for (int level = 0; level < LEVELS; level++) {
        char *begin = strstr(page.at, from[level]),
             *end = strstr(begin, from[level + 1]);
        assert_true(begin && end);
        const char *list = arena_copy(&a, begin, (size_t)(end - begin));
        for (const char *at = list; (at = strchr(at, '`')); at++)
            listed++;
        for (int i = 0; keys_about[level][i]; i++, known++)
            if (!strstr(list, arena_text(&a, "`%s`", keys_about[level][i])))
                fail_msg("docs/data.md lacks `%s`", keys_about[level][i]);
    }
    assert_int_equal(listed, 2 * known);
    arena_free(&a);
}

/* What people have and no reader takes is told by name, with what to do; by its content
 * where it has one, whatever it is called. */
static void test_foreign(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    static const struct {
        const char *name, *bytes;
        int size;
        const char *words, *hint;
    } file[] = {
        {"a.parquet", "PAR1\0\0PAR1", 10, "is Parquet", "read_parquet"},
        {"b.jsonl", "PAR1\0\0PAR1", 10, "is Parquet", "read_parquet"},
        {"c.csv", "text,image\n", 11, "is a table of text", "read_csv"},
        {"d.tar.gz", "\x1f\x8b\x08\0", 4, "is compressed (gzip)", "unpack it first"},
        {"e.tar", "\x1f\x8b\x08\0", 4, "is compressed (gzip)", "unpack it first"},
        {"f.json", "\x28\xb5\x2f\xfd", 4, "is compressed (zstd)", "unpack it first"},
        {"g.zip", "PK\3\4", 4, "is a ZIP archive", "unpack it first"},
        {"h.arrow", "ARROW1\0\0", 8, "is Arrow", "read_feather"}};
    for (int i = 0; i < COUNT(file); i++) {
        char *path =
            scratch_bytes(&s, file[i].name, file[i].bytes, (size_t)file[i].size);
        static const char *const format[] = {"auto", "llava", "webdataset"};
        for (int k = 0; k < COUNT(format); k++) {
            struct source_options o = {.path = path, .format = format[k]};
            struct source *from;
            assert_false(source_open(&s.arena, &o, &from));
            ASSERT_SAYS(file[i].name, file[i].words, "which is not read", file[i].hint,
                        "JSON lists and lines, tar shards that are not");
            assert_int_equal(fail_fault(), FAULT_DATA);
        }
    }
    struct source *from;
    struct source_options o = {.path = path_join(&s.arena, s.folder, "x-{0..1}.tar")};
    scratch_bytes(&s, "x-0.tar", "\x1f\x8b\x08\0", 4);
    o.format = "webdataset";
    assert_false(source_open(&s.arena, &o, &from));
    ASSERT_SAYS("x-0.tar: is compressed (gzip)");
    scratch_bytes(&s, "only/train.parquet", "PAR1", 4);
    o = (struct source_options){.path = path_join(&s.arena, s.folder, "only")};
    assert_false(source_open(&s.arena, &o, &from));
    ASSERT_SAYS("only: holds no tar shards and no images; train.parquet is Parquet");
    scratch_remove(&s);
}

static void test_auto(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    static const struct {
        const char *record, *format;
    } choice[] = {
        {"{\"conversations\": [{\"from\": \"human\", \"value\": \"x\"}]}", "llava"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"images\": []}",
         "sharegpt"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": []}]}", "openai"},
        {"{\"instruction\": \"x\", \"output\": \"y\"}", "alpaca"},
        {"{\"file_name\": \"x\", \"text\": \"y\"}", "imagefolder"},
        {"broken\n{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n"
         "{\"messages\": [{\"role\": \"user\", \"content\": []}]}",
         "openai"},
    };
    for (int i = 0; i < COUNT(choice); i++) {
        struct source *from =
            scratch_open(&s, scratch_text(&s, "x.jsonl", choice[i].record), NULL);
        assert_string_equal(source_format(from), choice[i].format);
        source_close(from);
    }
    struct source_options o = {.path = scratch_text(&s, "x.jsonl", "{\"q\": 1}")};
    struct source *from;
    assert_false(source_open(&s.arena, &o, &from));
    ASSERT_SAYS("x.jsonl", "cannot tell the format", "has the keys 'q'",
                "'conversations', 'messages', 'instruction'");
    o.path = scratch_text(&s, "x.jsonl", "[]");
    assert_false(source_open(&s.arena, &o, &from));
    ASSERT_SAYS("x.jsonl", "no samples");
    o.path = scratch_text(&s, "x.jsonl", "oops");
    assert_false(source_open(&s.arena, &o, &from));
    ASSERT_SAYS("x.jsonl", "cannot tell the format", "not valid JSON");
    o.path = scratch_text(&s, "x.json", "{\n  \"messages\": []\n}");
    assert_false(source_open(&s.arena, &o, &from));
    ASSERT_SAYS("x.json", "expected a JSON list or one object a line", "at byte 1");
    struct text many = text_make(&s.arena);
    for (int i = 0; i < 1001; i++)
        text_add(&many, "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}\n");
    o.path = scratch_text(&s, "many.jsonl", many.at);
    assert_false(source_open(&s.arena, &o, &from));
    ASSERT_SAYS("many.jsonl", "the first 1000 samples have no image",
                "data.sources.N.format: openai");
    o.format = "lava";
    assert_false(source_open(&s.arena, &o, &from));
    ASSERT_SAYS("unknown format 'lava', nearest is 'llava'");
    assert_int_equal(fail_fault(), FAULT_USAGE);
    o = (struct source_options){
        .path = scratch_text(&s, "x.jsonl", "{\"messages\": []}"), .prompt = "What?"};
    assert_false(source_open(&s.arena, &o, &from));
    ASSERT_SAYS("x.jsonl", "'prompt' says what is asked", "format openai has its own");
    assert_int_equal(fail_fault(), FAULT_USAGE);
    o = (struct source_options){.path = s.folder, .format = "folder", .images = "x"};
    scratch_text(&s, "a.txt", "A.");
    scratch_text(&s, "a.png", "");
    assert_false(source_open(&s.arena, &o, &from));
    ASSERT_SAYS("'images' says where", "format folder names no paths");
    o = (struct source_options){.path = "/nowhere/x.json"};
    assert_false(source_open(&s.arena, &o, &from));
    ASSERT_SAYS("/nowhere/x.json", "no such file");
    scratch_remove(&s);
}

/* Where image bytes may be; what is missing is found when they are read, and named. */
static void test_images(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    scratch_png(&s, "sub/a b.png");
    scratch_bytes(&s, "sub/empty.png", "", 0);
    const char *data =
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMB"
        "AQD3A0FDAAAAAElFTkSuQmCC";
    char *line[] = {
        arena_text(&s.arena, "sub/a b.png"),
        arena_text(&s.arena, "%s/sub/a b.png", s.folder),
        arena_text(&s.arena, "file://%s/sub/a%%20b.png", s.folder),
        arena_text(&s.arena, "file://localhost%s/sub/a%%20b.png", s.folder),
        arena_text(&s.arena, "data:image/png;base64,%s", data),
        arena_text(&s.arena, "data:;base64,%.40s\\n%s", data, data + 40),
    };
    for (int i = 0; i < COUNT(line); i++) {
        char *record =
            arena_text(&s.arena,
                       "{\"messages\": [{\"role\": \"user\", "
                       "\"content\": [{\"type\": \"image\", \"image\": \"%s\"}]}]}",
                       line[i]);
        struct source *from =
            scratch_open(&s, scratch_text(&s, "x.jsonl", record), NULL);
        struct sample got;
        struct bytes file;
        assert_true(source_read(from, 0, &s.arena, &got));
        assert_int_equal(got.nimage, 1);
        if (!image_source_read(&s.arena, &got.image[0], &file))
            fail_msg("%s: %s", line[i], fail_message());
        assert_int_equal(file.size, sizeof png);
        assert_memory_equal(file.at, png, sizeof png);
        assert_non_null(
            strstr(got.image[0].name, i < 4 ? "a b.png" : "x.jsonl:1 image 0"));
        source_close(from);
    }
    static const struct {
        const char *uri, *words;
    } bad[] = {
        {"data:image/png;base64,!", "base64 data is wrong at character 0"},
        {"data:image/png;base64,AAAAA", "ends inside a byte"},
        {"data:image/png;base64,AA=A", "base64 data is wrong"},
        {"data:image/png;base64,", "without data"},
        {"data:image/png;base64", "without a ','"},
        {"data:,%4", "hexadecimal"},
        {"file://server/x.png", "not a file of this machine"},
        {"file:///x%00.png", "%00"},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        char *got =
            one(&s, "openai",
                arena_text(
                    &s.arena,
                    "{\"messages\": [{\"role\": "
                    "\"user\", \"content\": [{\"type\": \"image_url\", \"image_url\": "
                    "{\"url\": \"%s\"}}]}]}",
                    bad[i].uri));
        if (!strstr(got, bad[i].words) ||
            !strstr(got, "messages[0].content[0]: image_url"))
            fail_msg("'%s' is missing in: %s", bad[i].words, got);
    }
    struct image_source gone = {.path = "/nowhere/x.png", .name = "/nowhere/x.png"};
    struct bytes file;
    assert_false(image_source_read(&s.arena, &gone, &file));
    ASSERT_SAYS("image", "/nowhere/x.png");
    gone.path = gone.name = path_join(&s.arena, s.folder, "sub/empty.png");
    assert_false(image_source_read(&s.arena, &gone, &file));
    ASSERT_SAYS("empty.png", "empty");
    assert_int_equal(fail_fault(), FAULT_DATA);
    gone.path = gone.name = s.folder;
    assert_false(image_source_read(&s.arena, &gone, &file));
    scratch_remove(&s);
}

/* `images` moves where relative paths start; match and limit keep what they say. */
static void test_options(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct text t = text_make(&s.arena);
    for (int i = 1; i <= 20; i++)
        text_add(&t,
                 "{\"image\": \"%d.png\", \"conversations\": [{\"from\": \"human\", "
                 "\"value\": \"<image>\"}]}\n",
                 i);
    struct source_options o = {.path = scratch_text(&s, "x.jsonl", t.at),
                               .images = "/data/images",
                               .match = "x.jsonl:1?",
                               .limit = 3};
    struct source *from, *all;
    assert_true(source_open(&s.arena, &o, &from));
    assert_int_equal(source_count(from), 3);
    struct sample got;
    assert_true(source_read(from, 2, &s.arena, &got));
    assert_string_equal(got.image[0].path, "/data/images/12.png");
    all = scratch_open(&s, o.path, NULL);
    assert_int_equal(source_count(all), 20);
    assert_true(source_read(all, 19, &s.arena, &got));
    assert_string_equal(got.image[0].path, path_join(&s.arena, s.folder, "20.png"));
    assert_true(source_hash(all) != source_hash(from));
    source_close(all);
    source_close(from);
    o.match = "y*";
    assert_false(source_open(&s.arena, &o, &from));
    ASSERT_SAYS("none of its 20 samples matches 'y*'");
    o.limit = -1;
    assert_false(source_open(&s.arena, &o, &from));
    scratch_remove(&s);
}

/* The hash is of what is in the file, not of where it is. */
static void test_hash(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    static const char *const text[] = {
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}]}"};
    uint64_t hash[3];
    for (int i = 0; i < 3; i++) {
        struct source *from = scratch_open(
            &s, scratch_text(&s, arena_text(&s.arena, "%d/x.jsonl", i), text[i]), NULL);
        hash[i] = source_hash(from);
        source_close(from);
    }
    assert_true(hash[0] == hash[1]);
    assert_true(hash[0] != hash[2]);
    scratch_remove(&s);
}

/* A file that shrinks under a running reader is a bad sample, not a dead process. */
static void test_shrunk(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    const char *path = scratch_text(&s, "x.jsonl",
                                    "{\"messages\": [{\"role\": \"user\", "
                                    "\"content\": \"a\"}]}");
    struct source *from = scratch_open(&s, path, NULL);
    scratch_text(&s, "x.jsonl", "{\"mess");
    assert_non_null(strstr(read_text(&s, from, 0), "the file ends at byte 6"));
    source_close(from);
    scratch_remove(&s);
}

int main(void)
{
    log_set(LOG_WARN, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spellings),   cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_bad),         cmocka_unit_test(test_list_and_lines),
        cmocka_unit_test(test_list_broken), cmocka_unit_test(test_auto),
        cmocka_unit_test(test_images),      cmocka_unit_test(test_options),
        cmocka_unit_test(test_hash),        cmocka_unit_test(test_shrunk),
        cmocka_unit_test(test_cases),       cmocka_unit_test(test_ignore),
        cmocka_unit_test(test_odd_numbers),
        cmocka_unit_test(test_foreign),     cmocka_unit_test(test_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
