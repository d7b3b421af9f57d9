//! Catalogues of translations, which Kiln does not read: the commands that make rows of them.

use std::io::Read;
use std::path::Path;

use regex::Regex;
use serde_json::Value;

use crate::files::open_file;
use crate::terminal::shell_path;

/// Entries of gettext, without those that are marked as fuzzy or that have plurals.
const PO: &str = r##"import json, re, sys
text, left = open(0, encoding="utf-8-sig").read(), {"fuzzy": 0, "with plural forms": 0, "without a translation": 0}
joined = lambda part: "".join(json.loads(line, strict=False) for line in re.findall(r"\".*\"", part))
for entry in re.split(r"\n\s*\n", text):
  if re.search(r"^#,.*fuzzy", entry, re.M): left["fuzzy"] += 1
  elif re.search(r"^msgid_plural", entry, re.M): left["with plural forms"] += 1
  else:
    for pair in re.findall(r"^msgid ((?:\".*\"\s*)+)msgstr ((?:\".*\"\s*)+)", entry, re.M):
      src, trg = map(joined, pair)
      if src and trg: print(json.dumps({"src": src, "trg": trg}))
      elif src: left["without a translation"] += 1
found = ", ".join(f"{n} {what}" for what, n in left.items() if n)
if found: print("entries left out:", found, file=sys.stderr)"##;
/// Units of TMX without languages: the first two texts of each.
const TMX: &str = concat!(
    r##"import json, re, xml.etree.ElementTree as tree; root = ROOT; "##,
    r##"units = [["".join(side.itertext()) for side in unit.iter("seg")] for unit in root.iter("tu")]; "##,
    r##"[print(json.dumps({"src": unit[0], "trg": unit[1]})) for unit in units if len(unit) > 1]"##,
);
/// Units of TMX that have both `LANGUAGES`, in whichever order.
const TMX_BY_NAME: &str = r##"import json, re, sys, xml.etree.ElementTree as tree
left, languages = 0, LANGUAGES
name = lambda side: (side.get("{http://www.w3.org/XML/1998/namespace}lang") or side.get("lang") or "").lower()
for unit in ROOT.iterfind(".//{*}tu"):
  sides = [(name(side), seg) for side in unit.iterfind("{*}tuv") for seg in side.iterfind("{*}seg")]
  texts = [next(("".join(seg.itertext()) for found, seg in sides if found == one.lower()), "") for one in languages]
  if all(one.strip() for one in texts): print(json.dumps(dict(zip(("src", "trg"), texts))))
  else: left += 1
if left: print("units left out that lack a text in", " or ".join(languages) + ":", left, file=sys.stderr)"##;
/// Units of XLIFF whose target is a translation: of the `LANGUAGE`, or of any if it is empty.
const XLIFF: &str = r##"import json, re, sys, xml.etree.ElementTree as tree
left, other, language = 0, 0, LANGUAGE
for file in ROOT.iterfind(".//{*}file"):
  is_other = language and file.get("target-language", "").lower() != language.lower()
  for unit in [unit for kind in (".//{*}trans-unit", ".//{*}segment") for unit in file.iterfind(kind)]:
    sides = [unit.find(name) for name in ("{*}source", "{*}target")]
    texts = ["" if side is None else "".join(side.itertext()) for side in sides]
    state = " ".join(part.get(key, "") for part in (unit, *sides[1:]) if part is not None for key in ("state", "state-qualifier"))
    is_open = any(word.startswith(("needs-", "new", "initial", "fuzzy")) for word in state.split())
    if is_other: other += 1
    elif is_open or not all(one.strip() for one in texts): left += 1
    else: print(json.dumps(dict(zip(("src", "trg"), texts))))
if left: print("units left out that are not translated yet, by their text or state:", left, file=sys.stderr)
if other: print("units left out in other languages:", other, file=sys.stderr)"##;
/// Sentences of M2 with the corrections of the first annotator.
const M2: &str = r##"import json, re
for block in re.split(r"\n\s*\n", open(0, encoding="utf-8-sig").read()):
  lines = block.strip().splitlines()
  if not lines or not lines[0].startswith("S "): continue
  words, edits = lines[0][2:].split(), [line[2:].split("|||") for line in lines if line.startswith("A ")]
  edits = [(*map(int, edit[0].split()), edit[2]) for edit in edits if edit[1] not in ("noop", "UNK") and edit[-1].strip() == "0"]
  corrected = list(words)
  for start, end, right in sorted(edits, reverse=True): corrected[start:end] = [] if right == "-NONE-" else right.split()
  print(json.dumps({"src": " ".join(words), "trg": " ".join(corrected)}))"##;
