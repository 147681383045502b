/* words.h - one list of words, as often as it is needed: an enum, texts.
 *
 *     WORDS_EACH(F, tag, (none, optimizer))    F(tag, none) F(tag, optimizer)
 *     WORDS_TEXT(qwen3_vl)                     "qwen3-vl", after
 *     #define SPELLED_qwen3_vl , "qwen3-vl"    (others: the word itself) */
#ifndef RECIPE_WORDS_H
#define RECIPE_WORDS_H

#define WORDS_EACH(f, tag, list) WORDS_SPREAD(f, tag, WORDS_BARE list)
#define WORDS_BARE(...) __VA_ARGS__
#define WORDS_SPREAD(f, tag, ...)                                                      \
    WORDS_PICK(__VA_ARGS__, WORDS_12, WORDS_11, WORDS_10, WORDS_9, WORDS_8, WORDS_7,   \
               WORDS_6, WORDS_5, WORDS_4, WORDS_3, WORDS_2, WORDS_1, 0)                \
    (f, tag, __VA_ARGS__)
#define WORDS_PICK(a, b, c, d, e, f, g, h, i, j, k, l, each, ...) each
#define WORDS_1(f, tag, word) f(tag, word)
#define WORDS_2(f, tag, word, ...) f(tag, word) WORDS_1(f, tag, __VA_ARGS__)
#define WORDS_3(f, tag, word, ...) f(tag, word) WORDS_2(f, tag, __VA_ARGS__)
#define WORDS_4(f, tag, word, ...) f(tag, word) WORDS_3(f, tag, __VA_ARGS__)
#define WORDS_5(f, tag, word, ...) f(tag, word) WORDS_4(f, tag, __VA_ARGS__)
#define WORDS_6(f, tag, word, ...) f(tag, word) WORDS_5(f, tag, __VA_ARGS__)
#define WORDS_7(f, tag, word, ...) f(tag, word) WORDS_6(f, tag, __VA_ARGS__)
#define WORDS_8(f, tag, word, ...) f(tag, word) WORDS_7(f, tag, __VA_ARGS__)
#define WORDS_9(f, tag, word, ...) f(tag, word) WORDS_8(f, tag, __VA_ARGS__)
#define WORDS_10(f, tag, word, ...) f(tag, word) WORDS_9(f, tag, __VA_ARGS__)
#define WORDS_11(f, tag, word, ...) f(tag, word) WORDS_10(f, tag, __VA_ARGS__)
#define WORDS_12(f, tag, word, ...) f(tag, word) WORDS_11(f, tag, __VA_ARGS__)

#define WORDS_TEXT(word) WORDS_SECOND(SPELLED_##word, #word, 0)
#define WORDS_SECOND(...) WORDS_OTHER(__VA_ARGS__)
#define WORDS_OTHER(name, text, ...) text

#endif
