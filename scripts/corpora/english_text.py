#!/usr/bin/env python3
"""English prose out of packages: documentation, dictionaries, commentaries and descriptions of packages.

usage: english_text.py extract PACKAGES WORKDIR   WORKDIR/NAME.docs for each package
       english_text.py join WORKDIR OUTDIR LIST   OUTDIR/{train,dev,test}.txt and SOURCES.tsv
PACKAGES holds .deb files, the descriptions of packages as Translation-en, and plain texts as .txt. LIST has the names in
their order: of paragraphs with equal letters, the first stays. Files are read inside the packages and never unpacked. dev
and test are the documents whose hashes come first, so that they come from all sources."""

import collections, gzip, hashlib, html, json, multiprocessing, os, re, struct, subprocess, sys, tarfile, zlib

MAX_DOC = 60_000  # Characters of a document: a longer text is cut into several at paragraphs.
HELD_OUT = 1_750_000  # Bytes of dev, and of test.

# --- Paragraphs ---------------------------------------------------------------------------------------------------------

COMMON = set(
    """the of and to in is a that for with be are this it by as on or an from not can will if you which when have at all has
    was but may must use used he his they their we our i my any no one other such these so do does should were been its into
    than only more there also then them her she who what your""".split()
)
WORD = re.compile(r"[A-Za-z]+(?:['\u2019][a-z]+)?")
SPACE = re.compile(r"\s+")
CODE = re.compile(r"[{}<>=\\|@#$%^*_~`+\[\]]|::|->|//|\(\)")
FOLD = re.compile(r"[^a-z]+")


def prose(text, least=8, share=0.2):
    """Whether a paragraph is English prose: enough words, most of it letters, and common words among them."""
    n = len(text)
    if n < 40 or n > 20_000:
        return False
    words = WORD.findall(text)
    if len(words) < least or sum(map(len, words)) < 0.7 * n:
        return False
    if sum(w.lower() in COMMON for w in words) < share * len(words):
        return False
    if len(CODE.findall(text)) * 12 > len(words):
        return False
    if n < 200 and text[-1] not in ".!?:;)\"'\u201d\u2019":
        return False
    return text[0].isalnum() or text[0] in "\"'\u201c\u2018([*-"


def clean(text):
    return SPACE.sub(" ", text).strip()


def paragraphs(blocks, **how):
    """The blocks that are prose, each on one line."""
    return [p for p in map(clean, blocks) if prose(p, **how)]


# --- Formats ------------------------------------------------------------------------------------------------------------

DROP = re.compile(
    r"<!--.*?-->|<(script|style|head|nav|pre|svg|math|button|select|footer|screen|programlisting|literallayout|synopsis|"
    r"cmdsynopsis|code-block|textarea|synopsis|indexterm|info|revhistory)\b[^>]*?(?<!/)>.*?</\1\s*>",
    re.S | re.I,
)
BLOCK = re.compile(
    r"</?(?:p|div|li|ul|ol|dl|dt|dd|td|th|tr|table|tbody|h[1-6]|section|article|header|blockquote|body|html|center|hr|"
    r"para|simpara|title|listitem|term|entry|row|note|tip|warning|member|item|caption|figure|main|aside|summary|details|"
    r"figcaption|form|fieldset|br\s*/?>\s*<br|sect\d|chapter|glossdef|description|steps|step)\b[^>]*>",
    re.I,
)
TAG = re.compile(r"<[/!?a-zA-Z][^>]*>")
PILCROW = re.compile("[\u00b6\uf0c1]")


def from_html(text):
    text = DROP.sub(" ", text)
    text = BLOCK.sub("\0", text)
    text = PILCROW.sub("", html.unescape(TAG.sub("", text)))
    return paragraphs(text.split("\0"))


