#!/usr/bin/env python3
"""Makes tests/data/image/* and tests/data/image_golden.h: tiny images of every kind,
and what Pillow and transformers' Qwen2VLImageProcessor make of them.

Run from the repository root with Pillow, torch, torchvision and transformers installed
and the Debian package tuxpaint-stamps-default for the stamps:
    python3 tests/ref/make_image_golden.py
"""
import glob
import io
import os
import shutil
import struct
import zlib

import numpy as np
from PIL import Image, ImageOps
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import (
    Qwen2VLImageProcessorPil)
from transformers.image_transforms import convert_to_rgb
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

FOLDER = "tests/data/image"
CASES = "tests/data/cases"
STAMPS = "/usr/share/tuxpaint/stamps"
CORPUS = "tests/fuzz/corpus"

def fnv(data):
    h = 0xcbf29ce484222325
    for b in bytes(data):
        h = (h ^ b) * 0x100000001b3 & 0xffffffffffffffff
    return h


def fnv_words(array):
    """The same over 32-bit words, for the large arrays."""
    h = 0xcbf29ce484222325
    for w in np.ascontiguousarray(array).view(np.uint32).reshape(-1).tolist():
        h = (h ^ w) * 0x100000001b3 & 0xffffffffffffffff
    return h


def colours(w, h):
    """A picture that C can make as well: no two rows, columns or channels alike."""
    y, x, c = np.ogrid[:h, :w, :3]
    return ((37 * y + 53 * x + 101 * c + 11 * x * y) % 256).astype(np.uint8)


def smooth(w, h):
    y, x = np.mgrid[:h, :w]
    return np.stack([255 * x / (w - 1), 255 * y / (h - 1),
                     127 + 120 * np.sin(x / 3) * np.cos(y / 4)], -1).astype(np.uint8)


# ---- files ----

files = {}


def save(name, image, **options):
    out = io.BytesIO()
    image.save(out, {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}[name.split(".")[-1]],
               **options)
    files[name] = out.getvalue()


def without_segment(jpeg, marker):
    """The file without the first segment of a kind (0xee: APP14)."""
    at = jpeg.index(bytes([0xff, marker]))
    return jpeg[:at] + jpeg[at + 2 + struct.unpack(">H", jpeg[at + 2:at + 4])[0]:]


def jpegs():
    photo = Image.fromarray(smooth(37, 29))
    for name, sub in (("444", 0), ("422", 1), ("420", 2)):
        save(f"base_{name}.jpg", photo, quality=80, subsampling=sub)
        save(f"progressive_{name}.jpg", photo, quality=80, subsampling=sub,
             progressive=True)
    save("restart.jpg", photo, quality=60, restart_marker_blocks=2)
    save("grey.jpg", photo.convert("L"), quality=80)
    save("grey_progressive.jpg", photo.convert("L"), quality=80, progressive=True)
    save("one_pixel.jpg", photo.crop((5, 5, 6, 6)))
    save("rgb_adobe.jpg", photo, quality=80, keep_rgb=True)
    inks = np.concatenate([smooth(16, 16), colours(16, 16)[:, :, :1] // 4], -1)
    save("cmyk_adobe0.jpg", Image.fromarray(inks, "CMYK"), quality=90)
    adobe = files["cmyk_adobe0.jpg"]
    files["cmyk_plain.jpg"] = without_segment(adobe, 0xee)
    at = adobe.index(b"Adobe") + 11
    files["ycck_adobe2.jpg"] = adobe[:at] + b"\2" + adobe[at + 1:]
    flag = np.zeros((32, 64, 3), np.uint8) + np.array([0, 0, 200], np.uint8)
    flag[:16, :16] = (255, 0, 0)
    for o in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = o
        save(f"exif{o}.jpg", Image.fromarray(flag), quality=95, subsampling=0,
             exif=exif.tobytes())


def chunk(kind, data):
    return (struct.pack(">I", len(data)) + kind + data +
            struct.pack(">I", zlib.crc32(kind + data)))


ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4),
         (1, 0, 2, 2), (0, 1, 1, 2)]


def pack(samples, depth):
    """Rows of [width, channels] samples, filter 0."""
    out = b""
    for row in samples:
        flat = row.reshape(-1)
        if depth == 16:
            out += b"\0" + flat.astype(">u2").tobytes()
            continue
        bits = "".join(format(int(v), f"0{depth}b") for v in flat)
        bits += "0" * (-len(bits) % 8)
        out += b"\0" + bytes(int(bits[i:i + 8], 2) for i in range(0, len(bits), 8))
    return out


