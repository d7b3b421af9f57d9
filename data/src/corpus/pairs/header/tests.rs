use super::*;

fn find_in(rows: &[&[&str]], config: &CorpusConfig) -> Result<Found> {
    let row = |row: &&[&str]| row.iter().map(|cell| (*cell).to_owned()).collect();
    Columns::find(Path::new("a.tsv"), &rows.iter().map(row).collect::<Vec<Vec<String>>>(), config)
}

fn find(row: &[&str], config: &CorpusConfig) -> Result<Columns> {
    let rows = [row];
    Ok(find_in(&rows[usize::from(row.is_empty())..], config)?.columns)
}

fn columns(source: usize, target: usize, header: bool) -> Columns {
    Columns { source, target, header }
}

#[test]
fn a_header_with_the_named_fields_is_used() {
    let config = CorpusConfig::default();
    assert_eq!(find(&["id", "trg", " src "], &config).expect("found"), columns(2, 1, true));
    let named = CorpusConfig { source_field: "domanda".into(), target_field: "risposta".into(), ..config.clone() };
    assert_eq!(find(&["risposta", "domanda"], &named).expect("found"), columns(1, 0, true));
    let by_number = CorpusConfig { source_column: 1, target_column: 0, ..config };
    assert_eq!(find(&["src", "trg"], &by_number).expect("found"), columns(1, 0, true));
}

#[test]
fn what_looks_like_a_header_is_asked_about_with_flags_to_paste() {
    let flags = |row: &[&str]| find(row, &CorpusConfig::default()).expect_err("asked").to_string();
    for (row, source, target) in [
        (["english", "italian"].as_slice(), "english", "italian"),
        (&["id", "Source", "Target"], "Source", "Target"),
        (&["", "en", "it"], "en", "it"),
        (&["target_text", "source_text"], "source_text", "target_text"),
        (&["en-US", "it_IT", "score"], "en-US", "it_IT"),
        (&["translation", "sentence"], "sentence", "translation"),
    ] {
        let text = flags(row);
        let wanted = format!("--set data.corpus.source_field={source} --set data.corpus.target_field={target}");
        assert!(text.contains("looks like a header") && text.contains(&wanted), "{text}");
        assert!(text.contains("if it is a pair: --set data.corpus.header=no"), "{text}");
    }
    assert!(flags(&["source text", "target text"]).contains("--set 'data.corpus.source_field=source text'"));
    let numbered = CorpusConfig { source_column: 1, target_column: 2, ..CorpusConfig::default() };
    let text = find(&["id", "en", "it"], &numbered).expect_err("asked").to_string();
    assert!(text.contains("if it names the columns: --set data.corpus.header=yes"), "{text}");
    // One of the fields that the user named is there, the other has a typo.
    let typo = CorpusConfig { source_field: "frase".into(), target_field: "resa".into(), ..CorpusConfig::default() };
    assert!(find(&["frase", "reso"], &typo).is_err());
}

#[test]
fn one_usual_name_above_sentences_is_enough_to_ask() {
    let sentences: Vec<&[&str]> = vec![&["The cat sleeps.", "Il gatto dorme."]; 6];
    let with = |first: &'static [&'static str]| find_in(&[&[first], &sentences[..]].concat(), &CorpusConfig::default());
    let text = with(&["english", "italiano"]).expect_err("asked").to_string();
    assert!(text.contains("source_field=english --set data.corpus.target_field=italiano"), "{text}");
    // Words above words may be a pair of a dictionary.
    let words: Vec<&[&str]> = vec![&["dog", "cane"]; 6];
    assert!(find_in(&[&[&["it", "esso"] as &[&str]], &words[..]].concat(), &CorpusConfig::default()).is_ok());
}

#[test]
fn ordinary_rows_are_pairs() {
    for row in [
        ["Good morning.", "Buongiorno."],
        ["dog", "cane"],
        ["742105", "seven hundred forty-two thousand one hundred five"],
        ["ab", "ba"],
        ["The source", "La fonte"],
        ["it", "esso"],
        ["", ""],
    ] {
        assert_eq!(find(&row, &CorpusConfig::default()).expect("a pair"), columns(0, 1, false), "{row:?}");
    }
    assert_eq!(find(&[], &CorpusConfig::default()).expect("an empty file"), columns(0, 1, false));
}

