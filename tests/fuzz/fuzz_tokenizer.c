/* fuzz_tokenizer.c - any bytes as a tokenizer.json, then a text through it and back:
 * what follows the first NUL of the input, or a fixed one. */
#include "data/text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *json = (const char *)data;
    const char *cut = memchr(json, 0, size), *text = cut ? cut + 1 : NULL;
    int64_t json_size = cut ? cut - json : (int64_t)size;
    int64_t text_size = cut ? (int64_t)size - json_size - 1 : 0;
    if (!text) {
        text = "Caf\xc3\xa9 e\xcc\x81 's  12\r\n <|im_end|><tool_call> "
               "\xe4\xb8\xad\xf0\x9f\x98\x80";
        text_size = (int64_t)strlen(text);
    }
    struct arena a = arena_make("fuzz");
    struct tokenizer *t;
    if (tokenizer_parse(&a, "fuzz", json, json_size, &t)) {
        for (int special = 0; special <= SPECIAL_ALL; special++) {
            struct ids ids = {0};
            if (!tokenizer_encode(t, &a, text, text_size, (enum special)special, &ids))
                continue;
            for (int64_t i = 0; i < ids.count; i++)
                REQUIRE(tokenizer_token(t, ids.at[i]) &&
                        tokenizer_bytes(t, ids.at[i]) > 0);
            tokenizer_decode(t, &a, ids.at, ids.count, special);
        }
        tokenizer_close(t);
    }
    arena_free(&a);
    return 0;
}
