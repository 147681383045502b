/* doctor.c - versions of the libraries in use and limits of the process. */
#include "tools/doctor.h"

#include "core/device.h"

#include <archive.h>
#include <cblas.h>
#include <inttypes.h>
#include <jansson.h>
#include <jpeglib.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <png.h>
#include <sys/resource.h>
#include <utf8proc.h>
#include <webp/decode.h>
#include <xxhash.h>
#include <yaml.h>

void report_devices(struct text *t)
{
    text_add(t, "  cpu   %d core(s), %.1f GiB free\n", device_cores(),
             (double)device_memory_free() / 1073741824);
    text_add(t, "  cuda  not in this version\n");
}

static void line(struct text *t, const char *name, const char *version)
{
    text_add(t, "  %-12s%s\n", name, version);
}

void report_libraries(struct text *t)
{
    char text[64];
    line(t, "openblas", openblas_get_config());
    snprintf(text, sizeof text, "%d.%d.%d", LIBJPEG_TURBO_VERSION_NUMBER / 1000000,
             LIBJPEG_TURBO_VERSION_NUMBER / 1000 % 1000,
             LIBJPEG_TURBO_VERSION_NUMBER % 1000);
    line(t, "jpeg-turbo", text);
    line(t, "png", png_get_libpng_ver(NULL));
    int webp = WebPGetDecoderVersion();
    snprintf(text, sizeof text, "%d.%d.%d", webp >> 16, webp >> 8 & 255, webp & 255);
    line(t, "webp", text);
    line(t, "jansson", jansson_version_str());
    line(t, "yaml", yaml_get_version_string());
    pcre2_config(PCRE2_CONFIG_VERSION, text);
    line(t, "pcre2", text);
    line(t, "utf8proc", utf8proc_version());
    line(t, "archive", archive_version_string());
    unsigned xx = XXH_versionNumber();
    snprintf(text, sizeof text, "%u.%u.%u", xx / 10000, xx / 100 % 100, xx % 100);
    line(t, "xxhash", text);
}

static void limit(struct text *t, const char *name, int which)
{
    struct rlimit r;
    if (getrlimit(which, &r))
        return;
    if (r.rlim_cur == RLIM_INFINITY)
        text_add(t, "  %-22sunlimited\n", name);
    else
        text_add(t, "  %-22s%" PRIu64 "\n", name, (uint64_t)r.rlim_cur);
}

void report_limits(struct text *t)
{
    limit(t, "open files", RLIMIT_NOFILE);
    limit(t, "file size, bytes", RLIMIT_FSIZE);
    limit(t, "address space, bytes", RLIMIT_AS);
    limit(t, "locked memory, bytes", RLIMIT_MEMLOCK);
}
