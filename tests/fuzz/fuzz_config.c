/* fuzz_config.c - any bytes as a config.json: refused with a message, or numbers that
 * fit together. */
#include "checkpoint/hf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model_config c;
    fail_clear();
    if (hf_config_parse("fuzz", (const char *)data, (int64_t)size, &c)) {
        REQUIRE(model_config_check(&c));
        REQUIRE(c.vision.out == c.decoder.width && c.vision.taps <= MAX_TAPS);
    } else {
        REQUIRE(*fail_message() && fail_fault() == FAULT_CHECKPOINT);
    }
    return 0;
}
