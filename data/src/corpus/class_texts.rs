//! Which columns have the texts that a class belongs to: one, or two by their names or their length.

use super::fields::{are_alike, is_text, words_of};

/// Of [`TWO_TEXTS`], those that somebody compares.
const N_COMPARED: usize = 12;
/// Names of two texts that have one class, in any order.
const TWO_TEXTS: [[&str; 2]; 30] = [
    ["premise", "hypothesis"],
    ["context", "hypothesis"],
    ["text", "hypothesis"],
    ["text", "text_pair"],
    ["question", "sentence"],
    ["query", "passage"],
    ["query", "document"],
    ["claim", "evidence"],
    ["claim", "context"],
    ["claim", "document"],
    ["claim", "passage"],
    ["headline", "body"],
    ["question", "passage"],
    ["question", "context"],
    ["question", "paragraph"],
    ["question", "answer"],
    ["source", "target"],
    ["anchor", "positive"],
    ["anchor", "target"],
    ["comment", "reply"],
    ["comment", "parent_comment"],
    ["comment", "parent"],
    ["comment", "post"],
    ["reply", "post"],
    ["reply", "tweet"],
    ["response", "context"],
    ["sentence", "aspect"],
    ["sentence", "aspect_term"],
    ["text", "aspect"],
    ["text", "aspect_term"],
];
/// Words of the names of two texts about one thing, of which one has the good and the other one the bad.
const OPPOSED: [[&str; 2]; 7] = [
    ["positive", "negative"],
    ["pros", "cons"],
    ["pro", "con"],
    ["advantages", "disadvantages"],
    ["likes", "dislikes"],
    ["strengths", "weaknesses"],
    ["good", "bad"],
];
/// Texts from which it is not chance that they are parts of others.
const ENOUGH_TEXTS: usize = 8;
/// Words from which a column holds texts rather than names, on average.
const WORDS_OF_TEXT: usize = 3;

/// Whether nearly all texts are long parts of the texts next to them, such as the words that somebody has selected for a class: `texts` has
/// both.
pub(super) fn is_part_of<'t>(texts: impl Iterator<Item = (&'t str, &'t str)>) -> bool {
    let (mut n, mut n_parts, mut n_bytes, mut n_whole) = (0, 0, 0, 0);
    for (text, whole) in texts.filter(|(text, whole)| !text.is_empty() && !whole.is_empty()) {
        n += 1;
        n_parts += usize::from(whole.contains(text));
        n_bytes += text.len();
        n_whole += whole.len();
    }
    n >= ENOUGH_TEXTS && 10 * n_parts >= 9 * n && 4 * n_bytes >= n_whole
}

/// What is known of a column of strings.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strings<'a> {
    pub(super) name: &'a str,
    /// Of all its cells.
    pub(super) n_bytes: usize,
    /// Of all its cells.
    pub(super) n_words: usize,
    /// Number of its cells.
    pub(super) n: usize,
    /// Whether few values recur in many rows.
    pub(super) recurs: bool,
}

impl Strings<'_> {
    /// Whether its cells have so many words, on average.
    pub(super) fn has_words(&self, per_cell: usize) -> bool {
        self.n > 0 && self.n_words >= per_cell * self.n
    }

    /// Whether the column holds texts, as `text` does.
    fn is_like(&self, text: &Self) -> bool {
        let is_alike = || are_alike([self.n_bytes, text.n_bytes]) && (self.has_words(2) || !text.has_words(2));
        self.has_words(WORDS_OF_TEXT) || is_alike()
    }
}

