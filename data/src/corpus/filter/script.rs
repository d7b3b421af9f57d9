//! Scripts of letters, by the names that Unicode gives them.

use regex_syntax::hir::{Class, ClassUnicode, HirKind};

/// One or several scripts.
#[derive(Debug, Clone)]
pub(super) struct Script {
    /// Their characters as ranges, sorted.
    ranges: Vec<(char, char)>,
    /// Whether each ASCII character is in them.
    ascii: [bool; 128],
}

impl Script {
    /// Finds scripts by their names; `None` without names.
    ///
    /// # Errors
    ///
    /// What is wrong with a name.
    pub(super) fn of(names: &[String]) -> Result<Option<Self>, String> {
        if names.is_empty() {
            return Ok(None);
        }
        let mut all = ClassUnicode::empty();
        for name in names {
            all.union(&class(name).ok_or_else(|| {
                format!(
                    "names {name:?}, which is not a script of Unicode; Latin, Cyrillic, Greek, Arabic, Hebrew, Devanagari, Han, \
                     Hiragana, Katakana and Hangul are some"
                )
            })?);
        }
        let ranges: Vec<(char, char)> = all.ranges().iter().map(|range| (range.start(), range.end())).collect();
        let mut ascii = [false; 128];
        (0..128_u8).for_each(|byte| ascii[usize::from(byte)] = contains(&ranges, char::from(byte)));
        Ok(Some(Self { ranges, ascii }))
    }

    /// Returns the fraction of the letters in `text` that belong to the scripts; `None` without letters.
    pub(super) fn share_in(&self, text: &str) -> Option<f64> {
        let (mut letters, mut inside) = (0_u64, 0_u64);
        for letter in text.chars().filter(|c| c.is_alphabetic()) {
            letters += 1;
            inside += u64::from(self.has(letter));
        }
        (letters > 0).then(|| inside as f64 / letters as f64)
    }

    fn has(&self, letter: char) -> bool {
        match self.ascii.get(letter as usize) {
            Some(is_inside) => *is_inside,
            None => contains(&self.ranges, letter),
        }
    }
}

fn contains(ranges: &[(char, char)], letter: char) -> bool {
    let at = ranges.partition_point(|(_, end)| *end < letter);
    ranges.get(at).is_some_and(|(start, _)| *start <= letter)
}

/// Returns the characters of a script.
fn class(name: &str) -> Option<ClassUnicode> {
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphabetic() || c == '_');
    if !is_name {
        return None;
    }
    match regex_syntax::parse(&format!(r"\p{{script={name}}}")).ok()?.into_kind() {
        HirKind::Class(Class::Unicode(class)) => Some(class),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(names: &[&str], text: &str) -> Option<f64> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        Script::of(&names).expect("known names").expect("names").share_in(text)
    }

    #[test]
    fn letters_are_counted_and_nothing_else() {
        assert_eq!(share(&["Latin"], "Il caffè, 3,50 €!"), Some(1.0));
        assert_eq!(share(&["Latin"], "да no"), Some(0.5));
        assert_eq!(share(&["Cyrillic"], "да, да: 12"), Some(1.0));
        assert_eq!(share(&["Latin"], "12:30 - 14:00 ☂"), None);
        assert_eq!(share(&["Han"], "日本語のテキスト"), Some(3.0 / 8.0));
        assert_eq!(share(&["Han", "Hiragana", "Katakana"], "日本語のテキスト"), Some(1.0));
        // Names are as loose as Unicode's: upper and lower case do not differ, and short ones are known.
        assert_eq!((share(&["latin"], "a"), share(&["Grek"], "α")), (Some(1.0), Some(1.0)));
    }

    #[test]
    fn unknown_names_are_refused() {
        for name in ["Italian", "", "Latin}|[^x", "L", "Klingonish"] {
            let error = Script::of(&[name.to_owned()]).expect_err(name);
            assert!(error.contains("is not a script of Unicode; Latin, "), "{error}");
        }
        assert!(Script::of(&[]).expect("no name").is_none());
    }
}
