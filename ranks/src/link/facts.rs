//! Facts about a run that must be the same on all ranks.

use std::collections::BTreeMap;

use super::met::ranks_in_words;

/// Returns facts as bytes.
pub(super) fn encode(facts: &[(String, String)]) -> Vec<u8> {
    serde_json::to_vec(facts).expect("plain data")
}

/// Compares the facts of all ranks with the facts of rank 0: one line for each name that differs.
pub(super) fn differences<'a>(all: &[Vec<u8>], host: impl Fn(usize) -> &'a str) -> Vec<String> {
    let read = |bytes: &Vec<u8>| serde_json::from_slice::<Vec<(String, String)>>(bytes).unwrap_or_default();
    let all: Vec<Vec<(String, String)>> = all.iter().map(read).collect();
    let value = |rank: usize, name: &str| {
        let found = all[rank].iter().find(|(other, _)| other == name);
        found.map_or("nothing", |(_, value)| value.as_str())
    };

    // In the order of rank 0, then what only others have.
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in all.iter().flatten() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }

    let mut lines = Vec::new();
    for name in names {
        let mut others: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for rank in (1..all.len()).filter(|&rank| value(rank, name) != value(0, name)) {
            others.entry(value(rank, name)).or_default().push(rank);
        }
        if !others.is_empty() {
            let of = |(value, ranks): (&&str, &Vec<usize>)| {
                format!(", {value} on {} ({})", ranks_in_words(ranks), host(ranks[0]))
            };
            let others: String = others.iter().map(of).collect();
            lines.push(format!("{name}: {} on rank 0 ({}){others}", value(0, name), host(0)));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_names_both_values_and_the_ranks() {
        let facts = |pairs: &[(&str, &str)]| {
            encode(&pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect::<Vec<_>>())
        };
        let same = facts(&[("seed", "1"), ("data", "abc")]);
        let all = [same.clone(), same.clone(), facts(&[("seed", "2"), ("data", "abc"), ("extra", "x")])];
        let hosts = ["a", "b", "c"];
        assert_eq!(
            differences(&all, |rank| hosts[rank]),
            ["seed: 1 on rank 0 (a), 2 on rank 2 (c)", "extra: nothing on rank 0 (a), x on rank 2 (c)"]
        );
        assert!(differences(&[same.clone(), same.clone()], |rank| hosts[rank]).is_empty());
        let strange = [same, facts(&[("seed", "2")]), b"{".to_vec()];
        assert_eq!(
            differences(&strange, |rank| hosts[rank])[0],
            "seed: 1 on rank 0 (a), 2 on rank 1 (b), nothing on rank 2 (c)"
        );
    }
}