/// Reads XML, also text that another program has converted from UTF-16 under its old declaration.
const ROOT: &str =
    r#"tree.fromstring(re.sub(rb"(?i)^(\W*<\?xml[^>]*?)\sencoding=.utf-?16\w*.", rb"\1", open(0, "rb").read()))"#;
/// Bytes of a catalogue in which languages are looked for.
const LOOKED_AT: u64 = 8 << 20;

/// Returns the command that makes rows of the catalogue at `path`, and which languages it takes. `None` if its name does not say that it
/// is one.
pub(super) fn command(path: &Path) -> Option<String> {
    let ending = path.extension()?.to_string_lossy().to_lowercase();
    let (program, said) = match ending.as_str() {
        "po" | "pot" => (PO.to_owned(), String::new()),
        "m2" => (
            M2.to_owned(),
            "\nthat takes the sentences as sources and the corrections of the first annotator as targets".to_owned(),
        ),
        "tmx" => tmx(&beginning(path)),
        "xlf" | "xliff" => xliff(&beginning(path)),
        _ => return None,
    };
    let program = program.replace("ROOT", ROOT);
    Some(format!("python3 -c '{program}' < {} > rows.jsonl{said}", shell_path(path)))
}

/// Returns the beginning of a file; empty if it cannot be read.
fn beginning(path: &Path) -> String {
    let mut text = Vec::new();
    let read = open_file(path).and_then(|file| file.take(LOOKED_AT).read_to_end(&mut text));
    if read.is_ok() { String::from_utf8_lossy(&text).into_owned() } else { String::new() }
}

