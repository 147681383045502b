"""make_captions_picture.py - the README's picture of captioned stamps.

    python tests/ref/make_captions_picture.py runs/quickstart/samples/step-1500.jsonl out.png
"""
import json
import sys

from PIL import Image, ImageDraw, ImageFont

CELL, COLUMNS, ROWS, TEXT = 170, 4, 2, 46
lines = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
sheet = Image.new("RGB", (CELL * COLUMNS, (CELL - 40 + TEXT) * ROWS), "white")
draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)


def wrap(text, width):
    out, line = [], ""
    for word in text.split():
        if draw.textlength(line + word, font) > width and line:
            out.append(line)
            line = ""
        line += word + " "
    return out + [line]


for i, sample in enumerate(lines[:COLUMNS * ROWS]):
    image = Image.open(sample["images"][0]).convert("RGBA")
    image.thumbnail((CELL - 30, CELL - 50))
    x, y = i % COLUMNS * CELL, i // COLUMNS * (CELL - 40 + TEXT)
    sheet.paste(image, (x + (CELL - image.width) // 2, y + 4), image)
    colour = "#077000" if sample["model"] == sample["data"] else "#aa4400"
    for k, line in enumerate(wrap(sample["model"], CELL - 16)[:3]):
        draw.text((x + 8, y + CELL - 44 + 15 * k), line, colour, font)
sheet.quantize(128).save(sys.argv[2], optimize=True)
