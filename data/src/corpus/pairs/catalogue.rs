//! Catalogues of translations, which Kiln does not read: the commands that make rows of them.

use std::path::Path;

use crate::terminal::shell_path;

/// Entries of gettext, without those that are marked as fuzzy or that have plurals.
const PO: &str = concat!(
    r##"import json, re; text = open(0, encoding="utf-8").read(); "##,
    r##"joined = lambda part: "".join(json.loads(line, strict=False) for line in re.findall(r"\".*\"", part)); "##,
    r##"entries = [entry for entry in re.split(r"\n\s*\n", text) if not re.search(r"^#,.*fuzzy", entry, re.M)]; "##,
    r##"form = r"^msgid ((?:\".*\"\s*)+)msgstr ((?:\".*\"\s*)+)"; "##,
    r##"found = [pair for entry in entries for pair in re.findall(form, entry, re.M)]; "##,
    r##"[print(json.dumps({"src": joined(a), "trg": joined(b)})) for a, b in found if joined(a) and joined(b)]"##,
);
/// Units of TMX, the first two languages of each.
const TMX: &str = concat!(
    r##"import json, xml.etree.ElementTree as tree; root = tree.parse(open(0, "rb")); "##,
    r##"units = [["".join(side.itertext()) for side in unit.iter("seg")] for unit in root.iter("tu")]; "##,
    r##"[print(json.dumps({"src": unit[0], "trg": unit[1]})) for unit in units if len(unit) > 1]"##,
);
/// Units of XLIFF.
const XLIFF: &str = concat!(
    r##"import json, xml.etree.ElementTree as tree; root = tree.parse(open(0, "rb")); "##,
    r##"units = [unit for kind in (".//{*}trans-unit", ".//{*}segment") for unit in root.iterfind(kind)]; "##,
    r##"pairs = [[unit.find(name) for name in ("{*}source", "{*}target")] for unit in units]; "##,
    r##"[print(json.dumps({"src": "".join(a.itertext()), "trg": "".join(b.itertext())})) for a, b in pairs "##,
    r##"if a is not None and b is not None]"##,
);

/// Returns the command that makes rows of the catalogue at `path`; `None` if its name does not say that it is one.
pub(super) fn command(path: &Path) -> Option<String> {
    let ending = path.extension()?.to_string_lossy().to_lowercase();
    let program = match ending.as_str() {
        "po" | "pot" => PO,
        "tmx" => TMX,
        "xlf" | "xliff" => XLIFF,
        _ => return None,
    };
    Some(format!("python3 -c '{program}' < {} > rows.jsonl", shell_path(path)))
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
            std::fs::write(folder.path().join(name), text).expect("writable");
            let command = command(Path::new(name)).expect("a catalogue");
            let Ok(ran) = Command::new("sh").args(["-c", &command]).current_dir(folder.path()).output() else { return };
            // Without Python there is nothing to run.
            if ran.status.code() == Some(127) {
                return;
            }

            assert!(ran.status.success(), "{name}: {}", String::from_utf8_lossy(&ran.stderr));
            assert_eq!(std::fs::read_to_string(folder.path().join("rows.jsonl")).expect("written"), rows, "{name}");
        }
        assert_eq!(command(Path::new("a.txt")), None);
    }
}
