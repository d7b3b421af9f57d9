//! Suggestions for misspelt keys, values and names.

/// Returns `; did you mean X?`, or an empty string if no candidate is near.
pub(super) fn did_you_mean<'a>(wrong: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(wrong, candidates).map_or(String::new(), |name| format!("; did you mean {name}?"))
}

/// Returns the candidate that begins with `wrong`, or else the one with the fewest edits, at most one per three letters.
pub(super) fn nearest<'a>(wrong: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wrong = wrong.to_lowercase();
    let edits_allowed = (wrong.chars().count() / 3).max(1);
    let edits = |name: &str| match name.to_lowercase() {
        name if wrong.len() >= 3 && name.starts_with(&wrong) => 0,
        name => edit_distance(&wrong, &name),
    };
    let near = candidates.into_iter().map(|name| (edits(name), name)).filter(|(edits, _)| *edits <= edits_allowed);
    near.min_by_key(|(edits, _)| *edits).map(|(_, name)| name)
}

/// Counts insertions, deletions, substitutions and swaps of neighbours (optimal string alignment).
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        rows[i][0] = i;
        for j in 1..=b.len() {
            let substitution = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            rows[i][j] = substitution.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                rows[i][j] = rows[i][j].min(rows[i - 2][j - 2] + 1);
            }
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let keys = ["lr", "warmup_steps", "weight_decay", "schedule"];
        for (wrong, right) in [
            ("warmup", Some("warmup_steps")),
            ("wieght_decay", Some("weight_decay")),
            ("rl", Some("lr")),
            ("xyz", None),
        ] {
            assert_eq!(nearest(wrong, keys), right, "{wrong}");
        }
        assert_eq!(did_you_mean("Schedul", keys), "; did you mean schedule?");
        assert_eq!(did_you_mean("unrelated", keys), "");
    }

    #[test]
    fn swapping_neighbours_is_one_edit() {
        assert_eq!(edit_distance("bsae", "base"), 1);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
    }
}
