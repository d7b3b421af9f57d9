//! Weights for another vocabulary: rows of tokens that both vocabularies have are copied, the others are new.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use kiln_data::MarianFiles;
use kiln_interchange::hugging_face::{SENTENCEPIECE_FILE, TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, TokenizerFile};
use kiln_metrics::units::thousands;
use kiln_model::{Architecture, TransformerConfig};
use serde_json::Value;

use super::error::RunError;
use super::evaluate::Scratch;
use crate::checkpoint::{NamedTensor, StoredFile, Weights};
use crate::config::Config;
use crate::dataset::Vocabulary;
use crate::train::vocabulary_files;

/// Fewer tokens in common than this share of the new vocabulary are refused: the model would begin with hardly anything.
const LEAST_SHARE: f64 = 0.01;
/// Tokens that a note names.
const N_NAMED: usize = 5;
/// Tokens that are the same if they have the same task, whatever they are called.
const ROLES: [&str; 7] = ["pad_token", "bos_token", "eos_token", "unk_token", "cls_token", "sep_token", "mask_token"];

/// Gives weights the rows of another vocabulary, and its files. The model of the result has the vocabulary's sizes and the padding
/// id of `config`. Returns sentences about what was matched.
///
/// The row of a token that the old vocabulary lacks is the mean of all old rows (Hewitt 2021, "Initializing New Word Embeddings for
/// Pretrained Language Models").
///
/// # Errors
/// If the two vocabularies have next to nothing in common, if new rows would not be trained, or if a tokenizer's file is damaged.
pub(super) fn with_vocabulary(weights: &mut Weights, vocabulary: &Vocabulary, config: &Config) -> Result<Vec<String>> {
    let wanted = &config.model;
    let new_files = vocabulary_files(vocabulary, &Scratch::new()?.path("vocabulary"))?;
    let mut notes = Vec::new();
    let mut matched: HashMap<Side, Matching> = HashMap::new();
    for (name, side, axis) in tables(wanted) {
        let Some(tensor) = weights.weights.iter_mut().find(|tensor| tensor.name == name) else { continue };
        let (old, new) = match side {
            Side::Source => (weights.model.source_vocab_size, wanted.source_vocab_size),
            Side::Target => (weights.model.target_vocab_size, wanted.target_vocab_size),
        };
        let matching = match matched.entry(side) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let matching = Matching::of(&weights.files, &new_files, side)?;
                notes.push(matching.note(of_side(side, vocabulary))?);
                entry.insert(matching)
            }
        };
        ensure!(
            tensor.shape.get(axis) == Some(&old),
            "{name} has the shape {:?}, where the vocabulary has {old} rows",
            tensor.shape
        );
        if !matching.new.is_empty() && config.freezes(name) {
            return Err(RunError::Config(format!(
                "--new-vocabulary: {name} gets {} new rows, which train.freeze would leave as they begin; train it, or take the vocabulary \
                 of --from",
                thousands(matching.new.len() as f64)
            ))
            .into());
        }
        *tensor = matching.rearranged(tensor, axis, new);
    }

    // One table may serve both sides.
    notes.dedup();
    weights.model.source_vocab_size = wanted.source_vocab_size;
    weights.model.target_vocab_size = wanted.target_vocab_size;
    weights.model.pad_id = wanted.pad_id;
    weights.files.retain(|file| !is_of_tokenizer(&file.name));
    weights.files.extend(new_files);
    weights.files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(notes)
}

/// A side of a pair. Text has one, the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Side {
    Source,
    Target,
}

impl Side {
    /// The file of its tokenizer.
    fn file(self) -> &'static str {
        match self {
            Self::Source => "source.tokenizer.json",
            Self::Target => "target.tokenizer.json",
        }
    }
}

/// Says which tokens are meant, where each side has its own.
fn of_side(side: Side, vocabulary: &Vocabulary) -> &'static str {
    match (vocabulary, side) {
        (Vocabulary::Pairs(pairs), Side::Source) if !pairs.is_joint() => " of the sources",
        (Vocabulary::Pairs(pairs), Side::Target) if !pairs.is_joint() => " of the targets",
        _ => "",
    }
}

/// Returns the tensors with a place for each token: their names, whose tokens, and along which axis.
fn tables(model: &TransformerConfig) -> Vec<(&'static str, Side, usize)> {
    match model.architecture {
        Architecture::EncoderDecoder => vec![
            ("source_embedding.table", Side::Source, 0),
            ("target_embedding.table", Side::Target, 0),
            ("output.weight", Side::Target, 1),
            ("final_logits_bias", Side::Target, 0),
        ],
        Architecture::DecoderOnly => vec![("embedding.table", Side::Target, 0), ("output.weight", Side::Target, 1)],
        Architecture::EncoderOnly => vec![
            ("embedding.table", Side::Source, 0),
            ("head.output.weight", Side::Source, 1),
            ("head.bias", Side::Source, 0),
        ],
    }
}

