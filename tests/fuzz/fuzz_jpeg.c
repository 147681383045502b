/* fuzz_jpeg.c - any bytes as a JPEG file. */
#include "fuzz_image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_image(data, size, IMAGE_JPEG);
    return 0;
}
