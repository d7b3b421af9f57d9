//! What texts are by themselves, whatever their field is called: identifiers, addresses, dates, parse trees, tags, marks or nothing.

/// Digits of a hash, at least.
const SHORTEST_HASH: usize = 12;
/// Texts that programs write for a value that is missing.
const NOTHING: [&str; 7] = ["\\n", "none", "null", "nan", "n/a", "#n/a", "undefined"];

/// Names of months and days of the week.
const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const DAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
/// How names of files end.
const ENDINGS: [&str; 38] = [
    "jpg", "jpeg", "png", "gif", "bmp", "webp", "tif", "tiff", "svg", "wav", "mp3", "flac", "ogg", "opus", "m4a",
    "mp4", "avi", "mkv", "mov", "webm", "pdf", "doc", "docx", "txt", "htm", "html", "xml", "json", "jsonl", "csv",
    "tsv", "npy", "pt", "zip", "gz", "parquet", "story", "ann",
];
/// Signs that annotators put round a part of a text.
const MARKS: &str = "[]{}<>|";

/// Whether the text stands for a value that is missing.
pub(super) fn is_nothing(text: &str) -> bool {
    let text = text.trim();
    text.is_empty() || NOTHING.iter().any(|name| name.eq_ignore_ascii_case(text))
}

/// Whether the text says true or false.
pub(super) fn is_boolean(text: &str) -> bool {
    ["true", "false"].iter().any(|name| name.eq_ignore_ascii_case(text.trim()))
}

/// Whether the text is a UUID or a hash.
pub(super) fn is_id(text: &str) -> bool {
    let text = text.trim();
    let groups: Vec<&str> = text.split('-').collect();
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_uuid =
        groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) && groups.iter().all(|group| is_hex(group));
    let is_mixed =
        text.bytes().any(|byte| byte.is_ascii_digit()) && text.bytes().any(|byte| byte.is_ascii_alphabetic());
    is_uuid || text.len() >= SHORTEST_HASH && is_hex(text) && is_mixed
}

/// Reads a number, which may have a decimal comma.
pub(super) fn number(text: &str) -> Option<f64> {
    let text = text.trim();
    let is_decimal = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    match text.split_once(',') {
        Some((whole, part)) if is_decimal(part) && is_decimal(whole.trim_start_matches(['-', '+'])) => {
            format!("{whole}.{part}").parse().ok()
        }
        _ => text.parse().ok(),
    }
}

/// Whether the text is a date, a time or both, in digits.
pub(super) fn is_time(text: &str) -> bool {
    let text = text.trim();
    let n_groups = text.split(|c: char| !c.is_ascii_digit()).filter(|group| !group.is_empty()).count();
    let is_part = |c: char| c.is_ascii_digit() || " .:/-+,TZ".contains(c);
    n_groups > 1
        && text.starts_with(|c: char| c.is_ascii_digit())
        && text.contains([':', '/', '-', '.'])
        && text.chars().all(is_part)
}

/// Whether the text says when something was: a date, a time of day or both, with names of months and days or without.
pub(super) fn is_date(text: &str) -> bool {
    let words: Vec<&str> = text.split([' ', ',', '\t']).filter(|word| !word.is_empty()).collect();
    let numbers: Vec<u32> = words.iter().filter_map(|word| ordinal(word)).collect();
    let is_year = |number: &u32| (1000..2200).contains(number);
    let has_month = words.iter().any(|word| is_of(word, &MONTHS)) && !numbers.is_empty();
    let is_spaced = numbers.len() == 3 && numbers.iter().filter(|number| is_year(number)).count() == 1;
    let is_whole = |word: &&str| is_day_of_year(word) || is_clock(word);
    let is_part = |word: &&str| {
        is_whole(word)
            || ordinal(word).is_some()
            || is_zone(word)
            || [&MONTHS[..], &DAYS].iter().any(|names| is_of(word, names))
    };
    words.iter().all(is_part) && (words.iter().any(is_whole) || has_month || is_spaced)
}