def png(kind, depth, samples, interlaced=False, extra=(), late=()):
    h, w = samples.shape[:2]
    if interlaced:
        data = b"".join(pack(samples[y::dy, x::dx], depth) for x, y, dx, dy in ADAM7
                        if samples[y::dy, x::dx].size)
    else:
        data = pack(samples, depth)
    return (b"\x89PNG\r\n\x1a\n" +
            chunk(b"IHDR",
                  struct.pack(">IIBBBBB", w, h, depth, kind, 0, 0, interlaced)) +
            b"".join(chunk(*c) for c in extra) + chunk(b"IDAT", zlib.compress(data)) +
            b"".join(chunk(*c) for c in late) + chunk(b"IEND", b""))


def pngs():
    rng = np.random.default_rng(1)
    w, h = 13, 11
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
    depths = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
    name = {0: "grey", 2: "rgb", 3: "palette", 4: "grey_alpha", 6: "rgba"}
    palette = rng.integers(0, 256, 768, dtype=np.uint8).tobytes()
    for kind in channels:
        for depth in depths[kind]:
            samples = rng.integers(0, 1 << depth, (h, w, channels[kind]))
            if kind == 0 and depth == 16:       # some that Pillow does not clip
                samples[::2] //= 256
            extra = [(b"PLTE", palette[:3 << depth])] if kind == 3 else []
            for interlaced in (False, True):
                end = "_interlaced" if interlaced else ""
                files[f"{name[kind]}{depth}{end}.png"] = png(kind, depth, samples,
                                                             interlaced, extra)
    samples = rng.integers(0, 16, (h, w, 1))
    files["palette_clear.png"] = png(3, 4, samples, extra=[
        (b"PLTE", palette[:48]), (b"tRNS", bytes([0, 128, 255, 7]))])
    files["palette_short.png"] = png(3, 4, samples, extra=[(b"PLTE", palette[:9])])
    files["grey8_clear.png"] = png(0, 8, samples, extra=[(b"tRNS", b"\0\3")])
    files["rgb8_clear.png"] = png(2, 8, colours(w, h), extra=[
        (b"tRNS", b"\0\0\0\x65\0\xca")])
    files["rgb8_gamma.png"] = png(2, 8, colours(w, h), extra=[
        (b"gAMA", struct.pack(">I", 100000)), (b"iCCP", b"bad\0\0nothing")])
    tiff = (b"MM\0*\0\0\0\x08\0\1" + struct.pack(">HHIHH", 0x0112, 3, 1, 6, 0) +
            b"\0" * 4)
    files["exif6_early.png"] = png(2, 8, colours(w, h), extra=[(b"eXIf", tiff)])
    files["exif6_late.png"] = png(2, 8, colours(w, h), late=[(b"eXIf", tiff)])


def webps():
    photo = Image.fromarray(smooth(37, 29))
    clear = photo.convert("RGBA")
    clear.putalpha(Image.fromarray(colours(37, 29)[:, :, 0]))
    save("lossy.webp", photo, quality=70)
    save("lossless.webp", photo, lossless=True)
    save("lossy_alpha.webp", clear, quality=70)
    save("lossless_alpha.webp", clear, lossless=True, exact=True)
    exif = Image.Exif()
    exif[0x0112] = 8
    save("exif8.webp", photo, quality=70, exif=exif.tobytes())


# ---- what the references make of them ----

def opened(data):
    """As Pillow opens it, but 16-bit grey, which it clips at 255, by its high byte."""
    image = Image.open(io.BytesIO(data))
    if image.mode == "I;16":
        grey = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        grey.info = image.info
        return grey
    return image


def on_white(image):
    return Image.fromarray(convert_to_rgb(image, return_numpy=True))


def table_decode(out):
    out.write("static const struct decoded decoded[] = {\n")
    for name, data in files.items():
        upright = on_white(ImageOps.exif_transpose(opened(data)))
        plain = opened(data).convert("RGB")
        out.write(f'    {{"{name}", {upright.width}, {upright.height}, '
                  f'0x{fnv(upright.tobytes()):016x}, '
                  f'0x{fnv(plain.tobytes()):016x}}},\n')
    out.write("};\n\n")


def processors(shape):
    patch, low, high, mean, std = shape
    options = dict(patch_size=patch, temporal_patch_size=2, merge_size=2,
                   size={"shortest_edge": low, "longest_edge": high},
                   image_mean=list(mean), image_std=list(std))
    return Qwen2VLImageProcessor(**options), Qwen2VLImageProcessorPil(**options)


HALF = (0.5,) * 3
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258,
                                                            0.27577711)


def c_list(values):
    return "{" + ", ".join(f"{v}f" for v in values) + "}"


