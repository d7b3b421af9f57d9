use super::*;

fn filter(change: impl FnOnce(&mut FilterConfig), rows: FilteredRows) -> Arc<RowFilter> {
    let mut config = FilterConfig::default();
    change(&mut config);
    RowFilter::new(&config, None, rows).expect("valid").expect("it drops rows")
}

/// The key that drops a pair, with what it has found; empty if none does.
fn pair(change: impl FnOnce(&mut FilterConfig), source: &str, target: &str) -> String {
    said(filter(change, FilteredRows::Pairs).check_pair(source, target))
}

fn text(change: impl FnOnce(&mut FilterConfig), text: &str) -> String {
    said(filter(change, FilteredRows::Texts).check_text(text))
}

fn said(result: Result<(), RowProblem>) -> String {
    match result {
        Ok(()) => String::new(),
        Err(RowProblem::Filtered { filter, found }) => format!("{filter}: {found}"),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn lengths_count_words_or_characters_of_each_side() {
    let limits = |f: &mut FilterConfig| (f.min_length, f.max_length) = (2, 3);
    for (source, target, wanted) in [
        ("one two", "uno due tre", ""),
        ("one", "uno due", "min_length: the source has 1 word: \"one\""),
        ("one  two", " uno ", "min_length: the target has 1 word: \" uno \""),
        ("a b c d", "uno due", "max_length: the source has 4 words: \"a b c d\""),
        ("a b", "uno\tdue tre quattro", "max_length: the target has 4 words: \"uno\\tdue tre quattro\""),
    ] {
        assert_eq!(pair(limits, source, target), wanted);
    }
    let characters =
        |f: &mut FilterConfig| (f.length_unit, f.min_length, f.max_length) = (LengthUnit::Characters, 2, 4);
    assert_eq!(text(characters, "日本語"), "");
    assert_eq!(text(characters, "é"), "min_length: the text has 1 character: \"é\"");
    assert_eq!(text(characters, "a b c"), "max_length: the text has 5 characters: \"a b c\"");
}

#[test]
fn the_ratio_is_the_same_in_both_directions_and_its_limit_passes() {
    let ratio = |f: &mut FilterConfig| f.max_length_ratio = 2.0;
    assert_eq!(pair(ratio, "a b", "a b c d"), "");
    assert_eq!(pair(ratio, "a b c d", "a b"), "");
    let wanted = "max_length_ratio: the sides have 2 words and 5 words: \"a b\" and \"a b c d e\"";
    assert_eq!(pair(ratio, "a b", "a b c d e"), wanted);
    assert!(pair(ratio, "a b c d e", "a b").starts_with("max_length_ratio: the sides have 5 words and 2 words"));
}

#[test]
fn equal_sides_and_scripts_are_found() {
    let identical = |f: &mut FilterConfig| f.drop_identical = true;
    assert_eq!(pair(identical, "Roma", "Rome"), "");
    assert_eq!(pair(identical, "Roma", "roma"), "", "letters differ in case");
    assert_eq!(pair(identical, "Roma ", " Roma"), "drop_identical: both sides are \"Roma \"");

    let scripts =
        |f: &mut FilterConfig| (f.source_script, f.target_script) = (vec!["Latin".into()], vec!["Greek".into()]);
    assert_eq!(
        pair(scripts, "two words", "δύο words"),
        "target_script: 38 % of the letters of the target are in the script: \"δύο words\""
    );
    assert_eq!(pair(scripts, "two words", "δύο λέξεις"), "");
    assert!(pair(scripts, "δύο", "δύο").starts_with("source_script: 0 % of the letters of the source"));
    assert_eq!(pair(scripts, "12", "12"), "", "no letters");
    let all_latin = |f: &mut FilterConfig| (f.script, f.min_script_share) = (vec!["Latin".into()], 1.0);
    assert_eq!(text(all_latin, "only Latin"), "");
    assert!(text(all_latin, "almost only Latinα").starts_with("script: 94 % of the letters of the text"));
}

#[test]
fn regular_expressions_drop_or_keep() {
    let drop = |f: &mut FilterConfig| f.drop_regex = r"https?://\S+".into();
    assert_eq!(pair(drop, "no link", "nessuno"), "");
    let wanted = "drop_regex: the target has \"http://x.y\": \"vedi http://x.y qui\"";
    assert_eq!(pair(drop, "see here", "vedi http://x.y qui"), wanted);
    let keep = |f: &mut FilterConfig| f.keep_regex = r"[.!?]$".into();
    assert_eq!(pair(keep, "Yes.", "Sì!"), "");
    assert_eq!(pair(keep, "Yes.", "Sì"), "keep_regex: the target has no match: \"Sì\"");
    assert_eq!(text(keep, "Well"), "keep_regex: the text has no match: \"Well\"");
    let long = format!("{}é", "x".repeat(200));
    assert_eq!(text(keep, &long), format!("keep_regex: the text has no match: \"{}\" ..", "x".repeat(60)));
}

#[test]
fn keys_are_asked_in_one_order() {
    let all = |f: &mut FilterConfig| {
        *f = FilterConfig {
            min_length: 2,
            max_length_ratio: 1.5,
            drop_identical: true,
            source_script: vec!["Latin".into()],
            drop_regex: "x".into(),
            ..FilterConfig::default()
        };
    };
    let key = |source: &str, target: &str| pair(all, source, target).split(':').next().unwrap_or_default().to_owned();
    assert_eq!(key("я", "я"), "min_length");
    assert_eq!(key("я x", "a b c d"), "max_length_ratio");
    assert_eq!(key("я x", "я x"), "drop_identical");
    assert_eq!(key("яяя x", "b x"), "source_script");
    assert_eq!(key("a x", "b c"), "drop_regex");
    assert_eq!(key("a y", "b c"), "");
}

#[test]
fn a_mark_names_what_is_set_and_an_empty_filter_is_none() {
    let unused = FilterConfig { min_script_share: 0.9, length_unit: LengthUnit::Characters, ..FilterConfig::default() };
    assert!(RowFilter::new(&unused, None, FilteredRows::Pairs).expect("valid").is_none());
    let both = filter(|f| (f.min_length, f.drop_duplicates) = (3, true), FilteredRows::Texts);
    assert_eq!(both.mark(), r#"{"drop_duplicates":true,"min_length":3}"#);
    assert_eq!((both.mark_of_texts(), both.drops_duplicates()), (r#"{"min_length":3}"#.into(), true));
    let one = filter(|f| f.drop_duplicates = true, FilteredRows::Texts);
    assert_eq!(one.mark_of_texts(), "");
    let error =
        RowFilter::new(&FilterConfig { drop_identical: true, ..FilterConfig::default() }, None, FilteredRows::Texts);
    assert!(error.expect_err("of pairs").to_string().starts_with("data.filter.drop_identical compares"));
}

#[test]
fn hashes_know_the_borders_of_texts() {
    assert_eq!(row_hash(["ab", "c"]), row_hash(["ab", "c"]));
    assert_ne!(row_hash(["ab", "c"]), row_hash(["a", "bc"]));
    assert_ne!(row_hash(["a", ""]), row_hash(["a"]));
}