fn is_of_tokenizer(name: &str) -> bool {
    name.ends_with(TOKENIZER_FILE)
        || [TOKENIZER_CONFIG_FILE, SENTENCEPIECE_FILE].contains(&name)
        || MarianFiles::MODELS.contains(&name)
}

/// Which old row each token of a new vocabulary has.
struct Matching {
    /// By new id.
    rows: Vec<Option<usize>>,
    /// Tokens with a row because of their task alone.
    n_by_role: usize,
    n_old: usize,
    /// Spellings of the tokens without an old row.
    new: Vec<String>,
    /// Spellings of the old tokens that no new one has.
    gone: Vec<String>,
}

impl Matching {
    fn of(old: &[StoredFile], new: &[StoredFile], side: Side) -> Result<Self> {
        let (old, new) = (Tokens::of(old, side)?, Tokens::of(new, side)?);
        let mut old_ids: HashMap<&[u8], usize> = HashMap::new();
        // If two tokens spell the same, the smaller id wins.
        for (id, spelling) in old.spellings.iter().enumerate().rev().filter(|(_, spelling)| !spelling.is_empty()) {
            old_ids.insert(spelling, id);
        }

        let by_role = |id: usize| {
            let role = new.roles.iter().find(|(_, found)| **found == id)?.0;
            old.roles.get(role).copied()
        };
        // A character and its byte spell the same: the token that is also written alike goes first.
        let written_alike = |id: usize, spelling: &Vec<u8>| {
            old.ids.get(&new.names[id]).copied().filter(|found| &old.spellings[*found] == spelling)
        };
        let find = |(id, spelling): (usize, &Vec<u8>)| {
            let by_text = || written_alike(id, spelling).or_else(|| old_ids.get(spelling.as_slice()).copied());
            by_role(id).or_else(by_text)
        };
        let rows: Vec<Option<usize>> = new.spellings.iter().enumerate().map(find).collect();

        let by_text = |spelling: &Vec<u8>| old_ids.contains_key(spelling.as_slice());
        let is_by_role = |(id, spelling): &(usize, &Vec<u8>)| rows[*id].is_some() && !by_text(spelling);
        let n_by_role = new.spellings.iter().enumerate().filter(is_by_role).count();

        let shown = |spelling: &[u8]| format!("{:?}", String::from_utf8_lossy(spelling));
        let is_new = |(id, spelling): (usize, &Vec<u8>)| rows[id].is_none().then(|| shown(spelling));
        let used: HashSet<usize> = rows.iter().flatten().copied().collect();
        let spelled: HashSet<&[u8]> = new.spellings.iter().map(Vec::as_slice).collect();
        let is_gone = |(id, spelling): (usize, &Vec<u8>)| {
            (!used.contains(&id) && !spelled.contains(spelling.as_slice())).then(|| shown(spelling))
        };
        // Words tell more than bytes and signs.
        let words_first = |mut tokens: Vec<String>| {
            tokens.sort_by_key(|token| token.contains('\\') || !token.chars().any(char::is_alphanumeric));
            tokens
        };
        let added: Vec<String> = words_first(new.spellings.iter().enumerate().filter_map(is_new).collect());
        let gone = words_first(old.spellings.iter().enumerate().filter_map(is_gone).collect());
        Ok(Self { n_old: old.spellings.len(), new: added, gone, n_by_role, rows })
    }

    /// Says what was matched.
    fn note(&self, of_side: &str) -> Result<String, RunError> {
        let (n, n_new) = (self.rows.len(), self.new.len());
        let n_matched = n - n_new;
        let n_by_text = n_matched - self.n_by_role;
        if (n_by_text as f64) < LEAST_SHARE * n as f64 {
            return Err(RunError::Config(format!(
                "--new-vocabulary: {n_by_text} of {n} tokens{of_side} are in the vocabulary of --from: its weights would be of no use; \
                 begin without --from, or take its vocabulary"
            )));
        }

        let named = |tokens: &[String]| match tokens {
            [] => String::new(),
            tokens if tokens.len() <= N_NAMED => format!(" ({})", tokens.join(", ")),
            tokens => format!(" ({}, ...)", tokens[..N_NAMED].join(", ")),
        };
        let count = |n: usize| thousands(n as f64);
        Ok(format!(
            "--new-vocabulary: {} of {} tokens{of_side} keep their rows; {} are new and begin with the mean of all rows{}; {} of the old \
             {} are gone{}",
            count(n_matched),
            count(n),
            count(n_new),
            named(&self.new),
            count(self.gone.len()),
            count(self.n_old),
            named(&self.gone)
        ))
    }

