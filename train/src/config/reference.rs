//! The configuration with a comment for each key. The comments come from `docs/configuration.md`, which a test compares
//! with the code.

use toml::Table;

use super::Resolved;
use super::length::Shortened;
use super::resolve::{Base, Chosen};

/// The page that describes every key.
const PAGE: &str = include_str!("configuration.md");

/// Columns of a comment.
const WIDTH: usize = 100;

/// A key and its description on the page.
pub(super) struct KeyDoc<'a> {
    /// In full, such as `data.corpus.format`.
    pub(super) key: &'a str,
    /// Its default in the preset `base`; `unset` if it has none.
    pub(super) default: &'a str,
    unit: &'a str,
    meaning: &'a str,
}

/// Returns the keys of the page, in its order.
pub(super) fn page() -> impl Iterator<Item = KeyDoc<'static>> {
    let tables = PAGE.split("\n| key | default | unit | meaning |\n").skip(1);
    tables.flat_map(|table| table.lines().skip(1).take_while(|line| line.starts_with('|'))).map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [key, default, unit, meaning] = *cells.as_slice() else { panic!("four cells, found {line}") };
        KeyDoc { key: key.trim_matches('`'), default: default.trim_matches('`'), unit, meaning }
    })
}

impl Resolved {
    /// Returns a configuration file that describes every key. The keys that the user set are set in it; all others are
    /// commented out and show their defaults.
    pub fn commented(&self) -> String {
        let values = Table::try_from(&self.config).expect("a configuration has string keys and plain values");
        let preset = self.base.preset();
        // The file names the preset, which has other values of these keys.
        let is_shortened = matches!(&self.base, Base::Chosen(Chosen { shortened: Some(_), .. }));
        let is_written = |key: &str| self.set.contains(key) || (is_shortened && Shortened::changes(key));

        let mut text = String::from(
            "# Every key of the configuration. Lines such as `#lr = 0.0007` show defaults: remove the # to set the key.\n\
             # kiln train --config FILE reads this file.\n",
        );
        let mut section = "";
        for KeyDoc { key, default, unit, meaning } in page() {
            let (own_section, name) = key.rsplit_once('.').unwrap_or(("", key));
            if own_section != section {
                section = own_section;
                text += &format!("\n[{section}]\n");
            }
            let value = super::resolve::lookup(&values, key);
            let unset = if value.is_none() && key != "preset" { default } else { "" };
            let facts: Vec<&str> = [unit, unset].into_iter().filter(|fact| !fact.is_empty()).collect();
            let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join(", ")) };
            text += &comment(&format!("{meaning}{facts}"));
            text += &match (key, preset, value) {
                ("preset", Some(preset), _) => format!("preset = \"{preset}\"\n"),
                (_, _, Some(value)) if is_written(key) => format!("{name} = {value}\n"),
                (_, _, Some(value)) => format!("#{name} = {value}\n"),
                (_, _, None) => format!("#{name} =\n"),
            };
        }
        text
    }
}

/// Returns `text` as lines of comments.
fn comment(text: &str) -> String {
    let mut lines = vec![String::from("\n#")];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("never empty");
        if line.len() + 1 + word.len() > WIDTH {
            lines.push(format!("# {word}"));
        } else {
            line.push(' ');
            line.push_str(word);
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::{Config, Preset, Sources, resolve};

    fn resolved(preset: Preset, set: &[&str]) -> Resolved {
        let set = set.iter().map(|&set| set.to_owned()).collect();
        resolve(&Sources { preset: Some(preset.name().into()), set, ..Sources::default() }).expect("valid")
    }

    /// Loads a text as `--config` does.
    fn load_text(text: &str) -> Config {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("run.toml");
        fs::write(&file, text).expect("writable");
        crate::config::load(&Sources { file: Some(file), ..Sources::default() })
            .unwrap_or_else(|e| panic!("{e}\n{text}"))
    }

    #[test]
    fn the_commented_configuration_has_every_key_and_gives_its_preset() {
        for preset in Preset::ALL {
            let text = resolved(preset, &[]).commented();
            assert_eq!(load_text(&text), preset.config(), "{preset}");

            // With every default set, it is the same configuration.
            let uncommented: String = text
                .lines()
                .filter(|line| !line.starts_with("# ") && !line.ends_with(" ="))
                .fold(String::new(), |all, line| all + line.trim_start_matches('#') + "\n");
            assert_eq!(load_text(&uncommented), preset.config(), "{preset}:\n{uncommented}");
            for KeyDoc { key, .. } in page() {
                let name = key.rsplit('.').next().unwrap_or(key);
                let is_there = |line: &str| line.trim_start_matches('#').starts_with(&format!("{name} ="));
                assert!(text.lines().any(is_there), "{preset}: {key} is missing");
            }
        }
    }

    #[test]
    fn keys_that_are_set_are_set_in_it() {
        let set = ["data.train=pairs.tsv", "train.steps=500", "data.corpus.header=yes", "data.cache_dir=cache"];
        let resolved = resolved(Preset::Small, &set);
        let text = resolved.commented();
        for line in [
            "preset = \"small\"",
            "train = [\"pairs.tsv\"]",
            "steps = 500",
            "header = \"yes\"",
            "cache_dir = \"cache\"",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert_eq!(load_text(&text), resolved.config);
        assert!(text.lines().all(|line| line.len() <= WIDTH + 20), "{text}");
    }
}