#[test]
fn a_word_above_dates_or_numbers_is_asked_about() {
    let config = CorpusConfig::default();
    let dates = [["3 May 1999", "the third of May"]; 5];
    let rows = |first: [&'static str; 2]| -> Vec<[&str; 2]> { [&[first][..], &dates].concat() };
    let found = |rows: &[[&str; 2]]| {
        let rows: Vec<&[&str]> = rows.iter().map(<[&str; 2]>::as_slice).collect();
        find_in(&rows, &config)
    };
    let text = found(&rows(["date", "words"])).expect_err("asked").to_string();
    let flags = "--set data.corpus.source_field=date --set data.corpus.target_field=words";
    assert!(text.contains("looks like a header: \"date\", \"words\"") && text.contains(flags), "{text}");
    for first in [["May 4", "the fourth of May"], ["today", "the day on which it is said, not any other"]] {
        assert!(found(&rows(first)).expect("a pair").notes.is_empty(), "{first:?}");
    }
    assert!(found(&rows(["date", "words"])[..4]).is_ok(), "too few rows to be sure");
    let no = CorpusConfig { header: Header::No, ..config.clone() };
    let all = rows(["date", "words"]);
    let all: Vec<&[&str]> = all.iter().map(<[&str; 2]>::as_slice).collect();
    assert_eq!(find_in(&all, &no).expect("a pair").notes, Vec::<String>::new());
}

#[test]
fn what_was_decided_without_being_sure_is_said() {
    let config = CorpusConfig::default();
    let sentences: [&[&str]; 5] = [&["How are you?", "Come stai?"]; 5];
    let note = |first: &[&str], others: &[&[&str]]| {
        let rows = [&[first][..], others].concat();
        find_in(&rows, &config).expect("a pair").notes
    };
    let notes = note(&["domanda", "risposta"], &sentences);
    assert_eq!(
        notes,
        ["first row of a.tsv (\"domanda\", \"risposta\") is taken as a pair; if it names the columns: --set \
          data.corpus.source_field=domanda --set data.corpus.target_field=risposta"]
    );
    assert!(note(&["Good morning.", "Buongiorno."], &sentences).is_empty());
    // A dictionary consists of words.
    let words: [&[&str]; 5] = [&["cat", "gatto"]; 5];
    assert!(note(&["dog", "cane"], &words).is_empty());
    let mixed = [&sentences[..], &words[..1]].concat();
    assert!(note(&["dog", "cane"], &mixed).is_empty());
}

#[test]
fn further_columns_are_said_unless_some_are_chosen() {
    let config = CorpusConfig::default();
    let rows: [&[&str]; 2] = [&["greeting", "Good morning.", "Buongiorno."], &["thanks", "Thanks.", "Grazie."]];
    let notes = find_in(&rows, &config).expect("a pair").notes;
    let wanted = "a.tsv has 3 columns: 0 is the source and 1 the target, counted from 0; for the last two with texts: --set data.corpus.source_column=1 ";
    assert!(notes.len() == 1 && notes[0].starts_with(wanted), "{notes:?}");
    let behind: [&[&str]; 2] = [&["Good morning.", "Buongiorno.", "0.9"], &["Thanks.", "Grazie.", "0.7"]];
    let notes = find_in(&behind, &config).expect("a pair").notes;
    assert!(
        notes.len() == 1 && notes[0].ends_with("1 the target, counted from 0"),
        "numbers are not offered: {notes:?}"
    );
    let chosen = CorpusConfig { source_column: 1, target_column: 2, ..config.clone() };
    assert!(find_in(&rows, &chosen).expect("a pair").notes.is_empty());
    assert!(find_in(&[&["id", "src", "trg"]], &config).expect("named").notes.is_empty());
}

#[test]
fn columns_without_texts_are_passed_over() {
    let found = |cells: fn(usize) -> Vec<String>, config: &CorpusConfig| {
        let rows: Vec<Vec<String>> = (0..8).map(cells).collect();
        Columns::find(Path::new("a.tsv"), &rows, config).expect("pairs")
    };
    let numbers = |n: usize| vec![n.to_string(), format!("cat {n}"), (n + 50).to_string(), format!("gatto {n}")];
    let codes = |n: usize| vec![n.to_string(), "eng".into(), format!("cat {n}"), "ita".into(), format!("gatto {n}")];
    let links = |n: usize| vec![format!("cat {n}"), format!("https://a.org/{n}"), format!("gatto {n}")];
    let config = CorpusConfig::default();
    for (cells, source, target) in [
        (numbers as fn(usize) -> Vec<String>, 1, 3),
        (codes, 2, 4),
        (links, 0, 2),
        (|n| vec![n.to_string(), format!("cat {n}")], 0, 1),
    ] {
        assert_eq!(found(cells, &config).columns, columns(source, target, false));
    }

    let note = found(numbers, &config).notes.remove(0);
    let wanted = "1 is the source and 3 the target, counted from 0, because 0, 2 have no texts; to read 0 and 1: --set data.corpus.header=no";
    assert!(note.ends_with(wanted), "{note}");
    // Who asks for the usual columns gets them.
    let no = CorpusConfig { header: Header::No, ..config.clone() };
    let asked = found(numbers, &no);
    assert_eq!(asked.columns, columns(0, 1, false));
    let flags = "for those with texts: --set data.corpus.source_column=1 --set data.corpus.target_column=3";
    assert!(asked.notes[0].ends_with(flags), "{:?}", asked.notes);
    let chosen = CorpusConfig { source_column: 2, target_column: 3, ..config };
    assert_eq!(found(numbers, &chosen).columns, columns(2, 3, false));
}

#[test]
fn the_configuration_decides_if_it_says_yes_or_no() {
    let no = CorpusConfig { header: Header::No, ..CorpusConfig::default() };
    assert_eq!(find(&["src", "trg"], &no).expect("a pair"), columns(0, 1, false));
    let yes = CorpusConfig { header: Header::Yes, ..CorpusConfig::default() };
    let text = find(&["id", "english", "german"], &yes).expect_err("no such columns").to_string();
    assert!(
        text.starts_with("a.tsv: the header has no column \"src\": it has \"id\", \"english\", \"german\""),
        "{text}"
    );
    assert!(text.contains("--set data.corpus.source_field=english --set data.corpus.target_field=german"), "{text}");
    let numbered = CorpusConfig { source_column: 1, target_column: 0, ..yes };
    assert_eq!(find(&["domanda", "risposta"], &numbered).expect("by number"), columns(1, 0, true));
}

#[test]
fn columns_by_number_are_found_below_headers_of_any_names() {
    // The configuration does not tell whether 0 and 1 are set or the default ones.
    let yes = CorpusConfig { header: Header::Yes, ..CorpusConfig::default() };
    for header in [&["IUPAC name", "Formula", "CAS"] as &[&str], &["English", "German"], &["src", "Deutsch"]] {
        let found = find_in(&[header, &["a", "b", "c"][..header.len()]], &yes).expect("by number");
        assert_eq!(found.columns, columns(0, 1, true), "{header:?}");
        let wanted = format!("column 0 (\"{}\") is the source and column 1 (\"{}\") the target", header[0], header[1]);
        assert!(found.notes.iter().any(|note| note.contains(&wanted)), "{:?}", found.notes);
    }
}

/// Rows of a table whose first column is a number.
const NUMBERED: [&[&str]; 6] = [&["17", "Smith & Co.", "3 May 1999", "1999-05-03"]; 6];

fn named(source: &str, target: &str) -> CorpusConfig {
    CorpusConfig { source_field: source.into(), target_field: target.into(), ..CorpusConfig::default() }
}

#[test]
fn names_that_the_user_has_set_are_never_ignored() {
    let header: &[&str] = &["No", "Customer", "Date (text)", "Date ISO"];
    let rows = [&[header][..], &NUMBERED].concat();
    assert_eq!(find_in(&rows, &named("Date (text)", "Date ISO")).expect("named").columns, columns(2, 3, true));
    for (source, target, missing, flags) in [
        ("Date", "ISO", "Date", "'data.corpus.source_field=Date (text)' --set 'data.corpus.target_field=Date ISO'"),
        ("date_text", "Date ISO", "date_text", "--set 'data.corpus.source_field=Date (text)' --set"),
        ("No", "src", "src", "--set data.corpus.source_field=No --set data.corpus.target_field=NAME"),
    ] {
        let text = find_in(&rows, &named(source, target)).expect_err("a missing column").to_string();
        let wanted = format!("the first row has no column \"{missing}\": it has \"No\", \"Customer\"");
        assert!(text.contains(&wanted) && text.contains(flags), "{text}");
        let pair = "if the first row is a pair, without the names of columns: --set data.corpus.header=no";
        assert!(text.ends_with(pair), "{text}");
    }

    let pairs: [&[&str]; 2] = [&["short form", "long form (full)"], &["St.", "Street"]];
    let text = find_in(&pairs, &named("short_form", "long_form")).expect_err("misspelt").to_string();
    let flags = "--set 'data.corpus.source_field=short form' --set 'data.corpus.target_field=long form (full)'";
    assert!(text.contains(flags), "{text}");
    let text = find_in(&pairs, &named("long_form", "short_form")).expect_err("misspelt").to_string();
    let flags = "--set 'data.corpus.source_field=long form (full)' --set 'data.corpus.target_field=short form'";
    assert!(text.contains(flags), "not the other way round: {text}");
}

#[test]
fn a_table_without_names_gets_no_names_of_its_texts() {
    let rows: [&[&str]; 3] = [&["JAN 20 1979", "1979-01-20"], &["3 May 1999", "1999-05-03"], &["1/2/03", "2003-01-02"]];
    let text = find_in(&rows, &named("raw", "iso")).expect_err("no names").to_string();
    assert!(text.contains("the first row has no column \"raw\": it has \"JAN 20 1979\""), "{text}");
    assert!(!text.contains("source_field=JAN") && text.ends_with("--set data.corpus.header=no"), "{text}");
    // Words might be names, but these are probably a pair.
    let words: [&[&str]; 3] = [&["ten two five", "dieci due"], &["one", "uno"], &["nine two", "nove due"]];
    let text = find_in(&words, &named("english", "italian")).expect_err("no names").to_string();
    let pair = text.find("if the first row is a pair").expect("offered");
    assert!(text.find("to name the columns").is_some_and(|names| names > pair), "{text}");
    let no = CorpusConfig { header: Header::No, ..named("raw", "iso") };
    assert_eq!(find_in(&rows, &no).expect("pairs").columns, columns(0, 1, false));
}

#[test]
fn names_and_numbers_must_mean_the_same_columns() {
    let rows: [&[&str]; 2] = [&["id", "a", "b"], &["1", "one", "uno"]];
    let both = |source_column, target_column, header| {
        find_in(&rows, &CorpusConfig { source_column, target_column, header, ..named("a", "b") })
    };
    assert_eq!(both(1, 2, Header::Auto).expect("the same").columns, columns(1, 2, true));
    for header in [Header::Auto, Header::Yes] {
        let text = both(2, 1, header).expect_err("different").to_string();
        let flags = "--set data.corpus.source_column=1 --set data.corpus.target_column=2";
        assert!(text.contains("name the columns 1 and 2") && text.contains(flags), "{text}");
    }

    let other = CorpusConfig { source_column: 1, target_column: 2, ..named("x", "y") };
    assert!(find_in(&rows, &other).is_err());
    let yes = find_in(&rows, &CorpusConfig { header: Header::Yes, ..other }).expect("by number");
    assert_eq!(yes.columns, columns(1, 2, true));
    assert!(yes.notes.len() == 1 && yes.notes[0].contains("lacks the columns \"x\" and \"y\""), "{:?}", yes.notes);
}

#[test]
fn a_first_row_of_another_kind_than_the_others_is_noted() {
    let noted = |first: &[&str], cells: &dyn Fn(usize) -> Vec<String>| {
        let first: Vec<String> = first.iter().map(|cell| (*cell).to_owned()).collect();
        let rows: Vec<Vec<String>> = std::iter::once(first).chain((0..30).map(cells)).collect();
        let found = Columns::find(Path::new("a.csv"), &rows, &CorpusConfig::default()).expect("pairs");
        let notes: Vec<String> = found.notes.into_iter().filter(|note| note.contains("is taken as a pair")).collect();
        assert!(notes.iter().all(|note| note.contains("data.corpus.source_field=")), "{notes:?}");
        notes.len()
    };
    let rings = ["CC", "c1ccccc1", "C(=O)O", "OCC"];
    let smiles = |n: usize| vec![format!("{}{}", rings[n % 4], "N".repeat(n)), format!("methyl-{}ol", "a".repeat(n))];
    assert_eq!(noted(&["SMILES", "IUPAC Name"], &smiles), 1);
    let signs = |n: usize| vec![char::from(b'!' + n as u8).to_string(), format!("SIGN {}", "X".repeat(n + 1))];
    assert_eq!(noted(&["Character", "Name"], &signs), 1);
    let codes =
        |n: usize| vec![format!("A{}", char::from(b'A' + n as u8)), format!("Dinar of Land {n}"), format!("dinar {n}")];
    assert_eq!(noted(&["ISO 4217", "Currency", "Devise"], &codes), 1);
    let measured = |n: usize| vec![format!("Comp {n}"), format!("-{n}.26"), rings[n % 4].to_owned()];
    assert_eq!(noted(&["Compound ID", "measured log solubility in mols per litre (25 °C)", "SMILES"], &measured), 1);
    assert_eq!(noted(&["IAU Name", "RA(J2000)", "Const."], &measured), 1);

    // Rows like the others: a short one, one with an amount, and one that stands again.
    let sentences = |n: usize| vec![format!("The dog {n} runs."), format!("Der Hund {n} rennt.")];
    assert_eq!(noted(&["The cat runs.", "Die Katze rennt."], &sentences), 0);
    assert_eq!(noted(&["Stop.", "Halt."], &sentences), 0);
    let words = |n: usize| vec![format!("lamp{}", "s".repeat(n)), format!("Lampe{}", "n".repeat(n))];
    assert_eq!(noted(&["dog", "Hund"], &words), 0);
    assert_eq!(
        noted(&["ISO 4217", "Currency", "Devise"], &|n| if n == 9 {
            codes(1)
        } else {
            vec!["ISO 4217".into(), "x".into(), "y".into()]
        }),
        0
    );
}

#[test]
fn names_with_brackets_and_signs_are_names() {
    let asked = |first: &[&str], others: &[&[&str]]| {
        find_in(&[&[first][..], others].concat(), &CorpusConfig::default()).is_err()
    };
    let dates: [&[&str]; 6] = [&["third of May", "1999-05-03"]; 6];
    for first in [
        ["Datum (Text)", "Datum ISO"],
        ["Menge [kg]", "Preis/Tag"],
        ["Anteil in %", "Nr."],
        ["Price ($)", "Date & time"],
    ] {
        assert!(asked(&first, &dates), "{first:?}");
    }
    assert!(asked(&["No", "Customer", "Date (text)", "Date ISO"], &NUMBERED));
    assert!(!asked(&["second of May, the day", "1999-05-02"], &dates), "a row like the others");

    let sentences: [&[&str]; 6] = [&["How are you?", "Come stai?"]; 6];
    assert!(asked(&["text (en)", "text (it)"], &sentences));
    let rows = [&[&["domanda (breve)", "risposta"] as &[&str]][..], &sentences].concat();
    assert_eq!(find_in(&rows, &CorpusConfig::default()).expect("not sure").notes.len(), 1);
}

#[test]
fn the_columns_that_two_of_them_leave_out_are_named_and_can_be_read_by_a_template() {
    let asked = |names: &[&str], row: &dyn Fn(usize) -> Vec<String>| {
        let mut rows = vec![names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()];
        rows.extend((0..24).map(row));
        Columns::find(Path::new("a.csv"), &rows, &CorpusConfig::default()).expect_err("asked").to_string()
    };
    let status = asked(&["code", "phrase", "description"], &|n| {
        vec![format!("{}", 100 + n), format!("Phrase {n}x"), format!("the words of {n}")]
    });
    assert!(status.contains("source_field=phrase --set data.corpus.target_field=description"), "{status}");
    assert!(status.contains("that leaves out \"code\" (\"100\")"), "{status}");
    let all =
        "to read all: --set 'data.corpus.source_field={code} {phrase}' --set data.corpus.target_field=description";
    assert!(status.contains(all), "{status}");

    let units = asked(&["value", "from", "to", "result"], &|n| {
        vec![n.to_string(), ["km", "kg"][n % 2].into(), ["m", "g"][n % 2].into(), (1000 * n).to_string()]
    });
    let all = "--set 'data.corpus.source_field={value} {from} {to}' --set data.corpus.target_field=result\n  that reads all columns";
    assert!(units.contains(&format!("if it names the columns: {all}")), "{units}");
    let two = asked(&["id", "en", "it"], &|n| vec![n.to_string(), format!("words {n}"), format!("parole {n}")]);
    assert!(two.contains("target_field=it (or the other way round)\n  if it is a pair"), "{two}");
}

#[test]
fn the_order_of_the_file_counts_where_both_directions_are_usual() {
    for (names, source, target, is_open) in [
        (&["latex", "text"][..], "latex", "text", true),
        (&["text", "latex"], "text", "latex", true),
        (&["question", "sql"], "question", "sql", false),
        (&["sql", "question"], "question", "sql", false),
        (&["intent", "rewritten_intent", "snippet"], "intent", "snippet", false),
    ] {
        let said = field_flags(names);
        let flags = format!("--set data.corpus.source_field={source} --set data.corpus.target_field={target}");
        assert_eq!(said, flags);
        assert_eq!(!says_direction(source, target), is_open, "{names:?}");
    }
}
