//! A SentencePiece model as a `tokenizer.json`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tokenizers::normalizers::Precompiled;

use super::META;
use super::normalizer::Normalizer;
use super::proto::{Algorithm, Kind, Proto};

/// Marian's special tokens in a vocabulary with ids of its own.
const OF_VOCABULARY: [&str; 3] = ["<unk>", "</s>", "<pad>"];
/// What makes an entry that is not a piece less likely than every piece.
const NOT_A_PIECE: f64 = 100.0;

/// Returns the `tokenizer.json` of a model. `ids` is a vocabulary with ids of its own (Marian's `vocab.json`).
///
/// # Errors
/// If the bytes are not a model that Kiln reads, or the ids have gaps; the text says why.
pub(crate) fn to_json(bytes: &[u8], ids: Option<&BTreeMap<String, u32>>) -> Result<String, String> {
    let proto = Proto::read(bytes)?;
    Normalizer::new(&proto)?; // refuses damaged rules
    let tokens: Vec<&str> = match ids {
        Some(ids) => in_order(ids)?,
        None => proto.pieces.iter().map(|piece| piece.text.as_str()).collect(),
    };
    let pieces: BTreeMap<&str, (f32, Kind)> =
        proto.pieces.iter().map(|piece| (piece.text.as_str(), (piece.score, piece.kind))).collect();

    let is_special = |token: &str| match ids {
        Some(_) => OF_VOCABULARY.contains(&token),
        None => matches!(pieces.get(token), Some((_, Kind::Control | Kind::Unknown))),
    };
    let is_user_defined = |token: &str| matches!(pieces.get(token), Some((_, Kind::UserDefined)));
    let added: Vec<Value> = (0u32..)
        .zip(&tokens)
        .filter(|(_, token)| is_special(token) || is_user_defined(token))
        .map(|(id, token)| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": is_special(token)})
        })
        .collect();
    let model = match proto.algorithm {
        Algorithm::Unigram => unigram(&proto, &tokens, &pieces)?,
        Algorithm::Bpe => bpe(&proto, &tokens, &pieces)?,
    };
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": normalizer(&proto)?,
        "pre_tokenizer": null, "post_processor": null, "decoder": decoder(&proto), "model": model,
    });
    Ok(format!("{json:#}\n"))
}

/// Returns the tokens of a vocabulary in the order of their ids.
fn in_order(ids: &BTreeMap<String, u32>) -> Result<Vec<&str>, String> {
    let mut tokens = vec![None; ids.len()];
    for (token, id) in ids {
        match tokens.get_mut(*id as usize) {
            Some(place @ None) => *place = Some(token.as_str()),
            Some(Some(other)) => return Err(format!("gives {other:?} and {token:?} the same id {id}")),
            None => {
                return Err(format!(
                    "gives {token:?} the id {id}, but has {} entries: ids must have no gaps",
                    ids.len()
                ));
            }
        }
    }
    Ok(tokens.into_iter().flatten().collect())
}

fn unknown_piece(proto: &Proto) -> &str {
    proto.pieces.iter().find(|piece| piece.kind == Kind::Unknown).map_or("<unk>", |piece| piece.text.as_str())
}

fn unknown_id(proto: &Proto, tokens: &[&str]) -> Result<usize, String> {
    let unknown = unknown_piece(proto);
    let found = tokens.iter().position(|token| *token == unknown);
    found.ok_or_else(|| format!("has no {unknown:?}, which stands for unknown text in the SentencePiece model"))
}

fn unigram(proto: &Proto, tokens: &[&str], pieces: &BTreeMap<&str, (f32, Kind)>) -> Result<Value, String> {
    let lowest = pieces.values().map(|(score, _)| f64::from(*score)).fold(0.0, f64::min);
    let score = |token: &&str| pieces.get(*token).map_or(lowest - NOT_A_PIECE, |(score, _)| f64::from(*score));
    let vocab: Vec<Value> = tokens.iter().map(|token| json!([token, score(token)])).collect();
    let unk_id = unknown_id(proto, tokens)?;
    Ok(json!({"type": "Unigram", "unk_id": unk_id, "vocab": vocab, "byte_fallback": proto.byte_fallback}))
}

fn bpe(proto: &Proto, tokens: &[&str], pieces: &BTreeMap<&str, (f32, Kind)>) -> Result<Value, String> {
    unknown_id(proto, tokens)?;
    let vocab: Map<String, Value> = (0u32..).zip(tokens).map(|(id, token)| ((*token).to_owned(), json!(id))).collect();
    // A piece merges from each pair of pieces that spell it, in the order of the scores.
    let merging = |token: &str| {
        pieces.get(token).filter(|(_, kind)| matches!(kind, Kind::Normal | Kind::Unused)).map(|(score, _)| *score)
    };
    let mut merges: Vec<(f32, &str, usize)> = Vec::new();
    for token in tokens {
        let Some(score) = merging(token) else { continue };
        let places = token.char_indices().map(|(at, _)| at).skip(1);
        let splits = places.filter(|at| {
            let (left, right) = token.split_at(*at);
            vocab.contains_key(left) && vocab.contains_key(right) && merging(left).and(merging(right)).is_some()
        });
        merges.extend(splits.map(|at| (score, *token, at)));
    }
    merges.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap_or(std::cmp::Ordering::Equal));
    let merges: Vec<Value> = merges.iter().map(|(_, token, at)| json!([token[..*at], token[*at..]])).collect();
    Ok(json!({"type": "BPE", "dropout": null, "unk_token": unknown_piece(proto), "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": proto.byte_fallback, "ignore_merges": false,
        "vocab": vocab, "merges": merges}))
}

fn normalizer(proto: &Proto) -> Result<Value, String> {
    let mut steps = Vec::new();
    if !proto.charsmap.is_empty() {
        let rules = Precompiled::from(&proto.charsmap).map_err(|error| format!("has damaged rules: {error}"))?;
        steps.push(serde_json::to_value(rules).map_err(|error| error.to_string())?);
    }
    let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
    if proto.remove_extra_whitespaces {
        steps.push(replace(json!({"Regex": r"\A +| +\z"}), ""));
        steps.push(replace(json!({"Regex": " {2,}"}), " "));
    }
    let space = if proto.escape_whitespaces { META.to_string() } else { " ".to_owned() };
    if proto.add_dummy_prefix && !proto.whitespace_as_suffix {
        steps.push(json!({"type": "Prepend", "prepend": space}));
    }
    if proto.escape_whitespaces {
        steps.push(replace(json!({"String": " "}), &space));
    }
    Ok(json!({"type": "Sequence", "normalizers": steps}))
}

fn decoder(proto: &Proto) -> Value {
    let mut steps = vec![
        json!({"type": "Replace", "pattern": {"String": META}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if proto.add_dummy_prefix && !proto.whitespace_as_suffix {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}