def from_text(text):
    """Plain text, Markdown, reStructuredText, POD and Info: paragraphs between blank lines, without indented code."""
    text = text.replace("\r", "").expandtabs()
    if "\x1f" in text:
        text = re.sub(r"\x1f\n?[^\n]*\n", "\n\n", text)
        text = re.sub(r"(?m)^\* [^\n]*::.*$", "", text)
    text = re.sub(r"(?ms)^```.*?^```", "", text)
    text = re.sub(r"(?m)^ *(?:[-*\u2022o]|\d+[.)]) +", "\n\n", text)
    text = re.sub(r"(?m)^(=\w+.*|\.\. .*|[-=~^*#_]{3,})$", "\n\n", text)
    text = re.sub(r"[BCIFLSX]<+ *([^<>\n]*?) *>+", r"\1", text)
    text = re.sub(r":[a-z:+-]+:`([^`]*)`", r"\1", text)
    text = re.sub(r"\[([^][]*)\]\([^()]*\)", r"\1", text)
    text = re.sub(r"``|\*\*|`(?=\w)|(?<=[\w.])[`'](?=\W)(?<!s')|(?<!\w)_(?=\w)|(?<=\w)_(?!\w)", "", text)
    return paragraphs(re.split(r"\n\s*\n", text))


ROFF = [
    (re.compile(r'(?m)^[.\']\\".*$'), ""),
    (re.compile(r"(?ms)^\.(?:nf|EX|TS|Bd)\b.*?^\.(?:fi|EE|TE|Ed)\b"), "\n\n"),
    (re.compile(r"\\f(?:\[\w*\]|\(\w\w|\w)|\\[&/,|^%c]|\\s[-+]?\d+"), ""),
    (re.compile(r"\\\((?:aq|cq|oq)|\\\[(?:aq|cq|oq)\]"), "'"),
    (re.compile(r"\\\((?:lq|rq|dq)|\\\[(?:lq|rq|dq)\]|\\\*\(?[LR]?\""), '"'),
    (re.compile(r"\\\(em|\\\[em\]|\\\(en"), "--"),
    (re.compile(r"\\[-]"), "-"),
    (re.compile(r"\\[e]"), ""),
    (re.compile(r"\\[ ~0]"), " "),
    (re.compile(r"\\\(..|\\\[[^]]*\]|\\\*\[[^]]*\]|\\."), ""),
    (re.compile(r"(?m)^\.(?:B|I|SM|SB|R|UR|MT)\s+(.*)$"), r"\1"),
]
ALTERNATE = re.compile(r"(?m)^\.(?:BR|IR|RB|RI|BI|IB)\s+(.*)$")
MDOC = re.compile(
    r"(?m)^\.(?:Ar|Pa|Em|Sy|Va|Dv|Fn|Fa|Xr|Ic|Cm|Ql|Li|Dq|Sq|Pq|Er|Ev|Vt|Ft|Nm|St|Tn|Ns|No|Bx|Fx|Aq|Qq|Fl|In|Cd)\b(.*)$"
)
MACRO = re.compile(r"(?m)^[.'].*$")


def from_man(text):
    name = (re.search(r"(?m)^\.Nm\s+(\S+)", text) or [None, "it"])[1]
    for pattern, to in ROFF:
        text = pattern.sub(to, text)
    text = ALTERNATE.sub(lambda m: "".join(re.findall(r'"[^"]*"|\S+', m[1])).replace('"', ""), text)

    def mdoc(m):
        args = re.sub(r"\b(?:Ar|Pa|Em|Sy|Va|Dv|Fn|Fa|Ic|Cm|Ql|Li|Dq|Sq|Pq|Er|Ev|Vt|No|Ns)\b ?", "", m[1]).strip()
        args = re.sub(r" +(?=[.,;:)]( |$))", "", args)
        if m[0].startswith(".Fl"):
            args = "-" + args
        if m[0].startswith(".Nm") and not re.match(r"\w", args):
            args = name + args
        return re.sub(r"^(\S+) (\d)\b", r"\1(\2)", args) if m[0].startswith(".Xr") else args

    text = MACRO.sub("\n\n", MDOC.sub(mdoc, text))
    return paragraphs(re.split(r"\n\s*\n", text))


def from_dict(text, name):
    """A database of dictd: an entry a paragraph, or its senses."""
    text = re.sub(r"\n *\[[^]\n]{0,40}\]", "", text)
    text = re.sub(r"\\[^\\\n]*\\", "", text).replace("{", "").replace("}", "").replace(" ,", ",")
    if "wn" in name:
        text = re.sub(r"\n(?=\S)", "\n\n", text)
        text = re.sub(r"\[(?:syn|ant|also):[^]]*\]", "", text)
        text = re.sub(r"\n\s+(?:(?:n|v|adj|adv) )?\d*: ", "\0", text)
        text = re.sub(r"\s+(?=[;\0])", "", re.sub(r"(?m)^(\S[^\n\0]*)\0", r"\1: ", text)).replace("\0", "; ")
        return paragraphs(re.split(r"\n\s*\n", text), least=6, share=0.12)
    return paragraphs(re.split(r"\n\s*\n", text), share=0.12)


