//! Advice for a configuration file: the line to write instead of the flag.

use toml::{Table, Value};

/// Replaces each `--set key=value` by the line that a file has for it.
pub(super) fn in_a_file(problem: &str) -> String {
    let (mut text, mut rest) = (String::with_capacity(problem.len()), problem);
    while let Some((before, flag)) = rest.split_once("--set ") {
        let end = flag.find([' ', ';', ',', ')', '\n']).unwrap_or(flag.len());
        text += before;
        text += &line_of(&flag[..end]).unwrap_or_else(|| format!("--set {}", &flag[..end]));
        rest = &flag[end..];
    }
    text + rest
}

/// Returns `steps = 40` with its section for `train.steps=40`.
fn line_of(assignment: &str) -> Option<String> {
    let (key, value) = assignment.split_once('=')?;
    let is_value = toml::from_str::<Table>(&format!("value = {value}")).is_ok();
    let value = if is_value { value.to_owned() } else { Value::String(value.into()).to_string() };
    Some(match key.rsplit_once('.') {
        Some((section, name)) => format!("`{name} = {value}` in [{section}]"),
        None => format!("`{key} = {value}`"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_lines_of_their_sections() {
        for (flags, lines) in [
            ("about 40 steps: --set train.steps=40", "about 40 steps: `steps = 40` in [train]"),
            ("--set seed=1; or --set data.corpus.format=tsv)", "`seed = 1`; or `format = \"tsv\"` in [data.corpus])"),
            ("nothing to replace, --preset big", "nothing to replace, --preset big"),
            ("the flag --set itself", "the flag --set itself"),
        ] {
            assert_eq!(in_a_file(flags), lines);
        }
    }
}
