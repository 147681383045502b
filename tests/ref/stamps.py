"""The captions of the stamps package, in the order in which the tests read them."""
import os

ROOT = "/usr/share/tuxpaint/stamps"


def files():
    """Paths below ROOT of all caption files, sorted by their bytes."""
    found = []
    for folder, _, names in os.walk(ROOT):
        found += [os.path.relpath(os.path.join(folder, n), ROOT)
                  for n in names if n.endswith(".txt")]
    return sorted(found, key=os.fsencode)


def lines(path):
    """(language, caption bytes) of one file: first the English line, then LANG.utf8=."""
    with open(os.path.join(ROOT, path), "rb") as f:
        first, *rest = f.read().split(b"\n")
    yield "en", first
    for line in rest:
        name, equals, text = line.partition(b".utf8=")
        if equals and text:
            yield name.decode(), text


def captions():
    for path in files():
        for language, text in lines(path):
            try:
                yield language, text.decode()
            except UnicodeDecodeError:
                pass