def table_loaded(out):
    """Size in, what came out: the whole way but the decoder."""
    out.write("static const struct loaded loaded[] = {\n")
    for w, h, shape in (
            (64, 48, (16, 4096, 16384, HALF, HALF)),            # enlarged
            (200, 150, (16, 4096, 16384, HALF, HALF)),          # made smaller
            (128, 96, (16, 4096, 16384, HALF, HALF)),           # kept
            (128, 90, (16, 4096, 16384, HALF, HALF)),           # one axis kept
            (100, 96, (16, 4096, 16384, HALF, HALF)),           # the other
            (1, 1, (16, 4096, 16384, HALF, HALF)),
            (33, 1000, (16, 4096, 16384, HALF, HALF)),
            (1200, 7, (16, 4096, 16384, HALF, HALF)),
            (640, 479, (16, 4096, 16384, HALF, HALF)),
            (150, 130, (14, 3136, 12544, CLIP_MEAN, CLIP_STD))):
        hashes, grid = [], None
        for p in processors(shape):
            r = p(Image.fromarray(colours(w, h)), return_tensors="np")
            grid = r["image_grid_thw"][0]
            hashes.append(fnv_words(r["pixel_values"].astype(np.float32)))
        patch, low, high, mean, std = shape
        out.write(f"    {{{w}, {h}, {patch}, {low}, {high},\n"
                  f"     {c_list(mean)},\n     {c_list(std)},\n"
                  f"     {grid[1]}, {grid[2]}, {{0x{hashes[0]:016x}, "
                  f"0x{hashes[1]:016x}}}}},\n")
    out.write("};\n\n")


def table_resized(out):
    """PIL alone, any size to any size."""
    out.write("static const struct resized resized[] = {\n")
    for w, h, tw, th in (
            (7, 5, 8, 4), (50, 40, 17, 61), (17, 33, 160, 2), (301, 200, 3, 5),
            (16, 16, 16, 31), (100, 3, 99, 3), (5, 400, 5, 7), (9, 2000, 4, 3),
            # on both sides of where the vertical pass comes first
            (100, 100, 99, 97), (100, 100, 99, 98), (60, 300, 30, 239),
            (60, 300, 30, 240), (60, 40, 90, 39), (60, 40, 90, 41)):
        image = Image.fromarray(colours(w, h)).resize((tw, th), Image.BICUBIC)
        out.write(f"    {{{w}, {h}, {tw}, {th}, 0x{fnv(image.tobytes()):016x}}},\n")
    out.write("};\n\n")


def table_files(out, name, folder, files):
    """Files as they are; the default shape of Qwen3-VL."""
    out.write(f"static const struct stamp {name}[] = {{\n")
    for file in files:
        with open(os.path.join(folder, file), "rb") as f:
            image = ImageOps.exif_transpose(opened(f.read()))
        hashes, grid = [], None
        for p in processors((16, 65536, 16777216, HALF, HALF)):
            r = p(image, return_tensors="np")
            grid = r["image_grid_thw"][0]
            hashes.append(fnv_words(r["pixel_values"].astype(np.float32)))
        out.write(f'    {{"{file}", {grid[1]}, {grid[2]},\n     '
                  f"{{0x{hashes[0]:016x}, 0x{hashes[1]:016x}}}}},\n")
    out.write("};\n\n")


def table_stamps(out):
    table_files(out, "stamps", STAMPS, (
        "symbols/clockface.png", "food/fruit/apricot.png",
        "symbols/money/us/coins/005nickel.png"))


def table_cases(out):
    """What Pillow refuses has no place here."""
    table_files(out, "cases", CASES, sorted(
        os.path.relpath(f, CASES) for f in glob.glob(CASES + "/*/*")
        if not f.endswith("no_eoi.jpg")))


def main():
    jpegs()
    pngs()
    webps()
    shutil.rmtree(FOLDER, ignore_errors=True)
    os.makedirs(FOLDER)
    with open("tests/data/image_golden.h", "w") as out:
        out.write("/* image_golden.h - made by tests/ref/make_image_golden.py; "
                  "test_image.c declares the\n * structs and says what they mean. */\n")
        table_decode(out)
        table_loaded(out)
        table_resized(out)
        table_stamps(out)
        table_cases(out)
    still = Image.fromarray(smooth(9, 9))
    save("animation.webp", still, save_all=True, append_images=[still.rotate(90)])
    for name, data in files.items():
        with open(os.path.join(FOLDER, name), "wb") as f:
            f.write(data)
    for path in glob.glob(CASES + "/*/*"):
        with open(path, "rb") as f:
            files[os.path.basename(path)] = f.read()
    for kind in ("jpg", "png", "webp"):
        folder = os.path.join(CORPUS, "fuzz_" + kind.replace("jpg", "jpeg"))
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        for name, data in files.items():
            if name.endswith(kind) and len(data) < 1500:
                with open(os.path.join(folder, name), "wb") as f:
                    f.write(data)


main()