def from_fortunes(text):
    return paragraphs(re.split(r"(?m)^%.*$", re.sub(r".\x08", "", text)))


def from_sword(members):
    """A compressed text or commentary of SWORD: an index of verses, an index of blocks, and the blocks. A text is cut at its
    chapters, after empty verses, and a commentary at its own paragraphs."""
    found = []
    for path in sorted(members):
        m = re.match(r"(.*/[on]t)\.([bcv])zz$", path)
        if not m:
            continue
        base, kind = m[1], m[2]
        index, verses = members[f"{base}.{kind}zs"], members[f"{base}.{kind}zv"]
        blocks = []
        for at, size, _ in struct.iter_unpack("<III", index[: len(index) // 12 * 12]):
            try:
                blocks.append(zlib.decompress(members[path][at : at + size]))
            except zlib.error:
                blocks.append(b"")
        if "/comments/" in path:
            found += from_html(re.sub(r"<div\b[^>]*/>", "<p>", b"<p>".join(blocks).decode("utf-8", "replace")))
            continue
        chapter = []
        for block, start, size in struct.iter_unpack("<IIH", verses[: len(verses) // 10 * 10]):
            verse = blocks[block][start : start + size].decode("utf-8", "replace") if block < len(blocks) else ""
            verse = re.sub(r"(?s)<(note|title)\b.*?</\1>", "", verse)
            verse = clean(html.unescape(re.sub(r"<[^>]*>", "", verse)))
            if not verse or sum(map(len, chapter)) > 1500:
                found.append(" ".join(chapter))
                chapter = []
            chapter.append(verse)
        found.append(" ".join(chapter))
    return paragraphs(found, share=0.15)


def from_scenario(text):
    """What people say in the campaigns of a game."""
    strings = re.findall(r'_ *"((?:[^"]|"")*)"', text)
    return paragraphs(x.replace('""', '"') for x in strings)


def from_descriptions(text):
    """The long descriptions of packages, a document for each 100."""
    docs, now = [], []
    for i, entry in enumerate(text.split("\n\n")):
        body = entry.split("Description-en: ", 1)
        if len(body) == 2:
            lines = body[1].split("\n")[1:]
            lines = "\n".join(" " if x == " ." else x for x in lines)
            now += paragraphs(lines.replace("\n  ", "\n\n  ").split("\n \n"))
        if i % 100 == 99:
            docs.append((f"{i // 100:05}", now))
            now = []
    return docs + [("last", now)]


# --- Packages -----------------------------------------------------------------------------------------------------------

LANGUAGE = re.compile(
    r"(?:^|[/._-])(?:af|ar|ast|be|bg|bn|bs|ca|cs|da|de|el|eo|es|et|eu|fa|fi|fr|gl|gu|he|hi|hr|hu|id|is|it|ja|ka|km|kn|ko|lt|lv|"
    r"mk|ml|mr|nb|nl|nn|no|oc|pa|pl|pt|ro|ru|sk|sl|sq|sr|sv|ta|te|th|tr|uk|vi|zh)(?:[_-][A-Za-z]{2,4})?"
    r"(?:/|\.(?:html|txt|md|xml|info|1)|$)|\.(?:de|fr|es|it|ja|ko|tr|pt-br|zh-cn|da|ru)(?:\.(?:utf8|euc-kr|iso\S*))?$|"
    r"/(?:japanese|french|german|italian|zh_CN|ja_JP|ko_KR|it_IT|sp_SP)/"
)
SKIP = re.compile(
    r"changelog|copyright|/_sources/|/_modules/|genindex|index-all|/class-use/|/src-html/|_source\.html|-members\.html|"
    r"/functions_|/globals_|search(?:index)?\.html|package-use|/lintian/overrides|/tests?/|/testdata/|"
    r"NEWS\.Debian|THANKS|AUTHORS|LICENSE|COPYING|\.(?:png|svg|jpe?g|gif|js|css|mo|so|dat|pdf|ps)$",
    re.I,
)


def members(path):
    """The files of a package: (name, content), of the kinds this script may read."""
    process = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", path], stdout=subprocess.PIPE)
    with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
        for x in tar:
            if x.issym() and x.name.startswith("./usr/share/doc/"):  # To the documentation of another package.
                link = re.sub(r"^(?:\.\./)*(?:usr/share/doc/)?|/copyright$", "", x.linkname.lstrip("/"))
                yield x.name[1:].removesuffix("/copyright") + "/copyright", (lambda link=link: f"License: as {link}".encode())
            elif x.isfile() and 200 < x.size < 100_000_000:
                yield x.name[1:], tar.extractfile(x).read
    process.stdout.close()
    if process.wait():
        raise SystemExit(f"error: {os.path.basename(path)} cannot be read")


FAMILIES = [
    ("GFDL", r"GFDL|Free Documentation License"),
    ("LGPL", r"LGPL|Lesser General Public|Library General Public"),
    ("GPL", r"\bGPL|GNU General Public License"),
    ("Apache", r"(?i)apache"),
    ("MPL", r"\bMPL|Mozilla Public"),
    ("MIT", r"(?i)\bmit\b|expat|free of charge, to any person"),
    ("BSD", r"BSD|Redistribution and use in source"),
    ("Artistic", r"Artistic|same terms as Perl|\bPerl\b"),
    ("CC0", r"CC0"),
    ("CC-BY-SA", r"CC-BY-SA|Attribution-Share"),
    ("CC-BY", r"CC-BY(?!-SA)"),
    ("public domain", r"(?i)public.domain"),
    ("PSF", r"\bPSF|Python Software Foundation"),
    ("PostgreSQL", r"PostgreSQL"),
    ("BSL", r"\bBSL|Boost"),
    ("WordNet", r"WordNet"),
    ("Vim", r"\bVim\b"),
    ("Tcl", r"(?i)\btcl\b|Regents of the University of California"),
    ("wxWindows", r"wxWindows"),
    ("NGPL", r"(?i)nethack general public"),
    ("man pages copyleft", r"man-pages-copyleft"),
]


def families(text):
    return ", ".join(name for name, pattern in FAMILIES if re.search(pattern, text)) or "its own"


def licence(text):
    """The families of licences of a copyright file: of most files, and of all files of the source package."""
    stanza = re.search(r"(?m)^Files: *\*(?:.*\n)+?License: *([^\n]+)", text)
    named = "\n".join(re.findall(r"(?m)^License: *([^\n]+)", text)) or text
    return families(stanza[1] if stanza else named), families(named)


def decode(data):
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def documents(path):
    """(documents of a package as lists of paragraphs with their names, its licences)."""
    file = os.path.basename(path)
    if file == "Translation-en":
        return from_descriptions(open(path, encoding="utf-8").read()), ("GPL, MIT", "those of the packages described")
    if file.endswith(".txt"):
        return [(file, from_text(open(path, encoding="utf-8").read()))], ("public domain", "public domain")
    package, docs, terms, sword = file.split("_")[0], [], ("its own", "its own"), {}
    for name, read in members(path):
        if name == f"/usr/share/doc/{package}/copyright":
            text = decode(read())
            terms = (text[9:],) * 2 if text.startswith("License: as ") else licence(text)
        if SKIP.search(name) or LANGUAGE.search(name.replace("/usr/share/help/C/", "/")):
            continue
        plain = name[:-3] if name.endswith((".gz", ".dz")) else name
        kind = plain.rsplit(".", 1)[-1].lower() if "." in plain.rsplit("/", 1)[-1] else ""
        if "/sword/modules/" in name:
            sword[name] = read()
            continue
        how = None
        if kind in ("html", "htm", "xhtml", "page", "docbook", "xml"):
            how = from_html
        elif re.search(r"/man/man\d", name):
            how = from_man
        elif kind == "dict":
            how = lambda text: from_dict(text, package)
        elif "/games/fortunes/" in name and kind in ("", "u8"):
            how = from_fortunes
        elif kind == "cfg" and "/campaigns/" in name:
            how = from_scenario
        elif kind in ("txt", "md", "rst", "pod", "text", "info") or "/info/" in name or (kind == "" and "/doc/" in name):
            how = from_text
        if not how:
            continue
        data = read()
        if name.endswith((".gz", ".dz")):
            try:
                data = gzip.decompress(data)
            except (OSError, EOFError):
                continue
        if b"\0" in data[:4000]:
            continue
        try:
            found = how(decode(data))
        except ValueError:
            continue
        if found:
            docs.append((name, found))
    size = lambda pick: sum(len(p) for name, found in docs if pick(name) for p in found)
    source = re.compile(r"\.(?:rst|md|txt)(?:\.gz)?$")
    if size(lambda x: x.endswith(".html")) > size(source.search):
        docs = [x for x in docs if not source.search(x[0])]  # The sources of the same pages.
    if sword:
        docs.append(("sword", from_sword(sword)))
    return docs, terms


def extract(path_out):
    path, out = path_out
    docs, terms = documents(path)
    lines = []
    for name, found in sorted(docs, key=lambda x: x[0]):
        part, size, now = 0, 0, []
        for p in found + [None]:
            if p is None or size > MAX_DOC:
                if now:
                    lines.append(json.dumps([f"{name}#{part}", now], ensure_ascii=False))
                part, size, now = part + 1, 0, []
            if p is not None:
                now.append(p)
                size += len(p)
    version = re.sub(r".*_(.*)_\w+\.deb$", r"\1", os.path.basename(path)).replace("%3a", ":")
    version = "-" if version == os.path.basename(path) else version
    with gzip.open(out + ".new", "wt", encoding="utf-8", compresslevel=1) as f:
        f.write(json.dumps([version, terms]) + "\n")
        f.writelines(x + "\n" for x in lines)
    os.rename(out + ".new", out)
    return os.path.basename(out), sum(map(len, lines))


def join(work, out, names):
    seen, docs, sources = set(), [], []
    for name in names:
        path = f"{work}/{name}.docs"
        if not os.path.exists(path):
            continue
        total = 0
        with gzip.open(path, "rt", encoding="utf-8") as f:
            version, terms = json.loads(next(f))
            for line in f:
                doc, found = json.loads(line)
                kept = []
                for p in found:
                    if p.endswith("More..."):  # A brief description, which the full one repeats.
                        continue
                    key = hashlib.blake2b(FOLD.sub("", p.lower()).encode(), digest_size=8).digest()
                    if key not in seen:
                        seen.add(key)
                        kept.append(p)
                if sum(map(len, kept)) < 300:
                    continue
                text = "\n".join(kept) + "\n\n"
                total += len(text.encode())
                docs.append((hashlib.sha256(f"{name}{doc}".encode()).digest(), text))
        sources.append((name, version, *terms, total))
    by_hash, held, at = sorted(h for h, _ in docs), {}, 0
    size = {h: len(t.encode()) for h, t in docs}
    for split in ("dev", "test"):
        total = 0
        while total < HELD_OUT and at < len(by_hash):
            held[by_hash[at]] = split
            total += size[by_hash[at]]
            at += 1
    os.makedirs(out, exist_ok=True)
    parts = {x: open(f"{out}/{x}.txt", "w", encoding="utf-8") for x in ("train", "dev", "test")}
    words = collections.Counter()
    for h, text in docs:
        split = held.get(h, "train")
        parts[split].write(text)
        words[split] += len(text.split())
    for x, f in parts.items():
        f.close()
        print(x, os.path.getsize(f"{out}/{x}.txt"), "bytes", words[x], "words")
    with open(f"{out}/SOURCES.tsv", "w", encoding="utf-8") as f:
        f.write("package\tversion\tlicence\tall licences of its source\tbytes\n")
        for row in sources:
            f.write("\t".join(map(str, row)) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "extract":
        packages, work = sys.argv[2:4]
        os.makedirs(work, exist_ok=True)
        jobs = []
        for file in sorted(os.listdir(packages), key=lambda x: -os.path.getsize(f"{packages}/{x}")):
            out = f"{work}/{re.split('_|[.]txt', file)[0]}.docs"
            if not os.path.exists(out):
                jobs.append((f"{packages}/{file}", out))
        with multiprocessing.Pool() as pool:
            for name, total in pool.imap_unordered(extract, jobs):
                print(f"  {name} {total}", file=sys.stderr)
    else:
        work, out, order = sys.argv[2:5]
        join(work, out, open(order).read().split())
