//! Which parameters are not trained: those that `train.freeze` names, and all others than adapters or a learned prompt if there are
//! some.

use std::collections::BTreeSet;

use kiln_model::{is_adapter, is_learned_prompt};

use super::suggest::nearest;
use super::{Config, ConfigError, OptimizerChoice};

impl Config {
    /// Returns whether a pattern of `train.freeze` matches `path`.
    pub(crate) fn freezes(&self, path: &str) -> bool {
        self.train.freeze.iter().any(|pattern| matches(pattern, path))
    }

    /// Returns which of the parameters at `paths` are frozen.
    ///
    /// # Errors
    /// If a pattern of `train.freeze` matches none, or nothing is left to train.
    pub(crate) fn frozen(&self, paths: &[&str]) -> Result<Vec<bool>, ConfigError> {
        let patterns = &self.train.freeze;
        let unmatched = patterns.iter().filter(|pattern| !paths.iter().any(|path| matches(pattern, path)));
        let mut problems: Vec<String> = unmatched.map(|pattern| no_match(pattern, paths)).collect();

        let has_additions = paths.iter().any(|path| is_adapter(path) || is_learned_prompt(path));
        let is_frozen = |path: &&str| {
            (has_additions && !is_addition(path)) || patterns.iter().any(|pattern| matches(pattern, path))
        };
        let frozen: Vec<bool> = paths.iter().map(is_frozen).collect();
        if problems.is_empty() && frozen.iter().all(|frozen| *frozen) {
            problems.push(format!(
                "train.freeze freezes all {} parameters that would be trained, so that nothing is left to train; remove a pattern",
                paths.iter().filter(|path| !has_additions || is_addition(path)).count()
            ));
        }
        if problems.is_empty() { Ok(frozen) } else { Err(ConfigError { problems }) }
    }

    /// Checks the patterns on their own, and whether the optimizer has something to update.
    pub(super) fn validate_freeze(&self, problems: &mut Vec<String>) {
        if self.train.optimizer == OptimizerChoice::Muon && self.model.trains_additions() {
            problems.push(
                "train.optimizer = \"muon\" updates weight matrices of layers, but this run trains none: adapters, a learned prompt \
                 or a head alone; take train.optimizer = \"adamw\""
                    .into(),
            );
        }
        if self.train.freeze.iter().any(|pattern| pattern.trim().is_empty()) {
            problems.push(
                "train.freeze has an empty pattern; name a parameter or module (\"decoder.layers.0\"), or remove it"
                    .into(),
            );
        }
    }
}

/// Returns whether a parameter was added to a trained model: of an adapter, a learned prompt or a head for classes.
fn is_addition(path: &str) -> bool {
    is_adapter(path) || is_learned_prompt(path) || path.starts_with("classifier.")
}

/// Says that a pattern matches nothing, and which names it could mean.
fn no_match(pattern: &str, paths: &[&str]) -> String {
    let runs: BTreeSet<&str> = paths.iter().flat_map(|path| runs(path)).collect();
    let bare = pattern.trim_matches(['*', '.']);
    let meant = nearest(bare, runs.iter().copied().filter(|run| !run.is_empty()));
    let meant = meant.map_or(".".into(), |name| format!("; did you mean \"{name}\"?"));
    let parts: BTreeSet<&str> = paths.iter().filter_map(|path| path.split('.').next()).collect();
    let parts: Vec<&str> = parts.into_iter().collect();
    format!(
        "train.freeze: \"{pattern}\" matches no parameter{meant} The model's parts are {}; model.safetensors of a checkpoint has \
         all names",
        parts.join(", ")
    )
}

/// Returns whether `pattern` matches whole names of `path`: all of them, or some in a row, such as a module. `*` stands for any
/// characters, dots included.
fn matches(pattern: &str, path: &str) -> bool {
    runs(path).any(|run| glob(pattern.as_bytes(), run.as_bytes()))
}

/// Returns every row of whole names in `path`: `a.b.c`, `a.b`, `a`, `b.c`, `b`, `c`.
fn runs(path: &str) -> impl Iterator<Item = &str> {
    let starts = || std::iter::once(0).chain(path.match_indices('.').map(|(dot, _)| dot + 1));
    let ends = || path.match_indices('.').map(|(dot, _)| dot).chain([path.len()]);
    starts().flat_map(move |start| ends().filter(move |end| *end > start).map(move |end| &path[start..end]))
}

/// Matches in linear space and at most quadratic time.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p, t));
            p += 1;
        } else if p < pattern.len() && pattern[p] == text[t] {
            (p, t) = (p + 1, t + 1);
        } else if let Some((at, from)) = star {
            // Let the last star stand for one more character.
            star = Some((at, from + 1));
            (p, t) = (at + 1, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: [&str; 5] = [
        "target_embedding.weight",
        "decoder.layers.0.self_attention.qkv.weight",
        "decoder.layers.1.self_attention.qkv.weight",
        "decoder.layers.10.self_attention.qkv.weight",
        "decoder.norm.gamma",
    ];

    fn frozen(patterns: &[&str]) -> Result<Vec<usize>, ConfigError> {
        let mut config = Config::default();
        config.train.freeze = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        let frozen = config.frozen(&PATHS)?;
        Ok((0..PATHS.len()).filter(|i| frozen[*i]).collect())
    }

    #[test]
    fn patterns_match_whole_names_and_stars_match_anything() {
        let cases: [(&[&str], &[usize]); 9] = [
            (&[], &[]),
            (&["*embed*"], &[0]),
            (&["layers.1"], &[2]),
            (&["layers.1*"], &[2, 3]),
            (&["layers.0.*", "norm"], &[1, 4]),
            (&["decoder.layers.0.self_attention.qkv.weight"], &[1]),
            (&["qkv"], &[1, 2, 3]),
            (&["decoder"], &[1, 2, 3, 4]),
            (&["*.gamma"], &[4]),
        ];
        for (patterns, wanted) in cases {
            assert_eq!(frozen(patterns).expect("valid"), wanted, "{patterns:?}");
        }
    }

    #[test]
    fn next_to_adapters_everything_else_is_frozen() {
        let paths = ["layers.0.qkv.weight", "layers.0.qkv.lora.0.a", "layers.1.qkv.lora.0.a"];
        let mut config = Config::default();
        assert_eq!(config.frozen(&paths).expect("valid"), [true, false, false]);
        config.train.freeze = vec!["layers.0".into()];
        assert_eq!(config.frozen(&paths).expect("valid"), [true, true, false]);
        config.train.freeze = vec!["lora".into()];
        let error = config.frozen(&paths).expect_err("nothing left").to_string();
        assert!(error.contains("freezes all 2 parameters that would be trained"), "{error}");
    }

    #[test]
    fn a_pattern_without_a_match_is_named_with_a_suggestion() {
        let error = frozen(&["decoder.layer.0", "nothing_like_it"]).expect_err("no match").to_string();
        assert!(
            error.contains("\"decoder.layer.0\" matches no parameter; did you mean \"decoder.layers.0\"?"),
            "{error}"
        );
        assert!(
            error.contains("\"nothing_like_it\" matches no parameter. The model's parts are decoder, target_embedding")
        );
        let error = frozen(&["*"]).expect_err("nothing left").to_string();
        assert!(error.contains("train.freeze freezes all 5 parameters that"), "{error}");
        let mut config = Config::default();
        config.train.freeze = vec![" ".into()];
        assert!(config.validate()[0].starts_with("train.freeze has an empty pattern"));
    }
}