/// Returns the program for TMX, which picks two languages by their names, and says which.
fn tmx(text: &str) -> (String, String) {
    let languages = languages(text, r#"<(?:\w+:)?tuv\b[^>]*?\s(?:xml:)?lang\s*=\s*["']([^"']+)["']"#);
    if languages.len() < 2 {
        return (TMX.to_owned(), String::new());
    }
    let of_source = Regex::new(r#"\ssrclang\s*=\s*["']([^"']+)["']"#).ok();
    let of_source = of_source.and_then(|name| Some(name.captures(text)?[1].to_lowercase())).unwrap_or_default();
    let base = |name: &str| name.split(['-', '_']).next().unwrap_or(name).to_lowercase();
    let is_source = |name: &&String| name.to_lowercase() == of_source;
    let is_near = |name: &&String| base(name) == base(&of_source);
    let names = || languages.iter().map(|(name, _)| name);
    let Some(source) = names().find(is_source).or_else(|| names().find(is_near)).or_else(|| names().next()) else {
        return (TMX.to_owned(), String::new());
    };
    let others = languages.iter().filter(|(name, _)| name != source).rev();
    let target = others.max_by_key(|(_, n)| *n).map_or("", |(name, _)| name);

    let program = TMX_BY_NAME.replace("LANGUAGES", &format!("({}, {})", quoted(source), quoted(target)));
    let said = match languages.as_slice() {
        [_, _] => format!(
            "\nthat takes {source} as the source and {target} as the target, by xml:lang; exchange the two for the other direction"
        ),
        all => format!(
            "\nthat takes {source} as the source and {target} as the target, by xml:lang, and leaves the other languages out; write two others in \
             their place to take those: it has {}",
            listed(all)
        ),
    };
    (program, said)
}

/// Returns the program for XLIFF, and says which language it takes if there are several.
fn xliff(text: &str) -> (String, String) {
    let languages = languages(text, r#"<(?:\w+:)?file\b[^>]*?\starget-language\s*=\s*["']([^"']+)["']"#);
    match languages.as_slice() {
        [] | [_] => (XLIFF.replace("LANGUAGE", "\"\""), String::new()),
        all => {
            let (first, _) = &all[0];
            let said = format!(
                "\nthat takes {first} as the target, and leaves the other languages out; write another one in its place to take it: it has {}",
                listed(all)
            );
            (XLIFF.replace("LANGUAGE", &quoted(first)), said)
        }
    }
}

/// Returns the names of languages that `pattern` finds, in the order of the file, with how often each stands there.
fn languages(text: &str, pattern: &str) -> Vec<(String, usize)> {
    let mut found: Vec<(String, usize)> = Vec::new();
    for name in Regex::new(pattern).iter().flat_map(|pattern| pattern.captures_iter(text)) {
        match found.iter_mut().find(|(other, _)| other.eq_ignore_ascii_case(&name[1])) {
            Some((_, n)) => *n += 1,
            None => found.push((name[1].to_owned(), 1)),
        }
    }
    found
}

/// Writes a name for Python inside of single quotes.
fn quoted(name: &str) -> String {
    Value::from(name).to_string().replace('\'', "\\u0027")
}

/// Lists languages with their numbers of texts, the most frequent first.
fn listed(languages: &[(String, usize)]) -> String {
    let mut languages = languages.to_vec();
    languages.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    languages.iter().map(|(name, n)| format!("{name} ({n})")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const PO_FILE: &str = r#"msgid ""
msgstr "Language: it\n"

# a remark
#: a.c:3
msgctxt "x"
msgid "open \"%s\""
msgstr ""
"apri "
"\"%s\"\n"

#, c-format, fuzzy
msgid "save"
msgstr "apri"

msgid "file"
msgid_plural "files"
msgstr[0] "file"
msgstr[1] "file"

msgid "not translated"
msgstr ""

#~ msgid "old"
#~ msgstr "vecchio"
"#;

    const TMX_FILE: &str = r#"<?xml version="1.0"?><tmx version="1.4"><header srclang="en"/><body><tu><tuv xml:lang="en">
        <seg>a &lt; b</seg></tuv><tuv xml:lang="it"><seg>c <ph>x</ph> d</seg></tuv></tu><tu><tuv><seg>alone</seg></tuv></tu></body></tmx>"#;

    /// An XLIFF file with a translated and an untranslated unit called `name`.
    fn xliff(version: &str, name: &str) -> String {
        format!(
            "<xliff xmlns=\"urn:oasis:names:tc:xliff:document:{version}\"><file><{name} id=\"1\"><source>cat</source>\
             <target>gatto</target></{name}><{name}><source>dog</source></{name}></file></xliff>"
        )
    }

    #[test]
    fn catalogues_become_rows() {
        let folder = tempfile::tempdir().expect("a folder");
        let cat = "{\"src\": \"cat\", \"trg\": \"gatto\"}\n";
        let open = r#"{"src": "open \"%s\"", "trg": "apri \"%s\"\n"}"#.to_owned() + "\n";
        for (name, text, rows) in [
            ("it's.po", PO_FILE.to_owned(), open.as_str()),
            ("a.tmx", TMX_FILE.to_owned(), "{\"src\": \"a < b\", \"trg\": \"c x d\"}\n"),
            ("a.xlf", xliff("1.2", "trans-unit"), cat),
            ("b.XLIFF", xliff("2.0", "segment"), cat),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("writable");
            let command = command(&path).expect("a catalogue");
            let (command, _) = command.split_once("\nthat takes").unwrap_or((&command, ""));
            let Ok(ran) = Command::new("sh").args(["-c", command]).current_dir(folder.path()).output() else { return };
            // Without Python there is nothing to run.
            if ran.status.code() == Some(127) {
                return;
            }

            assert!(ran.status.success(), "{name}: {}", String::from_utf8_lossy(&ran.stderr));
            assert_eq!(std::fs::read_to_string(folder.path().join("rows.jsonl")).expect("written"), rows, "{name}");
        }
        assert_eq!(command(Path::new("a.txt")), None);
    }

    /// Runs the command of a file, and returns its rows, what it says on stderr, and what was said with it. `None` without Python.
    fn ran(name: &str, text: &str) -> Option<(String, String, String)> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("writable");
        let command = command(&path).expect("a catalogue");
        let (command, said) = command.split_once("\nthat takes ").unwrap_or((&command, ""));
        let ran = Command::new("sh").args(["-c", command]).current_dir(folder.path()).output().ok()?;
        assert!(ran.status.success() || ran.status.code() == Some(127), "{command}: {ran:?}");
        let rows = std::fs::read_to_string(folder.path().join("rows.jsonl")).expect("written");
        let stderr = String::from_utf8_lossy(&ran.stderr).into_owned();
        ran.status.success().then(|| (rows, stderr, said.to_owned()))
    }

    /// A unit of TMX.
    fn unit(texts: &[(&str, &str)]) -> String {
        let side = |(name, text): &(&str, &str)| format!("<tuv xml:lang=\"{name}\"><seg>{text}</seg></tuv>");
        format!("<tu>{}</tu>", texts.iter().map(side).collect::<String>())
    }

    #[test]
    fn languages_are_picked_by_their_names() {
        let units = [
            unit(&[("en", "cat"), ("de", "Katze")]),
            unit(&[("de", "Hund"), ("EN", "dog")]),
            unit(&[("en", "bird"), ("fr", "oiseau")]),
            unit(&[("fr", "porte"), ("de", "Tor"), ("en", "gate")]),
            unit(&[("de", "allein"), ("en", " ")]),
        ];
        for (header, [src, trg]) in [
            ("<header/>", ["en", "de"]),
            ("<header srclang=\"de-DE\"/>", ["de", "en"]),
            ("<header srclang='*all*'/>", ["en", "de"]),
        ] {
            let text = format!("<tmx version='1.4'>{header}<body>{}</body></tmx>", units.concat());
            let Some((rows, stderr, said)) = ran("a.tmx", &text) else { return };
            let wanted: String = [["cat", "Katze"], ["dog", "Hund"], ["gate", "Tor"]]
                .map(|[en, de]| if src == "en" { [en, de] } else { [de, en] })
                .map(|[src, trg]| format!("{{\"src\": \"{src}\", \"trg\": \"{trg}\"}}\n"))
                .concat();
            assert_eq!(rows, wanted, "{header}");
            assert!(stderr.starts_with("units left out that lack a text in") && stderr.ends_with(": 2\n"), "{stderr}");
            assert!(said.starts_with(&format!("{src} as the source and {trg} as the target")), "{said}");
            assert!(said.ends_with("it has en (5), de (4), fr (2)"), "{said}");
        }
    }

    #[test]
    fn targets_that_are_not_translated_are_left_out() {
        let unit = |n: usize, state: &str| {
            format!("<trans-unit><source>cat {n}</source><target{state}>gatto {n}</target></trans-unit>")
        };
        let states = [
            "",
            " state=\"translated\"",
            " state=\"needs-translation\"",
            " state='new'",
            " state='needs-review-translation'",
        ];
        let units: String = states.iter().enumerate().map(|(n, state)| unit(n, state)).collect();
        let empty = "<trans-unit><source>dog</source><target/></trans-unit>";
        let text = format!("<xliff version='1.2'><file target-language='it'>{units}{empty}</file></xliff>");
        let Some((rows, stderr, said)) = ran("a.xlf", &text) else { return };
        assert!(rows.lines().count() == 2 && rows.contains("gatto 0") && rows.contains("gatto 1"), "{rows}");
        assert!(stderr.ends_with("by their text or state: 4\n") && said.is_empty(), "{stderr}");

        let text = text.replace("</file>", &format!("</file><file target-language=\"de\">{}</file>", unit(7, "")));
        let Some((rows, stderr, said)) = ran("a.xlf", &text) else { return };
        assert!(rows.lines().count() == 2 && stderr.contains("in other languages: 1\n"), "{rows}{stderr}");
        assert!(said.starts_with("it as the target") && said.ends_with("it has it (1), de (1)"), "{said}");
        let segment = "<xliff version='2.0'><file><unit><segment state='initial'><source>a</source><target>a</target></segment></unit></file></xliff>";
        let Some((rows, ..)) = ran("b.xliff", segment) else { return };
        assert_eq!(rows, "");
    }

    #[test]
    fn text_that_was_utf_16_is_read_under_its_old_declaration() {
        for name in ["utf-16", "UTF-16LE", "utf-8"] {
            let text = TMX_FILE.replace("version=\"1.0\"", &format!("version=\"1.0\" encoding=\"{name}\""));
            let Some((rows, ..)) = ran("a.tmx", &text) else { return };
            assert_eq!(rows, "{\"src\": \"a < b\", \"trg\": \"c x d\"}\n", "{name}");
        }
    }

    #[test]
    fn entries_of_gettext_that_are_left_out_are_counted() {
        let Some((_, stderr, _)) = ran("a.po", PO_FILE) else { return };
        assert_eq!(stderr, "entries left out: 1 fuzzy, 1 with plural forms, 1 without a translation\n");
    }

    #[test]
    fn sentences_of_m2_are_corrected() {
        let text = "S He go to to school .\nA 1 2|||R:VERB:SVA|||goes|||REQUIRED|||-NONE-|||0\nA 2 3|||U:PREP||||||REQUIRED|||-NONE-|||0\n\
                    A 5 5|||M:ADV|||today|||REQUIRED|||-NONE-|||0\nA 1 2|||R:VERB|||went|||REQUIRED|||-NONE-|||1\n\n\
                    S It is good .\nA -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||0\n";
        let Some((rows, _, said)) = ran("a.m2", text) else { return };
        assert_eq!(
            rows,
            "{\"src\": \"He go to to school .\", \"trg\": \"He goes to school today .\"}\n\
             {\"src\": \"It is good .\", \"trg\": \"It is good .\"}\n"
        );
        assert!(said.starts_with("the sentences as sources"), "{said}");
    }
}