    /// Returns `tensor` with a place for each of `n` tokens along `axis`.
    fn rearranged(&self, tensor: &NamedTensor, axis: usize, n: usize) -> NamedTensor {
        let n_before = tensor.shape[axis];
        // The elements of a token are `width` in a row, `n_blocks` times.
        let width: usize = tensor.shape[axis + 1..].iter().product();
        let n_blocks = tensor.values.len() / (n_before * width).max(1);
        let mut shape = tensor.shape.clone();
        shape[axis] = n;
        let mut values = Vec::with_capacity(n_blocks * n * width);
        for block in tensor.values.chunks_exact((n_before * width).max(1)) {
            let mean = mean_row(&block[..self.n_old.min(n_before) * width], width);
            for id in 0..n {
                match self.rows.get(id).copied().flatten() {
                    Some(row) => values.extend_from_slice(&block[row * width..(row + 1) * width]),
                    None => values.extend_from_slice(&mean),
                }
            }
        }
        NamedTensor { name: tensor.name.clone(), shape, values }
    }
}

/// Returns the mean of rows of `width` elements.
fn mean_row(rows: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0.0; width];
    for row in rows.chunks_exact(width.max(1)) {
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
    }
    let n = (rows.len() / width.max(1)).max(1) as f64;
    sums.into_iter().map(|sum| (sum / n) as f32).collect()
}

/// The tokens of a vocabulary.
struct Tokens {
    /// What they spell, by id.
    spellings: Vec<Vec<u8>>,
    /// How they are written, by id.
    names: Vec<String>,
    /// Ids by how they are written.
    ids: HashMap<String, usize>,
    /// The ids of tokens with a task.
    roles: HashMap<&'static str, usize>,
}

impl Tokens {
    fn of(files: &[StoredFile], side: Side) -> Result<Self> {
        let named = |name: &str| files.iter().find(|file| file.name == name);
        let file = named(side.file()).or_else(|| named(TOKENIZER_FILE));
        let file = file.with_context(|| format!("the checkpoint has no {TOKENIZER_FILE}"))?;
        let tokenizer = TokenizerFile::parse(&file.bytes, Path::new(&file.name))?;
        let by_id = tokenizer.spellings();
        let n = by_id.last_key_value().map_or(0, |(id, _)| *id as usize + 1);
        let spellings = (0..n as u32).map(|id| by_id.get(&id).cloned().unwrap_or_default()).collect();

        let names: Value = named(TOKENIZER_CONFIG_FILE)
            .map(|file| serde_json::from_slice(&file.bytes).context(TOKENIZER_CONFIG_FILE))
            .transpose()?
            .unwrap_or_default();
        let ids: HashMap<String, usize> =
            tokenizer.ids().into_iter().map(|(name, id)| (name.to_owned(), id as usize)).collect();
        let id_of = |role: &'static str| {
            let name = names[role].as_str().or_else(|| names[role]["content"].as_str())?;
            Some((role, *ids.get(name)?))
        };
        let roles = ROLES.into_iter().filter_map(id_of).collect();
        let names = (0..n as u32).map(|id| tokenizer.token(id).unwrap_or_default().to_owned()).collect();
        Ok(Self { spellings, names, ids, roles })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matching(rows: Vec<Option<usize>>, n_old: usize) -> Matching {
        let new = rows.iter().filter(|row| row.is_none()).map(|_| "x".to_owned()).collect();
        Matching { rows, n_by_role: 0, n_old, new, gone: Vec::new() }
    }

    #[test]
    fn rows_and_columns_follow_their_tokens_and_new_ones_are_means() {
        let tensor = |shape: &[usize], values: &[f32]| NamedTensor {
            name: "table".into(),
            shape: shape.to_vec(),
            values: values.to_vec(),
        };
        // The last of the old rows belongs to no token.
        let matching = matching(vec![Some(2), None, Some(0)], 3);
        let rows = matching.rearranged(&tensor(&[4, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 9.0, 70.0, 70.0]), 0, 4);
        assert_eq!(rows.shape, [4, 2]);
        assert_eq!(rows.values, [5.0, 9.0, 3.0, 5.0, 1.0, 2.0, 3.0, 5.0]);

        let columns = matching.rearranged(&tensor(&[2, 4], &[1.0, 3.0, 5.0, 70.0, 2.0, 4.0, 9.0, 70.0]), 1, 3);
        assert_eq!((columns.shape, columns.values), (vec![2, 3], vec![5.0, 3.0, 1.0, 9.0, 5.0, 2.0]));
        let bias = matching.rearranged(&tensor(&[4], &[1.0, 3.0, 5.0, 70.0]), 0, 3);
        assert_eq!(bias.values, [5.0, 3.0, 1.0]);
    }

    #[test]
    fn vocabularies_with_nothing_in_common_are_refused() {
        let mut matching = matching(vec![Some(0), Some(1), None], 3);
        assert!(
            matching
                .note("")
                .expect("two of three")
                .starts_with("--new-vocabulary: 2 of 3 tokens keep their rows; 1 are")
        );
        matching.n_by_role = 2;
        let error = matching.note(" of the sources").expect_err("only tokens with a task").to_string();
        assert!(error.contains("0 of 3 tokens of the sources are in the vocabulary of --from"), "{error}");
    }
}