/// Whether a word is one of the names, or begins one with three letters or more.
fn is_of(word: &str, names: &[&str]) -> bool {
    let word = word.trim_end_matches('.').to_lowercase();
    word.len() > 2 && names.iter().any(|name| name.starts_with(word.as_str()))
}

/// Returns the number of a word such as `21` and `3rd`.
fn ordinal(word: &str) -> Option<u32> {
    let digits = word.trim_end_matches(|c: char| c.is_ascii_lowercase() || c == '.');
    let is_number = (1..=4).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_ordinal = ["", ".", "st", "nd", "rd", "th"].contains(&word.get(digits.len()..)?);
    digits.parse().ok().filter(|_| is_number && is_ordinal)
}

/// Whether a word is a time of day, such as `22:10:47.5` and `10:30pm`.
fn is_clock(word: &str) -> bool {
    let word = word.to_lowercase();
    let word = word.trim_end_matches(['z', 'm', 'a', 'p']);
    let clock = word.split_once(['+', '-']).map_or(word, |(clock, _)| clock);
    let parts: Vec<&str> = clock.split([':', '.']).collect();
    let is_part = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    clock.contains(':') && parts.iter().all(is_part) && parts[..2].iter().all(|part| part.len() < 3)
}

/// Whether a word is a date in digits, with a time behind a `T` or without, such as `2016-01-01` and `05/09/16`.
fn is_day_of_year(word: &str) -> bool {
    let (day, time) = word.split_once('T').map_or((word, None), |(day, time)| (day, Some(time)));
    let Some(divider) = ['-', '/', '.'].into_iter().find(|divider| day.contains(*divider)) else { return false };
    let parts: Vec<&str> = day.split(divider).collect();
    let is_number = |part: &&str| part.len() < 5 && part.parse::<u16>().is_ok() || is_of(part, &MONTHS);
    let n_years = parts.iter().filter(|part| part.len() == 4).count();
    let is_whole = parts.len() == 3 || parts.len() == 2 && divider == '-' && n_years == 1 && parts[1].len() == 2;
    is_whole && n_years < 2 && parts.iter().all(is_number) && time.is_none_or(is_clock)
}

/// Whether a word names a zone of time, such as `UTC` and `+0000`.
fn is_zone(word: &str) -> bool {
    let zones =
        ["utc", "gmt", "pdt", "pst", "edt", "est", "cdt", "cst", "mdt", "mst", "cet", "cest", "bst", "am", "pm"];
    let offset = word.strip_prefix(['+', '-']).map(|digits| digits.replace(':', ""));
    let is_offset = |digits: &String| digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit());
    zones.contains(&word.to_lowercase().as_str()) || offset.as_ref().is_some_and(is_offset)
}

/// Whether the text is the address of a page, a mail or the like.
fn is_address(text: &str) -> bool {
    let text = text.trim();
    let begins = |start: &&str| text.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start));
    let is_mail = || text.split_once('@').is_some_and(|(name, host)| !name.is_empty() && host.contains('.'));
    let is_word = !text.contains(char::is_whitespace);
    is_word && (["http://", "https://", "ftp://", "www.", "mailto:"].iter().any(begins) || is_mail())
}

/// Whether the text is the name of a file: one word that ends as such names do.
fn is_file_name(text: &str) -> bool {
    let text = text.trim();
    let ending = text.rsplit_once('.').filter(|(stem, _)| !stem.is_empty() && !stem.ends_with(['/', '\\']));
    let is_word = !text.contains(char::is_whitespace);
    is_word && ending.is_some_and(|(_, ending)| ENDINGS.contains(&ending.to_lowercase().as_str()))
}

/// Whether the text only says where something is: an address or the name of a file.
pub(super) fn is_place(text: &str) -> bool {
    is_address(text) || is_file_name(text)
}

/// Whether `other` has all words of `text` in their order, with marks between them, such as `[place : rome]`.
pub(super) fn is_annotated(text: &str, other: &str) -> bool {
    fn words(text: &str) -> impl Iterator<Item = &str> {
        text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty())
    }
    let n_marks = |text: &str| text.chars().filter(|c| MARKS.contains(*c)).count();
    let mut others = words(other);
    let has_all = words(text).all(|word| others.any(|other| other == word));
    has_all && n_marks(other) > n_marks(text)
}

