//! Bounds on what a template builds. Its fuel counts instructions and bytes, but a few of them can make a value that is endless
//! to walk (a namespace in itself, a list of itself twice), or ask for a terabyte at once (`'{:>1000000000000}'.format(1)`).
//!
//! Therefore each `{% set %}` passes a filter that refuses such values, and the methods of strings are checked before they
//! allocate.

use std::cell::Cell;

use minijinja::value::{Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, escape_formatter};

/// Most bytes of one text that a template makes.
pub(super) const MOST_BYTES: usize = 64 << 20;
/// Deepest nesting of a value.
const MOST_DEPTH: usize = 64;
/// Most values inside one value, each counted as often as it occurs, and 64 bytes of text as one more: for itself, and for each
/// value of the conversation.
const MOST_VALUES: [u64; 2] = [1 << 16, 4];
/// Values that are looked at in one rendering.
const ALL_VALUES: u64 = 20 << 20;
/// Widest field of `str.format`.
const MOST_DIGITS: usize = 4;

/// The filter of `{% set name = .. %}`.
const VARIABLE: &str = "kiln_variable";
/// The filter of `{% set namespace.name = .. %}`.
const MEMBER: &str = "kiln_member";

thread_local! {
    /// Values that the rendering of this thread may still look at, and the most in one value.
    static LEFT: Cell<(u64, u64)> = const { Cell::new((ALL_VALUES, MOST_VALUES[0])) };
}

/// Adds the filters, and checks whatever is written.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter(VARIABLE, |value: Value| weigh(&value, true).map(|()| value));
    environment.add_filter(MEMBER, |value: Value| weigh(&value, false).map(|()| value));
    environment.set_formatter(|out, state, value| {
        if matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
            weigh(value, true)?;
        }
        escape_formatter(out, state, value)
    });
}

/// Begins a rendering of messages with so many bytes.
pub(super) fn begin(n_messages: usize, n_bytes: usize) {
    let [own, per_value] = MOST_VALUES;
    LEFT.set((ALL_VALUES, own + per_value * (8 * n_messages + n_bytes / 64) as u64));
}

/// Refuses a method of a text that would allocate too much.
pub(super) fn check_method(_: &State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<(), Error> {
    let Some(text) = value.as_str() else { return Ok(()) };
    let len = |value: &Value| value.as_str().map_or(MOST_DIGITS * 8, str::len);
    let n_bytes = match method {
        "format" => {
            let mut digits = text.split(|c: char| !c.is_ascii_digit());
            let is_wide = digits.any(|digits| digits.len() > MOST_DIGITS);
            let is_nested = text.split('{').skip(1).any(|field| field.contains(':') && !field.contains('}'));
            if is_wide || is_nested {
                return Err(refused("str.format: a width or a precision is too large, or stands in an argument"));
            }
            return Ok(());
        }

        "replace" => match args {
            [old, new, ..] => {
                let n = old.as_str().map_or(0, |old| text.matches(old).count());
                n.saturating_mul(len(new)).saturating_add(text.len())
            }
            _ => 0,
        },
        "join" => match args {
            [list] if list.kind() == ValueKind::Seq => {
                let items = list.try_iter()?;
                items.fold(0, |sum: usize, item| sum.saturating_add(len(&item)).saturating_add(text.len()))
            }
            _ => 0,
        },
        _ => 0,
    };

    if n_bytes > MOST_BYTES {
        Err(refused(&format!("str.{method}: the text would have {n_bytes} bytes")))
    } else {
        Ok(())
    }
}

/// The error of a template that asks for too much.
pub(super) fn refused(what: &str) -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("{what}; a chat template needs no such value, so correct the template"),
    )
}

/// Refuses a value that is too large or too deep to walk. A namespace may be a variable, but not a part of another value:
/// it could be a part of itself.
fn weigh(value: &Value, may_be_namespace: bool) -> Result<(), Error> {
    let mut rest = vec![(value.clone(), 0)];
    let mut n_values = 0;
    while let Some((value, depth)) = rest.pop() {
        let n = 1 + value.as_str().map_or(0, |text| text.len() as u64 / 64);
        n_values += n;
        enough(n_values)?;
        let (left, most) = LEFT.get();
        LEFT.set((left.checked_sub(n).ok_or_else(|| refused(PARTS))?, most));
        if depth > MOST_DEPTH {
            return Err(refused("a value is nested too deeply"));
        }

        if is_namespace(&value) {
            if depth > 0 || !may_be_namespace {
                return Err(refused("a namespace is a part of another value"));
            }
            continue; // its members were looked at when they were set
        }
        // A list that is repeated or cut is walked as it is used.
        let kind = value.kind();
        if matches!(kind, ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
            for item in value.try_iter()? {
                let part = if kind == ValueKind::Map { value.get_item(&item)? } else { item };
                rest.push((part, depth + 1));
                enough(n_values + rest.len() as u64)?;
            }
        }
    }
    Ok(())
}

