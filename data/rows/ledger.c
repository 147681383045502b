/* ledger.c - adding books up and checking that they balance; nobody else may divide. */
#include "data/rows/ledger.h"

void ledger_add(struct ledger *sum, const struct ledger *l)
{
    sum->slots += l->slots;
    sum->supervised += l->supervised;
    sum->context += l->context;
    sum->image += l->image;
    sum->padding += l->padding;
    sum->patch_slots += l->patch_slots;
    sum->patches += l->patches;
    sum->patch_padding += l->patch_padding;
    sum->samples += l->samples;
    sum->images += l->images;
    sum->mock += l->mock;
    sum->dropped += l->dropped;
    sum->too_long += l->too_long;
    sum->bad += l->bad;
    sum->no_loss += l->no_loss;
    sum->lost += l->lost;
    sum->shrunk += l->shrunk;
    sum->cut += l->cut;
    sum->attention += l->attention;
    sum->attention_image += l->attention_image;
}

static bool nothing_negative(const struct ledger *l)
{
    const struct { const char *name; int64_t value; } count[] = {
        {"slots", l->slots}, {"supervised", l->supervised}, {"context", l->context},
        {"image", l->image}, {"padding", l->padding}, {"patch_slots", l->patch_slots},
        {"patches", l->patches}, {"patch_padding", l->patch_padding},
        {"samples", l->samples}, {"images", l->images}, {"mock", l->mock},
        {"dropped", l->dropped}, {"too_long", l->too_long}, {"bad", l->bad},
        {"no_loss", l->no_loss}, {"lost", l->lost}, {"shrunk", l->shrunk},
        {"cut", l->cut},
    };
    for (int i = 0; i < COUNT(count); i++)
        if (count[i].value < 0)
            return fail("ledger: %s is %lld, expected 0 or more", count[i].name,
                        (long long)count[i].value);
    if (!(l->attention >= 0) || !(l->attention_image >= 0))
        return fail("ledger: attention is %g, of images %g, expected 0 or more",
                    l->attention, l->attention_image);
    return true;
}

bool ledger_check(const struct ledger *l)
{
    if (!nothing_negative(l))
        return false;
    if (ledger_useful(l) + l->padding != l->slots)
        return fail("ledger: %lld supervised + %lld context + %lld image + %lld "
                    "padding are not %lld slot(s)", (long long)l->supervised,
                    (long long)l->context, (long long)l->image, (long long)l->padding,
                    (long long)l->slots);
    if (l->patches + l->patch_padding != l->patch_slots)
        return fail("ledger: %lld patch(es) + %lld padding are not %lld patch slot(s)",
                    (long long)l->patches, (long long)l->patch_padding,
                    (long long)l->patch_slots);
    if (l->too_long + l->bad + l->no_loss != l->dropped)
        return fail("ledger: %lld too long + %lld bad + %lld without loss are not %lld "
                    "dropped", (long long)l->too_long, (long long)l->bad,
                    (long long)l->no_loss, (long long)l->dropped);
    if (l->mock > l->samples || l->shrunk > l->samples || l->cut > l->samples)
        return fail("ledger: %lld mock, %lld shrunk and %lld cut of %lld sample(s)",
                    (long long)l->mock, (long long)l->shrunk, (long long)l->cut,
                    (long long)l->samples);
    return true;
}

int64_t ledger_useful(const struct ledger *l)
{
    return l->supervised + l->context + l->image;
}