/// Whether the text is a sentence with the brackets of a parse tree.
pub(super) fn is_parse(text: &str) -> bool {
    let text = text.trim();
    let count = |bracket: char| text.matches(bracket).count();
    text.starts_with('(') && text.ends_with(')') && count('(') > 1 && count('(') == count(')')
}

/// Whether the text consists of tags of words, such as `O B-city I-city`.
pub(super) fn are_tags(text: &str) -> bool {
    let is_tag = |word: &str| {
        word == "O" || word.len() > 2 && matches!(word.as_bytes(), [b'B' | b'I' | b'E' | b'S' | b'L' | b'U', b'-', ..])
    };
    let words: Vec<&str> =
        text.split(|c: char| c.is_whitespace() || ",;|".contains(c)).filter(|word| !word.is_empty()).collect();
    words.len() > 1 && words.iter().all(|word| is_tag(word))
}

/// Returns the texts of a JSON list that is written in a text; `None` for other texts and for lists of other values.
pub(super) fn written_texts(text: &str) -> Option<Vec<String>> {
    let text = text.trim();
    let list: Vec<String> = text.starts_with('[').then(|| serde_json::from_str(text).ok()).flatten()?;
    (!list.is_empty()).then_some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_say_what_they_are() {
        for text in ["6f1d4c1e-0c5e-4b1a-9a53-0123456789ab", "0000997932d777bf", "872bbe24868e1f7a5b7c"] {
            assert!(is_id(text), "{text}");
        }
        for text in ["1999-05-03", "742105000000000", "acgtacgtacgtacgt", "deadbeef", "the 3 of them", "C6H12O6"] {
            assert!(!is_id(text), "{text}");
        }

        for text in [
            "Tue Oct 31 22:10:47 +0000 2017",
            "Mon Apr 06 22:19:45 PDT 2009",
            "05 21, 2014",
            "2016-01-01T00:00:00.000Z",
            "2016-01-01 10:30:00+02:00",
            "saturday 9 may 1998",
            "May 3rd, 2019",
            "01.02.2024",
            "05/09/16",
            "01-Jan-2020",
            "2019-05",
            "10:30 PM",
        ] {
            assert!(is_date(text), "{text}");
        }

        for text in [
            "",
            "1999",
            "12-34",
            "3.14",
            "12 + 34",
            "May I",
            "march",
            "may be 3 of them",
            "1 2 3",
            "1.2.3.4",
            "3:2:1:0 goals",
            "a 2016-01-01",
        ] {
            assert!(!is_date(text), "{text}");
        }

        for text in
            ["http://en.wikipedia.org/wiki/Priya_Milan", "www.a.org", "ada@example.org", "0.jpg", "train/a/17.WAV"]
        {
            assert!(is_place(text), "{text}");
        }
        for text in ["see http://a.org", "foo.bar", "@ada hello", "end.Then", ".txt", "a dog.jpg is here", "README"] {
            assert!(!is_place(text), "{text}");
        }

        assert!(is_annotated("is it raining in rome", "is it raining in [place_name : rome]"));
        assert!(is_annotated("rome is big", "<place>rome</place> is big") && !is_annotated("a [b] c", "a [b] c d"));
        assert!(!is_annotated("a dog runs", "a [animal : cat] runs") && !is_annotated("a dog", "a dog runs"));
        assert!(is_parse("( ( a b ) . )") && is_parse("(ROOT (S (NP a)))") && !is_parse("(a remark)"));
        assert!(are_tags("O O B-city") && are_tags("O,B-PER") && !are_tags("O") && !are_tags("O dear"));
        assert!(is_nothing(" None ") && is_nothing("") && !is_nothing("none of them"));
        assert_eq!(written_texts(r#"["a", "b c"]"#), Some(vec!["a".to_owned(), "b c".to_owned()]));
        assert!([r#"[{"a": 1}]"#, "[]", "[x]", "a"].iter().all(|text| written_texts(text).is_none()));
    }
}