const PARTS: &str = "a value has too many parts";

/// Refuses a value with more parts than one may have.
fn enough(n_values: u64) -> Result<(), Error> {
    if n_values > LEFT.get().1 { Err(refused(PARTS)) } else { Ok(()) }
}

fn is_namespace(value: &Value) -> bool {
    value.as_object().is_some_and(|object| object.type_name().ends_with("::Namespace"))
}

/// Lets the value of each `{% set %}` pass its filter. Lines stay where they are.
pub(super) fn with_bounded_sets(source: &str) -> String {
    let (mut bounded, mut rest) = (String::with_capacity(source.len()), source);
    while let Some(start) = rest.find("{").filter(|_| !rest.is_empty()) {
        let (before, tag) = rest.split_at(start);
        bounded.push_str(before);
        let end = match tag.as_bytes().get(1) {
            Some(b'#') => tag.find("#}").map(|at| at + 2),
            Some(b'{') => end_of(tag, "}}"),
            Some(b'%') => end_of(tag, "%}"),
            _ => Some(1),
        };
        // What has no end is an error of the template, which its compiler names.
        let Some(end) = end else {
            rest = tag;
            break;
        };

        let (tag, behind) = tag.split_at(end);
        rest = behind;
        let inside = tag.strip_prefix("{%").map(|inside| inside.trim_start_matches(['-', '+']).trim_start());
        match inside {
            Some(inside) if is_word(inside, "set") => bounded.push_str(&bounded_set(tag)),
            Some(inside) if is_word(inside, "raw") => {
                bounded.push_str(tag);
                let end = end_of_raw(rest);
                bounded.push_str(&rest[..end]);
                rest = &rest[end..];
            }
            _ => bounded.push_str(tag),
        }
    }

    bounded.push_str(rest);
    bounded
}

fn is_word(text: &str, word: &str) -> bool {
    text.strip_prefix(word).is_some_and(|after| !after.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
}

/// Where `{% endraw %}` begins.
fn end_of_raw(text: &str) -> usize {
    let ends = |at: &usize| is_word(text[at + 2..].trim_start_matches(['-', '+']).trim_start(), "endraw");
    text.match_indices("{%").map(|(at, _)| at).find(ends).unwrap_or(text.len())
}

/// Where the tag at the start of `text` ends, behind `mark`, which does not count inside a string.
fn end_of(text: &str, mark: &str) -> Option<usize> {
    outside_strings(text, 2).find(|at| text[*at..].starts_with(mark)).map(|at| at + mark.len())
}

/// The places of `text` from `from` on that are not inside a string of Jinja.
fn outside_strings(text: &str, from: usize) -> impl Iterator<Item = usize> {
    let (mut quote, mut is_escaped) = (None, false);
    text[from..].char_indices().filter_map(move |(at, c)| {
        match quote {
            Some(_) if is_escaped => is_escaped = false,
            Some(_) if c == '\\' => is_escaped = true,
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c == '"' || c == '\'' => quote = Some(c),
            None => return Some(from + at),
        }
        None
    })
}

/// `{% set name = value %}` with a filter behind the value; a block (`{% set name %}`) stays as it is.
fn bounded_set(tag: &str) -> String {
    let Some(equals) = outside_strings(tag, 2).find(|at| tag[*at..].starts_with('=')) else { return tag.to_owned() };
    let (target, value) = tag.split_at(equals + 1);
    let value = value.strip_suffix("%}").unwrap_or(value);
    let end = if value.ends_with(['-', '+']) { &value[value.len() - 1..] } else { "" };
    let value = &value[..value.len() - end.len()];
    let filter = if target.contains('.') { MEMBER } else { VARIABLE };
    format!("{target} ({})|{filter} {end}%}}", value.trim_end_matches(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_pass_a_filter_and_all_else_stays() {
        for (source, bounded) in [
            ("{% set a = 1 %}", "{% set a = ( 1)|kiln_variable %}"),
            ("{%- set ns.a = b if c else 'x' -%}", "{%- set ns.a = ( b if c else 'x')|kiln_member -%}"),
            ("{% set a, b = 1, 2 %}", "{% set a, b = ( 1, 2)|kiln_variable %}"),
            ("{% set a = \"%} = \\\" {%\" %}x", "{% set a = ( \"%} = \\\" {%\")|kiln_variable %}x"),
        ] {
            assert_eq!(with_bounded_sets(source), bounded);
        }
        for same in [
            "{% set a %}x = 1{% endset %}",
            "{% settle = 1 %}",
            "{# {% set a = 1 %} #}",
            "{% raw %}{% set a = 1 %}{%- endraw %}",
            "{{ '{% set a = 1 %}' }}",
            "{ {% if a == b %}{",
            "{% set a = '",
            "é{",
        ] {
            assert_eq!(with_bounded_sets(same), same);
        }
    }
}