/// Returns which of the `columns` hold what a class belongs to: two texts, one, or none. `given` is the first text, if the user has named
/// it. Columns with classes and columns about a text must not be among them.
pub(super) fn texts_of_class(columns: &[Strings<'_>], given: Option<usize>) -> Vec<usize> {
    let is_filled = |at: &usize| columns[*at].n_bytes > 0;
    let filled: Vec<usize> = (0..columns.len()).filter(is_filled).collect();
    // Two tags with numbers are not texts.
    let can_be = |at: &usize| !columns[*at].recurs || columns[*at].has_words(2);
    let are_two = |one: &usize, other: &usize| {
        let names = [columns[*one].name, columns[*other].name];
        are_two_texts(names[0], names[1]) && (!are_counted(names[0], names[1]) || can_be(one) && can_be(other))
    };
    // Of several pairs, one with its own names says more than numbered columns, such as explanations.
    let pair_of = |are_two: &dyn Fn(&usize, &usize) -> bool| {
        filled.iter().find_map(|one| {
            let other = filled.iter().find(|other| *other > one && are_two(one, other));
            other.map(|other| [*one, *other])
        })
    };
    let are_named = |one: &usize, other: &usize| !are_counted(columns[*one].name, columns[*other].name);
    let named = pair_of(&|one, other| are_named(one, other) && are_two(one, other)).or_else(|| pair_of(&are_two));
    let ordered = |pair: [usize; 2]| match given {
        Some(given) if pair[1] == given => vec![given, pair[0]],
        _ => pair.to_vec(),
    };
    if let Some(pair) = named.filter(|pair| given.is_none_or(|given| pair.contains(&given))) {
        return ordered(pair);
    }

    // Where all columns recur, texts do, too.
    let varied: Vec<usize> = filled.iter().copied().filter(|at| !columns[*at].recurs).collect();
    let texts = if varied.is_empty() { filled } else { varied };
    let rank = |at: &usize| (is_text(columns[*at].name), columns[*at].has_words(2), columns[*at].n_bytes);
    let longest = || texts.iter().copied().max_by_key(rank);
    let Some(text) = given.or_else(longest) else { return Vec::new() };
    let others: Vec<usize> =
        texts.into_iter().filter(|at| *at != text && columns[*at].is_like(&columns[text])).collect();
    match others[..] {
        [other] => ordered([text.min(other), text.max(other)]),
        _ => vec![text],
    }
}

/// Whether two names belong to two texts with one class: `premise` and `hypothesis`, `sentence1` and `sentence2`, `text_a` and `text_b`.
pub(super) fn are_two_texts(one: &str, other: &str) -> bool {
    let is_known = TWO_TEXTS.iter().any(|pair| is_pair_of(pair, one, other));
    is_known || are_counted(one, other) || are_opposed(one, other)
}

/// Whether two names belong to two texts that somebody compares: neither answers the other one or translates it.
pub(super) fn are_compared(one: &str, other: &str) -> bool {
    are_counted(one, other) || TWO_TEXTS[..N_COMPARED].iter().any(|pair| is_pair_of(pair, one, other))
}

/// Whether a text belongs to another one by its name, as a reply belongs to a comment.
pub(super) fn has_partner<'n>(name: &str, mut others: impl Iterator<Item = &'n str>) -> bool {
    others.any(|other| TWO_TEXTS.iter().any(|pair| is_pair_of(pair, name, other)))
}

fn is_pair_of([first, second]: &[&str; 2], one: &str, other: &str) -> bool {
    let is_it = |name: &str, wanted: &str| name.eq_ignore_ascii_case(wanted);
    is_it(one, first) && is_it(other, second) || is_it(one, second) && is_it(other, first)
}

/// Whether two names differ in a word for the good and the bad, such as `pros` and `cons`, or `Positive_Review` and `Negative_Review`.
fn are_opposed(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(words_of);
    let mut differ = one.iter().zip(&other).filter(|(one, other)| one != other);
    let (Some((first, second)), None) = (differ.next(), differ.next()) else { return false };
    let are_sides = |[good, bad]: &[&str; 2]| first == good && second == bad || first == bad && second == good;
    one.len() == other.len() && OPPOSED.iter().any(are_sides)
}

/// Whether two names differ in a number or a letter at their end.
fn are_counted(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(str::to_lowercase);
    let stems =
        |ends: [&str; 2]| one.strip_suffix(ends[0]).is_some_and(|stem| other.strip_suffix(ends[1]) == Some(stem));
    let is_counted = [["1", "2"], ["2", "1"], ["_a", "_b"], ["_b", "_a"]].into_iter().any(stems);
    is_counted && one.starts_with(|c: char| c.is_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings<'a>(name: &'a str, cell: &str) -> Strings<'a> {
        let n_words = 20 * cell.split_whitespace().count();
        Strings { name, n_bytes: 20 * cell.len(), n_words, n: 20, recurs: false }
    }

    #[test]
    fn two_texts_are_found_by_name_or_because_they_have_words() {
        let long =
            "a much longer text of many words that goes on and on and on until it is long enough to be unlike others";
        for ([one, other], cells, n_wanted) in [
            (["sentence1", "sentence2"], [long, "short"], 2),
            (["text_A", "text_B"], [long, "short"], 2),
            (["passage", "question"], [long, "who?"], 2),
            (["headline", "summary"], ["a title of words", long], 2),
            (["message", "user"], [long, "bob"], 1),
            (["message", "hash"], ["a text of words", "0123456789abcdef"], 1),
            (["wort", "ort"], ["Haus", "Rom"], 2),
        ] {
            let columns = [strings(one, cells[0]), strings(other, cells[1])];
            assert_eq!(texts_of_class(&columns, None).len(), n_wanted, "{one} {other}");
        }
        let columns = [strings("premise", long), strings("hypothesis", "short")];
        assert_eq!(texts_of_class(&columns, Some(1)), [1, 0], "the user has named the first text");
        let three = [strings("sentence1_parse", long), strings("sentence1", "short"), strings("sentence2", "short")];
        assert_eq!(texts_of_class(&three, None), [1, 2]);
        assert_eq!(texts_of_class(&[], None), Vec::<usize>::new());
    }
}
